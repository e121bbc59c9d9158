//! The engine on a virtual clock: what verbs users rely on, without sockets, threads or sleep.

mod answers;
mod blame;
mod datagram;
mod hostile;
mod invalidation;
mod kills;
mod memory;
mod messages;
mod multicast;
mod mutants;
mod net;
mod node;
mod pair;
mod retries;
mod srq;
mod states;
mod statuses;
mod unreliable;
mod victim;
mod windows;
mod xrc;
