//! Requests that should have been fenced.

use super::Entry;
use crate::core::qp::Qp;
use crate::core::wqe::{Data, SendOp, Sge};

impl Qp {
    /// True if an earlier READ or atomic that is still open may see what this request does, or fills a
    /// buffer that this request sends from: it should be fenced, or wait for the completion
    /// (ibv_post_send(3), `IBV_SEND_FENCE`).
    pub(super) fn overtakes(&self, e: &Entry) -> bool {
        if e.wqe.fence || e.wqe.op.is_local() || e.wqe.op.is_fetch() {
            return false;
        }
        let started = self.sq.queue.iter().take(self.sq.started);
        let open = started.filter(|f| f.wqe.op.is_fetch());
        // What is behind the last of them need not be looked at.
        open.take(self.sq.open_fetches).any(|f| {
            let remote = match (e.remote_range(), f.remote_range()) {
                (Some(a), Some(b)) => overlap(a, b),
                _ => false,
            };
            remote || (e.local_ranges()).any(|a| f.local_ranges().any(|b| overlap(a, b)))
        })
    }
}

impl Entry {
    /// Key, start and length of the remote memory that it reaches.
    fn remote_range(&self) -> Option<(u32, u64, u64)> {
        match self.wqe.op {
            SendOp::Write { remote, .. } | SendOp::Read { remote } => {
                Some((remote.rkey, remote.addr, self.len.into()))
            }
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                Some((remote.rkey, remote.addr, 8))
            }
            _ => None,
        }
    }

    /// Keys, starts and lengths of its local memory.
    fn local_ranges(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        let sges: &[Sge] = match &self.wqe.data {
            Data::Sges(sges) => sges.as_slice(),
            Data::Inline(_) => &[],
        };
        sges.iter().map(|s| (s.lkey, s.addr, s.len.into()))
    }
}

/// True if two ranges of one region share a byte.
fn overlap(a: (u32, u64, u64), b: (u32, u64, u64)) -> bool {
    let before = |a: (u32, u64, u64), b: (u32, u64, u64)| b.1.saturating_sub(a.1) < a.2;
    a.0 == b.0
        && a.2 > 0
        && b.2 > 0
        && if a.1 <= b.1 {
            before(a, b)
        } else {
            before(b, a)
        }
}
