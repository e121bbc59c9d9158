//! Who comes and who goes: connections are made, heard and ended.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use super::ShmLink;
use super::outgoing::{Outgoing, State};
use super::receiving::Incoming;
use super::ring::Receiver;
use super::socket::{self, Heard, Hello};
use crate::core::time::Instant;
use crate::verbs::sys;

/// A connection to another node; ends with it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// What is heard of it is told under this number.
    pub(super) id: u64,
    waiter: Arc<OwnedFd>,
}

impl Connection {
    pub(super) fn new(
        socket: OwnedFd,
        id: u64,
        waiter: &Arc<OwnedFd>,
    ) -> Result<Connection, Errno> {
        let data = epoll::EventData::new_u64(id);
        epoll::add(waiter, &socket, data, epoll::EventFlags::IN)?;
        let waiter = Arc::clone(waiter);
        Ok(Connection { socket, id, waiter })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A child that was forked may hold the socket, too: closing alone would not end the waiting for it.
        let _ = epoll::delete(&self.waiter, &self.socket);
    }
}

/// How many messages of one connection are heard before the others have their turn.
const MESSAGES: u32 = 64;

impl ShmLink {
    /// Sees to connections: accepts new ones, hears answers and bells, and who is gone. True if somebody new
    /// sends to this node: then what lies in the sockets is older than what lies in its ring.
    pub(crate) fn tend(&mut self, now: Instant) -> bool {
        let mut ready = [0; 16];
        let Ok(count) = sys::epoll_now(self.waiter.as_fd(), &mut ready) else {
            return false;
        };
        let mut fresh = false;
        self.unasked |= count > 0;
        self.heard |= count > 0;
        for &id in &ready[..count] {
            if let Some(at) = self.listeners.iter().position(|l| l.0.id == id) {
                fresh |= self.accept(at);
            } else if let Some(at) = self.incoming.iter().position(|i| i.connection.id == id) {
                fresh |= self.hear_sender(at);
            } else {
                self.hear_receiver(id, now);
            }
        }
        let opening = |o: &Outgoing| matches!(o.state, State::Opening { until, .. } if now < until);
        self.opening = self.outgoing.iter().any(opening);
        for (sender, connection) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            if sender.is_forgotten(now) {
                socket::ring_the_bell(&connection.socket);
            }
        }
        fresh
    }

    /// Accepts who has connected; true if it said hello, too.
    fn accept(&mut self, at: usize) -> bool {
        let (listener, local) = &self.listeners[at];
        let local = *local;
        match socket::accept(&listener.socket) {
            Ok(socket) if self.incoming.len() < ShmLink::MOST => {
                let Ok(connection) = self.connection(socket) else {
                    return false;
                };
                self.incoming.push(Incoming {
                    connection,
                    local,
                    ring: None,
                    over: false,
                });
                return self.hear_sender(self.incoming.len() - 1);
            }
            Ok(_) | Err(Errno::PERM | Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // There are no descriptors, and whoever waits would be told so without end.
            Err(_) => drop(self.listeners.remove(at)),
        }
        false
    }

    /// Hears one who sends to this node; true if that was its hello.
    fn hear_sender(&mut self, at: usize) -> bool {
        let incoming = &mut self.incoming[at];
        let address = self.addresses[incoming.local];
        let mut fresh = false;
        let mut buffer = [0; 64];
        for _ in 0..MESSAGES {
            match socket::hear(&incoming.connection.socket, &mut buffer) {
                Heard::Nothing => break,
                Heard::End => {
                    incoming.over = true;
                    if let Some((_, ring)) = &mut incoming.ring
                        && ring.end().is_err()
                    {
                        self.counters.broken += 1;
                        incoming.ring = None;
                    }
                    break;
                }
                // A bell.
                Heard::Message(..) if incoming.ring.is_some() => {}
                Heard::Message(len, file) => {
                    let hello = Hello::parse(&buffer[..len]).filter(|hello| {
                        hello.dst == address.to_canonical() && !self.addresses.contains(&hello.src)
                    });
                    let ring = file.and_then(|file| Receiver::adopt(file.as_fd()).ok());
                    let socket = &incoming.connection.socket;
                    match (hello, ring) {
                        (Some(hello), Some(ring)) if socket::say_yes(socket).is_ok() => {
                            incoming.ring = Some((hello.src, ring));
                            self.counters.rings += 1;
                            fresh = true;
                        }
                        _ => {
                            incoming.over = true;
                            break;
                        }
                    }
                }
            }
        }
        if incoming.over && incoming.ring.is_none() {
            self.incoming.remove(at);
        }
        fresh
    }

    /// Hears one that this node sends to.
    fn hear_receiver(&mut self, id: u64, now: Instant) {
        let is = |o: &&mut Outgoing| o.connection().is_some_and(|c| c.id == id);
        let Some(outgoing) = self.outgoing.iter_mut().find(is) else {
            return;
        };
        let mut buffer = [0; 64];
        for _ in 0..MESSAGES {
            let Some(connection) = outgoing.connection() else {
                break;
            };
            match (
                socket::hear(&connection.socket, &mut buffer),
                &outgoing.state,
            ) {
                (Heard::Nothing, _) => break,
                (Heard::Message(len, _), State::Opening { .. }) => {
                    let yes = socket::is_yes(&buffer[..len]);
                    self.counters.rings += u64::from(yes);
                    outgoing.answered(yes, now);
                }
                // A bell.
                (Heard::Message(..), _) => {}
                (Heard::End, _) => {
                    // It may have executed something right before that.
                    let _ = outgoing.look(&mut self.executed);
                    outgoing.answered(false, now);
                }
            }
        }
    }
}

/// Is met at `address` from now on. A process that has just ended may not have given its name up yet.
pub(super) fn listen(address: IpAddr) -> Result<OwnedFd, Errno> {
    const TRIES: u32 = 10;
    for _ in 1..TRIES {
        match socket::listen(address) {
            Err(Errno::ADDRINUSE) => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
    socket::listen(address)
}
