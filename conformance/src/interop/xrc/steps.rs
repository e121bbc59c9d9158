//! What is tried with XRC.

use std::fmt;

use rdma_core_sys::*;

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The initiator, 0 or 1.
    pub(super) from: usize,
    /// The SRQ, 0 or 1.
    pub(super) to: usize,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) len: usize,
    pub(super) trouble: Trouble,
}

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    None,
    /// It names an SRQ that is none.
    NoSrq,
    /// It names memory of the other SRQ's protection domain.
    OthersMemory,
    /// The SRQ has no receive.
    NoReceive,
}

impl Message {
    pub(super) fn receives(&self) -> bool {
        let consumes = matches!(
            self.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        );
        consumes && self.trouble == Trouble::None
    }

    pub(super) fn with_immediate(&self) -> bool {
        matches!(
            self.opcode,
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM
        )
    }

    pub(super) fn sends(&self) -> bool {
        matches!(self.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM)
    }

    /// It may end so. A NAK that ends a connection is sent once, and may be lost.
    pub(super) fn may_end(&self, status: ibv_wc_status, lossy: bool) -> bool {
        let wanted = match self.trouble {
            Trouble::None => IBV_WC_SUCCESS,
            Trouble::NoSrq => IBV_WC_REM_INV_REQ_ERR,
            Trouble::OthersMemory => IBV_WC_REM_ACCESS_ERR,
            Trouble::NoReceive => IBV_WC_RNR_RETRY_EXC_ERR,
        };
        let last_nak = matches!(self.trouble, Trouble::NoSrq | Trouble::OthersMemory);
        status == wanted || lossy && last_nak && status == IBV_WC_RETRY_EXC_ERR
    }
}

/// Requests that are posted before the first completion is waited for.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) messages: Vec<Message>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.messages.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{}, {count} request{plural}", self.name)
    }
}

/// The longest message, and the room of each receive and of each WRITE and READ.
pub(super) const SLOT: usize = 1 << 16;
/// Requests of a step at most.
pub(super) const MOST: usize = 16;
/// Where receives go, in the memory of an SRQ.
pub(super) const RECEIVES: usize = 0;
/// What WRITEs and READs reach. Its first word is for atomics as well.
pub(super) const REACHED: usize = MOST * SLOT;
pub(super) const WORD: u64 = 0x0123_4567_89ab_cdef;
pub(super) const ADDED: u64 = 0x7fff_ffff_0000_0001;
/// A number that no SRQ has: devices count from small numbers or draw them, so the chance is one in millions.
pub(super) const NO_SRQ: u32 = 0xab_cdef;

/// What is tried at one path MTU.
pub(super) fn steps(mtu: usize) -> Vec<Step> {
    let message = |from, to, opcode, len| Message {
        from,
        to,
        opcode,
        len,
        trouble: Trouble::None,
    };
    let lengths = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, SLOT];
    let step = |name: String, messages| Step { name, messages };
    let mut all = Vec::new();
    for opcode in [
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_WRITE_WITH_IMM,
    ] {
        let name = opcode.name().unwrap_or("?").trim_start_matches("IBV_WR_");
        let both = lengths
            .iter()
            .flat_map(|&len| [0, 1].map(|to| message(0, to, opcode, len)));
        let name_of = |what| format!("{name} to {what}");
        all.push(step(name_of("two SRQs through one target"), both.collect()));
        let crowd = (0..MOST).map(|at| message(at % 2, 0, opcode, lengths[at % lengths.len()]));
        all.push(step(
            name_of("one SRQ through two targets"),
            crowd.collect(),
        ));
    }
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let name = opcode.name().unwrap_or("?").trim_start_matches("IBV_WR_");
        let both = lengths
            .iter()
            .flat_map(|&len| [0, 1].map(|to| message(to, to, opcode, len)));
        all.push(step(
            format!("{name} of the memory of two SRQs"),
            both.collect(),
        ));
    }
    let one = |opcode| vec![message(1, 0, opcode, 8)];
    all.push(step(
        "compare and swap".to_owned(),
        one(IBV_WR_ATOMIC_CMP_AND_SWP),
    ));
    let adds = (0..MOST).map(|at| message(at % 2, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, 8));
    all.push(step(
        "fetch and add through two targets".to_owned(),
        adds.collect(),
    ));
    for (trouble, opcode, name) in [
        (Trouble::NoSrq, IBV_WR_SEND, "SEND to an SRQ that is none"),
        (
            Trouble::OthersMemory,
            IBV_WR_RDMA_WRITE,
            "WRITE to memory of another SRQ's domain",
        ),
        (
            Trouble::NoReceive,
            IBV_WR_SEND,
            "SEND to an SRQ without a receive, no RNR retry",
        ),
    ] {
        let wrong = Message {
            trouble,
            ..message(0, 1, opcode, mtu + 1)
        };
        all.push(step(name.to_owned(), vec![wrong]));
    }
    all
}

/// What an atomic compares with or adds, and swaps in.
pub(super) fn operands(opcode: ibv_wr_opcode) -> (u64, u64) {
    match opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP => (WORD, 0xfeed_face_cafe_beef),
        _ => (ADDED, 0),
    }
}
