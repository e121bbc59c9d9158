//! A message that came.

use std::fmt;
use std::ops::Deref;

use super::layer::Packet;
use super::wire::HEADER;

/// A message that came, as its bytes. One that fits into a packet is that packet, as it lies in the receive; a longer one was put
/// together.
pub struct Message<B = Packet>(Inner<B>);

enum Inner<B> {
    Packet(B),
    Whole(Vec<u8>),
}

impl<B: Deref<Target = [u8]>> Message<B> {
    pub(super) fn packet(packet: B) -> Message<B> {
        Message(Inner::Packet(packet))
    }

    pub(super) fn whole(bytes: Vec<u8>) -> Message<B> {
        Message(Inner::Whole(bytes))
    }

    /// Its bytes, copied out of the packet if need be.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Inner::Packet(packet) => packet.get(HEADER..).unwrap_or_default().to_vec(),
            Inner::Whole(bytes) => bytes,
        }
    }
}

impl<B: Deref<Target = [u8]>> Deref for Message<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Packet(packet) => packet.get(HEADER..).unwrap_or_default(),
            Inner::Whole(bytes) => bytes,
        }
    }
}

impl<B: Deref<Target = [u8]>> fmt::Debug for Message<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.len())
    }
}
