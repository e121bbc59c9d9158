//! The engine on a virtual clock: what verbs users rely on, without sockets, threads or sleep.

mod datagram;
mod hostile;
mod multicast;
mod mutants;
mod net;
mod pair;
mod rules;
mod sim;
mod srq;
mod statuses;
mod unreliable;
mod windows;
mod xrc;
