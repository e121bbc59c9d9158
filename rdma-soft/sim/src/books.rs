//! The books of the model: what was posted, and how far its end is known.

use std::collections::{BTreeMap, VecDeque};

use rdma_core_sys::ibv_wc_status;
use rdma_core_sys::rules::Transport;
use rdma_soft::core::time::Instant;
use rdma_soft::core::{Completion, SrqId};

use crate::memory::{Piece, SlotId};

/// Words that atomics of one direction work on.
pub const WORDS: usize = 2;

macro_rules! ops {
    ($($name:ident = $text:literal,)*) => {
        /// What a send request does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Op { $($name,)* }

        impl Op {
            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $text,)* }
            }
        }
    };
}

ops! {
    Send = "SEND",
    SendImm = "SEND_WITH_IMM",
    SendInv = "SEND_WITH_INV",
    Write = "WRITE",
    WriteImm = "WRITE_WITH_IMM",
    Read = "READ",
    CompareSwap = "CMP_AND_SWP",
    FetchAdd = "FETCH_AND_ADD",
    Bind = "BIND_MW",
    LocalInv = "LOCAL_INV",
    Datagram = "DATAGRAM",
    Receive = "RECEIVE",
}

impl Op {
    /// True for what takes a receive of the peer.
    pub fn is_message(self) -> bool {
        matches!(
            self,
            Op::Send | Op::SendImm | Op::SendInv | Op::WriteImm | Op::Datagram
        )
    }

    /// True for what writes the peer's memory.
    pub fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::WriteImm)
    }
}

/// The rule that a request breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// A local key that opens nothing.
    Lkey,
    /// A remote key that opens nothing.
    Rkey,
    /// Past the end of the region.
    PastEnd,
    /// An atomic on an odd address.
    Unaligned,
    /// Longer than its receive.
    Oversize,
    /// It ends a key that is none.
    Invalidate,
    /// It names an SRQ that is none.
    Srq,
    /// A datagram with a wrong Q_Key.
    Qkey,
}

impl Poison {
    /// How a request of a reliable connection ends that breaks this rule, if nothing else comes between.
    pub fn status(self) -> ibv_wc_status {
        match self {
            Poison::Lkey => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            Poison::Rkey | Poison::PastEnd | Poison::Invalidate => {
                ibv_wc_status::IBV_WC_REM_ACCESS_ERR
            }
            Poison::Unaligned | Poison::Oversize | Poison::Srq => {
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
            }
            Poison::Qkey => ibv_wc_status::IBV_WC_SUCCESS,
        }
    }
}

/// An atomic: which word, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// The word.
    pub word: usize,
    /// `None` adds `operand`; `Some` swaps it in where this is there.
    pub compare: Option<u64>,
    /// See `compare`.
    pub operand: u64,
}

impl Atomic {
    /// What the word is afterwards.
    pub fn apply(&self, old: u64) -> u64 {
        match self.compare {
            None => old.wrapping_add(self.operand),
            Some(compare) if compare == old => self.operand,
            Some(_) => old,
        }
    }
}

/// A send request, as the model knows it.
#[derive(Clone, Debug)]
pub struct Req {
    /// Its mark, also of its bytes.
    pub id: u64,
    /// What it does.
    pub op: Op,
    /// Bytes.
    pub len: u32,
    /// It completes with an entry even on success.
    pub signaled: bool,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that it ends.
    pub key: Option<u32>,
    /// A slot that is read, or filled by what is fetched, and how it is cut.
    pub local: Option<(SlotId, Vec<Piece>)>,
    /// A slot of the peer that is written or read, and where in it.
    pub remote: Option<(SlotId, Piece)>,
    /// What a READ should bring: mark and length of a WRITE before it, and where in that.
    pub fetched: Option<(u64, u32, u32)>,
    /// What an atomic does.
    pub atomic: Option<Atomic>,
    /// The peer's XRC SRQ.
    pub srq: Option<SrqId>,
    /// The rule that it breaks.
    pub poison: Option<Poison>,
    /// When it was posted.
    pub posted: Instant,
    /// How it ended.
    pub outcome: Option<ibv_wc_status>,
    /// What it wrote was seen whole.
    pub seen: bool,
}

/// The requests of one send queue, of one life of its Queue Pair.
#[derive(Debug, Default)]
pub struct Sends {
    /// All of them, oldest first.
    pub reqs: Vec<Req>,
    /// How many of them have an outcome.
    pub known: usize,
    /// One failed: what follows is flushed.
    pub failed: bool,
}

/// The bits of a request's mark that count.
const INDEX: u64 = 0xf_ffff;

impl Sends {
    /// How many have no outcome yet.
    pub fn open(&self) -> usize {
        self.reqs.len() - self.known
    }

    /// The oldest request that owes an entry.
    pub fn owed(&self) -> Option<&Req> {
        self.reqs[self.known..].iter().find(|r| r.signaled)
    }

    /// Judges a completion: in order, once, of this life, and nothing but flushes after a failure. Gives
    /// the requests whose outcome is known from now on.
    pub fn complete(&mut self, wc: &Completion) -> Result<std::ops::Range<usize>, String> {
        let at = (wc.wr_id & INDEX) as usize;
        let req = self.reqs.get(at).filter(|r| r.id == wc.wr_id);
        let req = req.ok_or_else(|| format!("a completion of another life: {wc:?}"))?;
        if at < self.known {
            return Err(format!("a request completes twice: {wc:?}, {req:?}"));
        }
        if let Some(skipped) = self.reqs[self.known..at].iter().find(|r| r.signaled) {
            return Err(format!("{wc:?} goes before {skipped:?}"));
        }
        let success = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        if success && !req.signaled {
            return Err(format!("an entry that nobody asked for: {wc:?}"));
        }
        if self.failed && (wc.status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR || at > self.known) {
            return Err(format!("executed after a failure: {wc:?}"));
        }
        self.failed |= !success;
        for before in &mut self.reqs[self.known..at] {
            before.outcome = Some(ibv_wc_status::IBV_WC_SUCCESS);
        }
        self.reqs[at].outcome = Some(wc.status);
        let known = self.known..at + 1;
        self.known = at + 1;
        Ok(known)
    }

    /// The Queue Pair stopped: what is left without an entry succeeded in silence.
    pub fn stopped(&mut self) -> Result<std::ops::Range<usize>, String> {
        if let Some(owed) = self.owed() {
            return Err(format!(
                "no outcome, although the Queue Pair stopped: {owed:?}"
            ));
        }
        let known = self.known..self.reqs.len();
        for silent in &mut self.reqs[known.clone()] {
            silent.outcome = Some(ibv_wc_status::IBV_WC_SUCCESS);
        }
        self.known = known.end;
        Ok(known)
    }
}

/// Where a receive waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the queue of an end of a connection.
    End(usize, usize),
    /// In the queue of a Queue Pair for datagrams.
    Gram(usize),
    /// In a shared receive queue.
    Srq(usize),
}

/// A receive that waits for a message.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Where it waits.
    pub place: Place,
    /// Where the message goes.
    pub slot: SlotId,
    /// How that is cut.
    pub pieces: Vec<Piece>,
}

/// One direction of one life of a connection.
#[derive(Debug, Default)]
pub struct Stream {
    /// The requests.
    pub sends: Sends,
    /// The request that is delivered next, at the earliest.
    pub next: usize,
    /// The sender has left this life, and the receiver.
    pub left: [bool; 2],
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Way {
    /// By life.
    pub streams: BTreeMap<u32, Stream>,
    /// Areas at the sender: what it sends, and where it fetches to.
    pub source: usize,
    /// See `source`.
    pub landing: usize,
    /// Areas at the receiver: for WRITEs, READs, atomics.
    pub target: usize,
    /// See `target`.
    pub fixed: usize,
    /// See `target`.
    pub words: usize,
    /// What the words hold.
    pub values: [u64; WORDS],
    /// A window on the target.
    pub window: Option<Window>,
}

/// How far a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It opens nothing.
    Closed,
    /// A request is under way that opens it, or ends it.
    Changing,
    /// Its key opens the target.
    Open,
}

/// A memory window of type 2.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its key.
    pub rkey: u32,
    /// How far it is.
    pub opening: Opening,
    /// The life in which it is used.
    pub life: u32,
}

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    /// Where it is.
    pub host: usize,
    /// Its Queue Pair, while the host lives.
    pub qp: Option<u32>,
    /// The life that it is in.
    pub life: u32,
    /// Requests posted to this Queue Pair's queues.
    pub posted: [u64; 2],
    /// The receives of its own queue, oldest first.
    pub queue: VecDeque<u64>,
    /// The area of its receives; `None` where they come from an SRQ, or there are none.
    pub inbox: Option<usize>,
    /// The SRQ that its receives come from.
    pub srq: Option<usize>,
    /// When it last heard something, or had nothing to wait for.
    pub sign: Instant,
    /// When it was connected.
    pub joined: Instant,
    /// The last life in which the memory of its receives was taken from it.
    pub robbed: Option<u32>,
    /// It is in SQD, and whether it was told that it is drained.
    pub draining: Option<bool>,
}

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// RC, UC, or XRC as its initiator.
    pub transport: Transport,
    /// Receives come from a shared receive queue.
    pub shared: bool,
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// What it is.
    pub kind: Kind,
    /// Over IPv6.
    pub v6: bool,
    /// How often it was made.
    pub life: u32,
    /// First PSN of either direction.
    pub psn: [u32; 2],
    /// Its ends.
    pub ends: [End; 2],
    /// Its directions, by their senders.
    pub ways: [Way; 2],
    /// It will be made anew.
    pub recovering: bool,
}

impl Conn {
    /// The transport of an end.
    pub fn transport(&self, end: usize) -> Transport {
        match (self.kind.transport, end) {
            (Transport::XrcIni, 1) => Transport::XrcTgt,
            (transport, _) => transport,
        }
    }

    /// Requests are acknowledged.
    pub fn reliable(&self) -> bool {
        self.kind.transport != Transport::Uc
    }

    /// The directions that it has.
    pub fn directions(&self) -> usize {
        if self.kind.transport == Transport::XrcIni {
            1
        } else {
            2
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Where it is.
    pub host: usize,
    /// Its number.
    pub id: SrqId,
    /// It belongs to an XRC domain.
    pub xrc: bool,
    /// Its host died.
    pub dead: bool,
    /// Its completion queue was overrun.
    pub failed: bool,
    /// Its limit is set.
    pub armed: bool,
    /// The area of its receives.
    pub inbox: usize,
    /// Receives that wait.
    pub waiting: usize,
    /// Requests posted.
    pub posted: u64,
}
