//! What an iWARP device lets a program do with a Queue Pair that no connection manager has connected.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

use super::{Bench, EINVAL, OK};
use crate::Tally;
use crate::device::Failed;

/// A move of a RC QP by its state alone: iWARP has neither addresses nor PSNs in a QP, its connections are made by
/// librdmacm on a TCP stream.
#[derive(Debug)]
pub struct BareMove {
    /// The states that a new QP goes through before.
    pub through: &'static [ibv_qp_state],
    /// The state asked for.
    pub to: ibv_qp_state,
    /// The errno of it, 0 for success.
    pub errno: i32,
}

const fn bare(through: &'static [ibv_qp_state], to: ibv_qp_state, errno: i32) -> BareMove {
    BareMove { through, to, errno }
}

/// All that are tried. A move to RTS wants a stream that has said hello
/// (`drivers/infiniband/sw/siw/siw_qp.c:siw_qp_nextstate_from_idle`); the others need none.
pub const BARE_MOVES: &[BareMove] = &[
    bare(&[], IBV_QPS_INIT, OK),
    bare(&[IBV_QPS_INIT], IBV_QPS_RTR, OK),
    bare(&[IBV_QPS_INIT], IBV_QPS_RTS, EINVAL),
    bare(&[IBV_QPS_INIT, IBV_QPS_RTR], IBV_QPS_RTS, EINVAL),
    bare(&[], IBV_QPS_ERR, OK),
    bare(&[IBV_QPS_INIT], IBV_QPS_ERR, OK),
    bare(&[IBV_QPS_INIT, IBV_QPS_RTR], IBV_QPS_ERR, OK),
    bare(&[IBV_QPS_INIT, IBV_QPS_ERR], IBV_QPS_RESET, OK),
];

impl Bench {
    /// Makes every one of [`BARE_MOVES`] and prints how it came out.
    ///
    /// # Errors
    /// Where no QP could be made.
    pub fn bare_moves(&self) -> Result<Tally, Failed> {
        let mut tally = Tally::default();
        for BareMove { through, to, errno } in BARE_MOVES {
            let qp = self.qp(Transport::Rc)?;
            let mut attr = ibv_qp_attr::zeroed();
            let mut go = |state| {
                attr.qp_state = state;
                qp.modify(&attr, IBV_QP_STATE).map_err(|e| e.errno)
            };
            let before = through.iter().try_for_each(|&state| go(state));
            let found = before.and_then(|()| go(*to)).err().unwrap_or(OK);
            let path: Vec<_> = through.iter().map(ToString::to_string).collect();
            let path = format!("RESET {} {to}", path.join(" "));
            if before.is_ok() && found == *errno {
                println!("agrees  {path}: errno {errno}");
                tally.passed += 1;
            } else {
                println!("FAILED  {path}: errno {found} instead of {errno}");
                tally.failed += 1;
            }
        }
        Ok(tally)
    }
}
