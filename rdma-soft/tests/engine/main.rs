//! The engine on a virtual clock: what verbs users rely on, without sockets, threads or sleep.

mod hostile;
mod net;
mod rules;
mod sim;
