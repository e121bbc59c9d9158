//! What `qp ping`, `qp lat` and `qp bw` share: two ends that meet over TCP, their Queue Pairs, and what they measure.

pub mod args;
pub mod contents;
pub mod control;
pub mod end;
pub mod meeting;
mod memory;
mod message_rate;
mod numbers;
pub mod plan;
pub mod plot;
mod progress;
pub mod report;
mod round_trips;
pub mod runner;
pub mod times;

use std::fmt;

use rdma_core_sys::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_SEND, ibv_wr_opcode, rules,
};
use serde::{Deserialize, Serialize};

/// The transport of the Queue Pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: what is lost stays lost.
    Uc,
    /// Unreliable datagrams: the same, of at most a path MTU.
    Ud,
    /// XRC: an initiator and a target at each end.
    Xrc,
}

impl Transport {
    const ALL: [Transport; 4] = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc];

    /// The end that sends, as the rules know it.
    fn rules(self) -> rules::Transport {
        match self {
            Transport::Rc => rules::Transport::Rc,
            Transport::Uc => rules::Transport::Uc,
            Transport::Ud => rules::Transport::Ud,
            Transport::Xrc => rules::Transport::XrcIni,
        }
    }

    /// Whether it has this operation.
    pub fn has(self, op: Op) -> bool {
        self.rules().supports(op.opcode())
    }

    /// Whether what is lost on the way is sent again.
    pub fn is_reliable(self) -> bool {
        matches!(self, Transport::Rc | Transport::Xrc)
    }

    /// Why it cannot be used with this operation, and what could be; `None`: it can.
    pub fn lacks(self, op: Op) -> Option<String> {
        if self.has(op) {
            return None;
        }
        let ops = Op::ALL.into_iter().filter(|op| self.has(*op));
        let ops: Vec<_> = ops.map(Op::option).collect();
        let transports = Transport::ALL.into_iter().filter(|other| other.has(op));
        let transports: Vec<_> = transports
            .map(|other| other.to_string().to_lowercase())
            .collect();
        Some(format!(
            "{self} has no {op}: give --op {}, or --transport {}",
            either(ops),
            either(transports)
        ))
    }
}

/// `one`, `one or two`, `one, two or three`.
fn either(names: Vec<impl AsRef<str>>) -> String {
    let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Xrc => "XRC",
        })
    }
}

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// SEND into receives of the peer.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic compare and swap, 8 bytes.
    Cas,
    /// Atomic fetch and add, 8 bytes.
    Faa,
}

impl Op {
    const ALL: [Op; 5] = [Op::Send, Op::Write, Op::Read, Op::Cas, Op::Faa];

    fn opcode(self) -> ibv_wr_opcode {
        match self {
            Op::Send => IBV_WR_SEND,
            Op::Write => IBV_WR_RDMA_WRITE,
            Op::Read => IBV_WR_RDMA_READ,
            Op::Cas => IBV_WR_ATOMIC_CMP_AND_SWP,
            Op::Faa => IBV_WR_ATOMIC_FETCH_AND_ADD,
        }
    }

    /// As the option has it.
    fn option(self) -> &'static str {
        match self {
            Op::Send => "send",
            Op::Write => "write",
            Op::Read => "read",
            Op::Cas => "cas",
            Op::Faa => "faa",
        }
    }

    /// Whether it is on 8 bytes, and no others.
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::Cas | Op::Faa)
    }

    /// Whether the request brings something back, so that its completion is the end of a round trip.
    pub fn returns(self) -> bool {
        self == Op::Read || self.is_atomic()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::Send => "SEND",
            Op::Write => "WRITE",
            Op::Read => "READ",
            Op::Cas => "CMP_AND_SWP",
            Op::Faa => "FETCH_AND_ADD",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_said_with_what_would_do() {
        assert_eq!(
            Transport::Uc.lacks(Op::Read).unwrap(),
            "UC has no READ: give --op send or write, or --transport rc or xrc"
        );
        assert_eq!(
            Transport::Ud.lacks(Op::Write).unwrap(),
            "UD has no WRITE: give --op send, or --transport rc, uc or xrc"
        );
        assert_eq!(Transport::Xrc.lacks(Op::Cas), None);
    }
}
