//! Ends that nobody told of.

use std::ops::Deref;
use std::time::Duration;

use super::{Machine, PeerError, PeerId};
use crate::datagram::wire::{HEADER, Header, Kind};
use crate::datagram::{Address, DatagramError};

impl<B: Deref<Target = [u8]>> Machine<B> {
    /// What this end says of itself to whom it looks for: so it can be taken in where nobody told of it. See
    /// [`Machine::introduction`].
    ///
    /// # Errors
    /// It does not fit into the smallest datagram.
    pub fn set_greeting(&mut self, greeting: Vec<u8>) -> Result<(), DatagramError> {
        if greeting.len() > self.payload {
            return Err(DatagramError::Option {
                option: "the length of the greeting",
                value: greeting.len() as u64,
                cure: format!("give at most {} bytes", self.payload),
            });
        }
        self.greeting = greeting;
        Ok(())
    }

    /// Whether a datagram is the beginning of a session with somebody who is no peer, and what that one says of itself. Who
    /// wants to take it in does so by [`Machine::admit`], before it gives the datagram to [`Machine::handle_datagram`]; for all
    /// others it is a stranger's.
    pub fn introduction<'a>(&self, from: Address, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let says = self.begins(from, datagram)?.1;
        (!says.is_empty()).then_some(says)
    }

    /// The life that begins a session, if it is none of a peer's, and what is behind the header.
    fn begins<'a>(&self, from: Address, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let index = self.by_address.get(&from);
        let peer = index.and_then(|index| self.peers.get(*index as usize)?.1.as_ref());
        if peer.is_some_and(|peer| peer.unproven.is_none()) {
            return None;
        }
        let header = Header::parse(datagram)?;
        let begins = header.kind == Kind::Hello && header.to == 0;
        let known = peer.and_then(|peer| peer.unproven).map(|(_, life)| life);
        (begins && known != Some(header.from)).then(|| (header.from, &datagram[HEADER..]))
    }

    /// Takes in an end that introduces itself, as [`Machine::add_peer`] does one that the application knows. It is a peer when it
    /// has answered: then there is an [`Event::Introduced`](crate::datagram::Event::Introduced). Until then nothing is kept for it but its
    /// place, for at most [`Options::dead_after`](crate::datagram::Options::dead_after).
    ///
    /// Of those who have not answered there are never more than `most`. One more takes the place of the oldest, if that has had half
    /// of this time: until then its answer may be on its way, and it would take the end that does not know it any more for
    /// dead.
    ///
    /// An introduction of another life of one that has not answered takes its place at once. Somebody who forges such ones can so
    /// keep an end from being taken in, as long as each of its answers meets a later forgery: many thousand a second, for an answer
    /// is there after one round trip. If the first life had its place for half of that time, one forgery a second could do it.
    ///
    /// # Errors
    /// There is no room for one more, or the datagram is no introduction.
    pub fn admit(
        &mut self,
        now: Duration,
        (from, datagram): (Address, &[u8]),
        mtu: u32,
        max_message: u32,
        most: u32,
    ) -> Result<PeerId, PeerError> {
        let Some((life, _)) = self.begins(from, datagram) else {
            let peer = self.by_address.get(&from).map(|&index| self.id(index));
            let nobody = PeerError::NotACard {
                len: datagram.len(),
                begin: datagram[..datagram.len().min(4)].to_vec(),
            };
            return Err(peer.map_or(nobody, PeerError::Taken));
        };
        // Another life of one that has not answered yet, or somebody who says to be there.
        if let Some(&index) = self.by_address.get(&from) {
            self.remove(index);
        }
        let peers = self.options.peers;
        let full = self.by_address.len() >= peers as usize;
        let until = now.saturating_add(self.options.dead_after);
        if self.unproven.len() >= most as usize || full {
            let had = now.saturating_add(self.options.dead_after / 2);
            let oldest = self.unproven.first().filter(|(until, _)| *until <= had);
            let &(_, index) = oldest.ok_or(PeerError::Full { peers })?;
            self.remove(index);
        }
        let id = self.add_peer(from, mtu, max_message)?;
        if let Some(peer) = self.get_mut(id) {
            peer.unproven = Some((until, life));
            self.unproven.insert((until, id.index));
        }
        self.touch(id.index);
        Ok(id)
    }
}
