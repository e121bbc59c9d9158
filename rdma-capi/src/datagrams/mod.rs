//! Reliable datagrams: messages to many peers over one Queue Pair.

mod attr;
mod error;

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rdma_qp::datagram::{Datagrams, Event, Message, MessageId, PeerError, PeerId, Stranger};
use rdma_qp::{Armed, Device, Pd};

use crate::device::{self, qp_device};
use crate::export::{Array, In, Out, Places, Room, export, put_text};
use crate::fault::*;
use crate::memory::qp_pd;
use crate::mesh::fate;
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::{deadline, framed, unframed};
use attr::qp_datagrams_options;

/// An end for reliable datagrams: messages of any length, in order, to many peers, over one UD Queue Pair. One thread at a time
/// may call functions with it.
///
/// A message that is acknowledged is at the peer, once, intact, and behind those that were sent to it before. Of one that is not
/// it is told that it was not done, or that nobody knows. None is sent again in a later session.
///
/// There is no thread: an end receives, answers and repeats within qp_datagrams_next(); qp_datagrams_send() sends, and takes nothing
/// in. So call the first often, or sleep as qp_datagrams_arm() says. Peers of an end that does something else for dead_after_ms
/// give it up.
#[allow(non_camel_case_types)]
pub struct qp_datagrams {
    _never: [u8; 0],
}

/// Bytes of a card: what an end tells its peers of itself.
pub const QP_DATAGRAMS_CARD: usize = 128;

/// What happened to an end for datagrams.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_datagrams_kind {
    /// A message of `len` bytes came from `peer`. Those of one peer come in the order in which it sent them.
    QP_DATAGRAMS_MESSAGE = 1,
    /// `peer` has the message `context`.
    QP_DATAGRAMS_ACKNOWLEDGED = 2,
    /// The message `context` to `peer` was given up; `fate` says what is known: QP_FATE_NOT_DONE, `peer` does not have it;
    /// QP_FATE_UNKNOWN, it may. What it was given up for is told before, unless the program itself asked for it.
    QP_DATAGRAMS_LOST = 3,
    /// There is a session with `peer`, with which there was none.
    QP_DATAGRAMS_CONNECTED = 4,
    /// `peer` was restarted, or had given this end up: messages from now on are of its new life.
    QP_DATAGRAMS_RESTARTED = 5,
    /// `peer` was asked and says nothing. Sending to it looks for it again.
    QP_DATAGRAMS_DEAD = 6,
    /// Something that has no number here yet.
    QP_DATAGRAMS_OTHER = 7,
    /// An end that nobody had told of is a peer from now on, `peer`: see qp_datagrams_listen().
    QP_DATAGRAMS_INTRODUCED = 8,
}

/// Something that happened to an end for datagrams. Fields that the kind says nothing of are 0.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_datagrams_event {
    /// What: one of enum qp_datagrams_kind.
    pub kind: u32,
    /// LOST: one of enum qp_fate.
    pub fate: u32,
    /// Whom it concerns: what qp_datagrams_add_peer() gave.
    pub peer: u64,
    /// ACKNOWLEDGED, LOST: what qp_datagrams_send() was given.
    pub context: u64,
    /// MESSAGE: bytes.
    pub len: usize,
    /// 0.
    pub reserved: u64,
}

/// The state of an end for datagrams, and what it has counted since it was made.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_datagrams_state {
    /// Messages whose fate was not told yet.
    pub under_way: u64,
    /// Within how many milliseconds the death of a peer is noticed, while qp_datagrams_next() is called; UINT64_MAX: without
    /// heartbeat, that of a peer to which nothing is sent is not.
    pub notices_within_ms: u64,
    /// Packets with parts of messages that left for the first time.
    pub sent: u64,
    /// Those that left again.
    pub repeated: u64,
    /// Packets that left with nothing but numbers.
    pub acks: u64,
    /// Packets with parts of messages that were new here.
    pub received: u64,
    /// Those that were here already.
    pub duplicates: u64,
    /// Those for which there was no room.
    pub beyond: u64,
    /// Those of a peer that was told of room and then was silent, so that others had it. They come again.
    pub lapsed: u64,
    /// Datagrams of somebody who is no peer, and was not taken for one.
    pub strangers: u64,
    /// Datagrams without a right header.
    pub malformed: u64,
    /// Packets of a session that is over.
    pub stale: u64,
    /// Sessions that ended because the peer did not keep to the protocol.
    pub broken: u64,
}

/// Says whether an end that nobody told of is taken in as a peer.
///
/// @param context      What was given to qp_datagrams_listen().
/// @param gid          The 16 bytes of its GID.
/// @param qp_num       The number of its Queue Pair.
/// @param max_message  The longest message that it takes, in bytes.
/// @return Not 0: it is.
#[allow(non_camel_case_types)]
pub type qp_stranger_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        gid: *const u8,
        qp_num: u32,
        max_message: u32,
    ) -> c_int,
>;

/// Who says which strangers are taken in.
struct Judge {
    accept: qp_stranger_fn,
    context: *mut c_void,
}

// SAFETY: the pointer is the program's and never looked at here; the header says that the function is called by whichever
// thread calls the library.
unsafe impl Send for Judge {}
// SAFETY: as above; it is called by one thread at a time, that which has the turn of the end.
unsafe impl Sync for Judge {}

impl Judge {
    fn accepts(&self, stranger: &Stranger) -> bool {
        let (gid, qp_num) = (stranger.address.gid.bytes(), stranger.address.qp_num);
        let Some(accept) = self.accept else {
            return true;
        };
        // SAFETY: the program's function, with its own pointer and 16 bytes that live during the call.
        let said = unsafe { accept(self.context, gid.as_ptr(), qp_num, stranger.max_message) };
        said != 0
    }
}

/// What C has a `qp_datagrams *` of.
pub(crate) struct End {
    datagrams: Datagrams,
    /// What the program gave along with the messages that are under way.
    contexts: HashMap<MessageId, u64>,
    /// A message that did not fit, to be asked for again.
    kept: Option<(PeerId, Message)>,
    notices_within: Option<Duration>,
}

// SAFETY: no other type has this kind.
unsafe impl Object for End {
    type C = qp_datagrams;
    const KIND: Kind = Kind::Datagrams;
}

impl End {
    /// The next event. `None`: there was none until the deadline.
    fn next(
        &mut self,
        timeout_ms: i64,
        data: &mut Places<'_, u8>,
    ) -> Result<Option<qp_datagrams_event>, Fault> {
        use qp_datagrams_kind::*;
        let event = match self.kept.take() {
            Some((peer, message)) => Some(Event::Received { peer, message }),
            None if timeout_ms == 0 => self.datagrams.poll()?,
            None => self.datagrams.wait(deadline(timeout_ms))?,
        };
        let Some(event) = event else { return Ok(None) };
        let mut told = qp_datagrams_event {
            kind: 0,
            fate: 0,
            peer: 0,
            context: 0,
            len: 0,
            reserved: 0,
        };
        let (kind, peer) = match event {
            Event::Received { peer, message } => {
                told.len = message.len();
                data.fill_whole(&message)
                    .inspect_err(|_| self.kept = Some((peer, message)))?;
                (QP_DATAGRAMS_MESSAGE, Some(peer))
            }
            Event::Acknowledged { peer, message } => {
                told.context = self.contexts.remove(&message).unwrap_or(0);
                (QP_DATAGRAMS_ACKNOWLEDGED, Some(peer))
            }
            Event::Lost {
                peer,
                message,
                fate: known,
            } => {
                told.context = self.contexts.remove(&message).unwrap_or(0);
                told.fate = fate(known);
                (QP_DATAGRAMS_LOST, Some(peer))
            }
            Event::Connected { peer } => (QP_DATAGRAMS_CONNECTED, Some(peer)),
            Event::Restarted { peer } => (QP_DATAGRAMS_RESTARTED, Some(peer)),
            Event::Dead { peer } => (QP_DATAGRAMS_DEAD, Some(peer)),
            Event::Introduced { peer } => (QP_DATAGRAMS_INTRODUCED, Some(peer)),
            _ => (QP_DATAGRAMS_OTHER, None),
        };
        (told.kind, told.peer) = (kind as u32, peer.map_or(0, PeerId::number));
        Ok(Some(told))
    }
}

/// The card that C handed around.
fn card<'a>(given: &Array<'a, u8>) -> Result<&'a [u8], Fault> {
    // SAFETY: the header asks for so many bytes.
    let bytes = unsafe { given.of(QP_DATAGRAMS_CARD) }?;
    unframed(bytes).ok_or_else(|| {
        let text = "these bytes are no card of qp_datagrams_card()";
        Fault::new(QP_CODE_RECORD, libc::EPROTO, text)
    })
}

export! {
    /// Makes an end for reliable datagrams: a CQ, a UD Queue Pair, and the memory for its packets.
    ///
    /// @param device     The device of the protection domain.
    /// @param port       Port of the device, counted from 1.
    /// @param gid_index  Place of the GID in the port's table; -1 chooses one.
    /// @param options    What it shall be like; NULL for the usual.
    /// @param datagrams  Where the handle goes; destroy it with qp_datagrams_destroy().
    /// @return 0; EINVAL (QP_CODE_RANGE): an option is out of its range; or why a part of it could not be made.
    fn qp_datagrams_create(
        device: *mut qp_device as Held<Device>,
        pd: *mut qp_pd as Held<Pd>,
        port: c_int,
        gid_index: c_int,
        options: *const qp_datagrams_options as Option<In<'_, qp_datagrams_options>>,
        datagrams: *mut *mut qp_datagrams as Out<'_, *mut qp_datagrams>,
    ) {
        let options = attr::options(options)?;
        let gid = device::gid(&device, port, gid_index)?;
        let end = End {
            datagrams: Datagrams::new(&device, &pd, gid, &options)?,
            contexts: HashMap::new(),
            kept: None,
            notices_within: options.notices_within(),
        };
        datagrams.set(insert(end)?);
        Ok(())
    }

    /// Gives what others need to know of this end, for qp_datagrams_add_peer(): hand it around by whatever there is.
    ///
    /// @param card  Room for QP_DATAGRAMS_CARD bytes. (A program in Rust has the bytes behind the first two, which are their number,
    ///              the high one first.)
    fn qp_datagrams_card(datagrams: *mut qp_datagrams as Alone<End>, card: *mut u8 as Room<'_, u8>) {
        // SAFETY: the header asks for so much room.
        let mut places = unsafe { card.of(QP_DATAGRAMS_CARD) }?;
        let bytes = datagrams.datagrams.card()?;
        let Some(card) = framed::<QP_DATAGRAMS_CARD>(&bytes) else {
            let text = format!("a card of {} bytes is too long", bytes.len());
            return Err(Fault::new(QP_CODE_SHORT_BUFFER, libc::ENOSPC, text));
        };
        places.fill(&card);
        Ok(())
    }

    /// Adds a peer. Nothing is sent to it yet; and what it sends gets in from now on.
    ///
    /// @param card  Its card, QP_DATAGRAMS_CARD bytes.
    /// @param peer  Where its number at this end goes. That of a peer that was removed is not given to another.
    /// @return 0; EPROTO (QP_CODE_RECORD): it is no card; ENOMEM (QP_CODE_LIMIT): there are as many as options.peers; EEXIST
    ///         (QP_CODE_REFUSED): another peer is at that address; or there is no way to it.
    fn qp_datagrams_add_peer(
        datagrams: *mut qp_datagrams as Alone<End>,
        card: *const u8 as Array<'_, u8>,
        peer: *mut u64 as Out<'_, u64>,
    ) {
        peer.set(datagrams.datagrams.add_peer(self::card(&card)?)?.number());
        Ok(())
    }

    /// Takes in ends that nobody told of, from now on: whoever has this end's card, sends to it, and is accepted, becomes a peer, and
    /// QP_DATAGRAMS_INTRODUCED tells so. They count among options.peers.
    ///
    /// @param strangers  Most of them that have not yet proven that they are where they seem to be; 0: nobody is taken in any more.
    /// @param accept     Says who is accepted; NULL: everybody. It is called within calls with the end, by the thread of the call. It
    ///                   must return (no longjmp, no C++ exception), and may call the library, but not with this end.
    /// @param context    Handed to the function, never looked at; it must stay usable until another one is set, or the end is
    ///                   destroyed.
    fn qp_datagrams_listen(
        datagrams: *mut qp_datagrams as Alone<End>,
        strangers: u32,
        accept: qp_stranger_fn,
        context: *mut c_void,
    ) {
        let judge = Judge { accept, context };
        datagrams.datagrams.listen(strangers, move |stranger| judge.accepts(stranger));
        Ok(())
    }

    /// Tells where a peer is.
    ///
    /// @param gid     Where the 16 bytes of its GID go; may be NULL.
    /// @param qp_num  Where the number of its Queue Pair goes; may be NULL.
    /// @return 0; ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
    fn qp_datagrams_address(
        datagrams: *mut qp_datagrams as Alone<End>,
        peer: u64,
        gid: *mut u8 as Room<'_, u8>,
        qp_num: *mut u32 as Option<Out<'_, u32>>,
    ) {
        let peer = PeerId::of_number(peer);
        let address = datagrams.datagrams.address(peer).ok_or(PeerError::NoSuchPeer(peer))?;
        // SAFETY: the header asks for 16 bytes, or NULL.
        if let Some(mut places) = unsafe { gid.glance_of(16) } {
            places.fill(&address.gid.bytes());
        }
        if let Some(mut qp_num) = qp_num {
            qp_num.set(address.qp_num);
        }
        Ok(())
    }

    /// Tells that a peer was restarted, and has another card now: what is not acknowledged is lost, as QP_DATAGRAMS_LOST tells,
    /// and what is sent from now on goes to its new life.
    ///
    /// @return As qp_datagrams_add_peer(); ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
    fn qp_datagrams_move_peer(
        datagrams: *mut qp_datagrams as Alone<End>,
        peer: u64,
        card: *const u8 as Array<'_, u8>,
    ) {
        Ok(datagrams.datagrams.move_peer(PeerId::of_number(peer), self::card(&card)?)?)
    }

    /// Removes a peer: what is not acknowledged is lost, as QP_DATAGRAMS_LOST tells.
    ///
    /// @return 0; ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
    fn qp_datagrams_remove_peer(datagrams: *mut qp_datagrams as Alone<End>, peer: u64) {
        Ok(datagrams.datagrams.remove_peer(PeerId::of_number(peer))?)
    }

    /// Begins a session with a peer, though there is nothing to be sent: so its death is noticed, if there is a heartbeat.
    ///
    /// @return 0; ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
    fn qp_datagrams_connect(datagrams: *mut qp_datagrams as Alone<End>, peer: u64) {
        Ok(datagrams.datagrams.connect(PeerId::of_number(peer))?)
    }

    /// Sends a message to a peer. The bytes are copied. If there is no session with it yet, one begins. What becomes of the
    /// message is told once, by QP_DATAGRAMS_ACKNOWLEDGED or QP_DATAGRAMS_LOST with its context.
    ///
    /// @param data     The bytes; NULL if len is 0.
    /// @param len      Their number, at most the peer's max_message.
    /// @param context  Any number; it comes back with the event.
    /// @return 0; EAGAIN (QP_CODE_FULL): no room at present, call qp_datagrams_next() and try again; ENODATA (QP_CODE_NOT_FOUND):
    ///         there is no such peer; EINVAL (QP_CODE_REFUSED): too long; or what failed: the end does not work any more then.
    fn qp_datagrams_send(
        datagrams: *mut qp_datagrams as Alone<End>,
        peer: u64,
        data: *const u8 as Array<'_, u8>,
        len: usize,
        context: u64,
    ) {
        // SAFETY: `len` is the length of `data`, says the header.
        let bytes = unsafe { data.of(len) }?;
        let message = datagrams.datagrams.send(PeerId::of_number(peer), bytes)?;
        datagrams.contexts.insert(message, context);
        Ok(())
    }

    /// Takes the next event, and does what is to be done for the end meanwhile: takes in packets, acknowledges, repeats.
    ///
    /// @param timeout_ms  How long to wait, in milliseconds; 0: not at all; below 0: no limit. Other threads cannot send meanwhile.
    /// @param event       Where it goes.
    /// @param data        Where the bytes of a message go; NULL only if room is 0.
    /// @param room        Room there: with options.max_message every message fits.
    /// @return 0; ETIMEDOUT: there was none; ENOSPC (QP_CODE_SHORT_BUFFER): a message does not fit, and comes again with the
    ///         next call; or what failed: the end does not work any more then.
    fn qp_datagrams_next(
        datagrams: *mut qp_datagrams as Alone<End>,
        timeout_ms: i64,
        event: *mut qp_datagrams_event as Out<'_, qp_datagrams_event>,
        data: *mut u8 as Room<'_, u8>,
        room: usize,
    ) {
        // SAFETY: `room` is the length of `data`, says the header.
        let mut places = unsafe { data.of(room) }?;
        let Some(told) = datagrams.next(timeout_ms, &mut places)? else {
            let text = format!("no event within {timeout_ms} ms");
            return Err(Fault::new(QP_CODE_TIMED_OUT, libc::ETIMEDOUT, text));
        };
        event.set(told);
        Ok(())
    }

    /// Gives the descriptor that becomes readable after qp_datagrams_arm(), for poll(2) and the like: the same for the whole
    /// life of the handle. It is the end's: do not close it.
    fn qp_datagrams_fd(datagrams: *mut qp_datagrams as Alone<End>, fd: *mut c_int as Out<'_, c_int>) {
        fd.set(datagrams.datagrams.as_fd().as_raw_fd());
        Ok(())
    }

    /// Prepares for sleeping on the descriptor, and looks whether there is something to do already.
    ///
    /// @param ready  Where the answer goes: 1, call qp_datagrams_next() with a timeout of 0 until it says ETIMEDOUT; 0, the
    ///               descriptor becomes readable when there is something to do: then do the same.
    fn qp_datagrams_arm(datagrams: *mut qp_datagrams as Alone<End>, ready: *mut c_int as Out<'_, c_int>) {
        let now = datagrams.kept.is_some() || datagrams.datagrams.arm()? == Armed::Ready;
        ready.set(now.into());
        Ok(())
    }

    /// Tells of a peer whether there is a session with it, and how far away it is.
    ///
    /// @param connected      Where 1 goes if there is such a peer and a session with it, else 0; may be NULL.
    /// @param round_trip_us  Where the time of a round trip goes, smoothed, in microseconds; UINT64_MAX: not known; may be NULL.
    fn qp_datagrams_peer(
        datagrams: *mut qp_datagrams as Alone<End>,
        peer: u64,
        connected: *mut c_int as Option<Out<'_, c_int>>,
        round_trip_us: *mut u64 as Option<Out<'_, u64>>,
    ) {
        let peer = PeerId::of_number(peer);
        if let Some(mut connected) = connected {
            connected.set(datagrams.datagrams.is_connected(peer).into());
        }
        if let Some(mut round_trip) = round_trip_us {
            round_trip.set(datagrams.datagrams.round_trip(peer).map_or(u64::MAX, |time| time.as_micros() as u64));
        }
        Ok(())
    }

    /// Tells the state of an end, and what it has counted.
    fn qp_datagrams_query(
        datagrams: *mut qp_datagrams as Alone<End>,
        state: *mut qp_datagrams_state as Out<'_, qp_datagrams_state>,
    ) {
        let counted = datagrams.datagrams.counters();
        state.set(qp_datagrams_state {
            under_way: datagrams.contexts.len() as u64,
            notices_within_ms: datagrams.notices_within.map_or(u64::MAX, |time| time.as_millis() as u64),
            sent: counted.sent,
            repeated: counted.repeated,
            acks: counted.acks,
            received: counted.received,
            duplicates: counted.duplicates,
            beyond: counted.beyond,
            lapsed: counted.lapsed,
            strangers: counted.strangers,
            malformed: counted.malformed,
            stale: counted.stale,
            broken: counted.broken,
        });
        Ok(())
    }

    /// Describes its Queue Pair for programs, as qp_pair_query_json().
    fn qp_datagrams_query_json(
        datagrams: *mut qp_datagrams as Alone<End>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        put_text(&datagrams.datagrams.qp().dump().to_json(), &mut places, needed)
    }

    /// Ends an end, at once: what is under way is thrown away, so wait for the fate of each message before. Its peers find it dead.
    fn qp_datagrams_destroy(datagrams: *mut qp_datagrams as Later<End>) {
        datagrams.destroy(|_| Ok(()))
    }
}
