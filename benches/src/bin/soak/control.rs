//! The control channel of two workers: over TCP for some pairs, through shared memory for the others.

use std::path::PathBuf;
use std::time::Duration;

use rdma_qp::exchange::{Exchange, ExchangeError, shm, tcp};

use crate::Worker;

/// How a worker finds one other.
pub enum Way {
    Listen(tcp::Listener),
    Connect(String),
    Shared(PathBuf),
}

impl Way {
    /// Pairs whose numbers add up to an odd one use TCP, where the lower number listens.
    pub fn new(who: &Worker, peer: usize) -> Result<Way, ExchangeError> {
        let (low, high) = (who.slot.min(peer), who.slot.max(peer));
        if (low + high).is_multiple_of(2) {
            return Ok(Way::Shared(who.folder.join(format!("{low}-{high}"))));
        }
        let address = format!("{}.{}:{}", who.network, low + 1, 7000 + high);
        if who.slot == low {
            Ok(Way::Listen(tcp::listen(&*address)?))
        } else {
            Ok(Way::Connect(address))
        }
    }

    /// Meets the peer, if it is there within `limit`.
    pub fn meet(&self, limit: Duration) -> Result<Control, ExchangeError> {
        match self {
            Way::Listen(listener) => listener.accept(limit).map(Control::Tcp),
            Way::Connect(address) => tcp::connect(&**address, limit).map(Control::Tcp),
            Way::Shared(name) => shm::meet(name, limit).map(Control::Shared),
        }
    }
}

/// A channel of either kind.
pub enum Control {
    Tcp(tcp::Channel),
    Shared(shm::Channel),
}

/// The same call on either kind.
macro_rules! either {
    ($control:expr, $channel:ident => $call:expr) => {
        match $control {
            Control::Tcp($channel) => $call,
            Control::Shared($channel) => $call,
        }
    };
}

impl Control {
    pub fn set_limit(&mut self, limit: Duration) {
        either!(self, channel => channel.set_limit(limit));
    }

    pub fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        either!(self, channel => channel.send(message))
    }

    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        either!(self, channel => channel.try_recv())
    }
}

impl Exchange for Control {
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        either!(self, channel => channel.swap_bytes(mine))
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        either!(self, channel => channel.barrier())
    }
}
