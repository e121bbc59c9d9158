//! What comes in: sessions that begin, go on and end.

use std::ops::Deref;
use std::time::Duration;

use super::{Machine, Queued, UNTOLD, draw};
use crate::datagram::incoming::{Broken, Taken};
use crate::datagram::peer::{Peer, Session};
use crate::datagram::pool::KEEP;
use crate::datagram::wire::{ASK, Header, Kind};
use crate::datagram::{Address, Event};

impl<B: Deref<Target = [u8]>> Machine<B> {
    /// Something came in. Whatever it is, it changes nothing unless it is of a peer, from its address, and of the present
    /// session, or the beginning of one.
    pub fn handle_datagram(&mut self, now: Duration, from: Address, datagram: B) {
        let Some(header) = Header::parse(&datagram) else {
            self.counters.malformed += 1;
            return;
        };
        let Some(&index) = self.by_address.get(&from) else {
            self.counters.strangers += 1;
            return;
        };
        match header.kind {
            Kind::Hello => self.hello(now, index, &header),
            Kind::Reset => self.reset(index, &header),
            Kind::Data | Kind::Ack => self.packet(now, index, &header, datagram),
        }
        self.touch(index);
    }

    fn peer(&mut self, index: u32) -> Option<&mut Peer<B>> {
        self.peers.get_mut(index as usize)?.1.as_mut()
    }

    /// Somebody at the peer's address begins a session, or answers this end's beginning.
    fn hello(&mut self, now: Duration, index: u32, header: &Header) {
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return;
        };
        let named = Session {
            own: header.to,
            theirs: header.from,
        };
        if let Some(session) = peer.session
            && session.theirs == header.from
        {
            if header.to == session.own || header.to == 0 {
                // It does not know yet that its session is there.
                peer.incoming.asked();
            } else {
                self.counters.stale += 1;
            }
            return;
        }
        match peer.opening {
            Some(opening) if opening.own == header.to => {
                if !self.establish(now, index, named) {
                    return;
                }
                let Some(peer) = self.peer(index) else { return };
                // It shall know that its session is there, even if there is nothing to be sent.
                peer.incoming.asked();
                self.numbers(now, index, header);
            }
            _ if header.to == 0 => peer.answer_hello(header.from, || draw(&mut self.draws)),
            _ => self.refuse(index, named),
        }
    }

    /// Tells the sender of a packet that the life that it names is over.
    fn refuse(&mut self, index: u32, named: Session) {
        self.counters.stale += 1;
        if let Some(peer) = self.peer(index) {
            peer.reset = Some(named);
        }
    }

    /// A session begins, and the former one, if there is one, ends.
    fn establish(&mut self, now: Duration, index: u32, session: Session) -> bool {
        let id = self.id(index);
        let Some(peer) = self.peer(index) else {
            return false;
        };
        // What somebody else has said of an end does not hold for it.
        let other = |(_, life)| life != session.theirs;
        if peer.untold >= UNTOLD || peer.unproven.is_some_and(other) {
            return false;
        }
        let connects = peer.session.is_none();
        if !connects {
            self.end_session(index, Some(Event::Restarted { peer: id }));
        }
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return false;
        };
        peer.establish(now, session);
        let introduced = self.prove(index);
        let events = [
            introduced.then_some(Event::Introduced { peer: id }),
            connects.then_some(Event::Connected { peer: id }),
        ];
        for event in events.into_iter().flatten() {
            if let Some(peer) = self.peer(index) {
                peer.untold += 1;
            }
            self.events.push_back(Queued::Session(id, event));
        }
        true
    }

    /// The peer says that it knows nothing of a session.
    fn reset(&mut self, index: u32, header: &Header) {
        let id = self.id(index);
        let named = Session {
            own: header.to,
            theirs: header.from,
        };
        match self.peer(index) {
            Some(peer) if peer.session == Some(named) => {
                self.end_session(index, Some(Event::Restarted { peer: id }));
            }
            _ => self.counters.stale += 1,
        }
    }

    /// A packet of a session.
    fn packet(&mut self, now: Duration, index: u32, header: &Header, datagram: B) {
        let Some(peer) = self.peer(index) else { return };
        let named = Session {
            own: header.to,
            theirs: header.from,
        };
        if peer.session != Some(named) {
            let is_new = (peer.opening).is_some_and(|opening| opening.own == named.own);
            if !is_new || !self.establish(now, index, named) {
                if !is_new {
                    self.refuse(index, named);
                }
                return;
            }
        }
        if !self.numbers(now, index, header) {
            return;
        }
        if header.kind == Kind::Ack {
            if header.flags & ASK != 0
                && let Some(peer) = self.peer(index)
            {
                peer.incoming.asked();
            }
            return;
        }
        self.look_for_idle(now);
        let id = self.id(index);
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return;
        };
        let serial = peer.serial;
        let events = &mut self.events;
        let with = (&self.options, &mut self.pool);
        let taken = (peer.incoming).take(now, header, datagram, with, |message, end| {
            events.push_back(Queued::Message {
                peer: id,
                serial,
                end,
                message,
            });
        });
        match taken {
            Ok(Taken::New) => self.counters.received += 1,
            Ok(Taken::Duplicate) => self.counters.duplicates += 1,
            Ok(Taken::Beyond) => self.counters.beyond += 1,
            Ok(Taken::Lapsed) => self.counters.lapsed += 1,
            Err(Broken) => self.break_off(index),
        }
    }

    /// Now and then, what idle peers were promised goes back to those who send.
    fn look_for_idle(&mut self, now: Duration) {
        if now < self.pool.look {
            return;
        }
        self.pool.look = now.saturating_add(KEEP / 4);
        for (_, peer) in &mut self.peers {
            if let Some(peer) = peer {
                peer.incoming.look(now, &mut self.pool);
            }
        }
    }

    /// Takes in what every packet of a session says. `false`: it cannot be.
    fn numbers(&mut self, now: Duration, index: u32, header: &Header) -> bool {
        let id = self.id(index);
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return false;
        };
        let (events, under_way) = (&mut self.events, &mut self.under_way);
        let heard = (peer.outgoing).heard(now, header, &mut self.slots, &self.options, |message| {
            *under_way -= 1;
            let event = Event::Acknowledged { peer: id, message };
            events.push_back(Queued::Fate(event));
        });
        if heard.is_err() {
            self.break_off(index);
            return false;
        }
        peer.heard(now);
        true
    }

    /// The peer does not keep to the protocol: the session is over, which it is told.
    fn break_off(&mut self, index: u32) {
        self.counters.broken += 1;
        let id = self.id(index);
        let Some(peer) = self.peer(index) else { return };
        peer.reset = peer.session;
        self.end_session(index, Some(Event::Restarted { peer: id }));
    }

    /// Ends a session, or the search for one, and tells why, and what was lost by it.
    pub(super) fn end_session(&mut self, index: u32, why: Option<Event<B>>) {
        let id = self.id(index);
        let Some((_, Some(peer))) = self.peers.get_mut(index as usize) else {
            return;
        };
        if let Some(event) = why {
            peer.untold += 1;
            self.events.push_back(Queued::Session(id, event));
        }
        peer.forget();
        peer.incoming.end_session(&mut self.pool);
        let (events, under_way) = (&mut self.events, &mut self.under_way);
        peer.outgoing.end_session(&mut self.slots, |message, fate| {
            *under_way -= 1;
            let event = Event::Lost {
                peer: id,
                message,
                fate,
            };
            events.push_back(Queued::Fate(event));
        });
    }
}
