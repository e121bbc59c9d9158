//! The planner: what a job needs, by transport.

use std::ffi::c_int;

use rdma_xrc::plan::{Amounts, Depths, IntraNode, Needs, plan};

use crate::export::{Out, export};
use crate::fault::*;

/// What is needed by one process, on one node, or by the whole job.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_amounts {
    /// Queue Pairs of all roles.
    pub qps: u64,
    /// Shared receive queues.
    pub srqs: u64,
    /// Receives that are posted.
    pub receives: u64,
    /// Bytes of memory: buffers of receives, rings, and the objects themselves.
    pub memory_bytes: u64,
}

impl From<Amounts> for qp_amounts {
    fn from(amounts: Amounts) -> qp_amounts {
        let Amounts {
            qps,
            srqs,
            receives,
            memory_bytes,
            ..
        } = amounts;
        qp_amounts {
            qps,
            srqs,
            receives,
            memory_bytes,
        }
    }
}

/// What a job needs with one transport. Processes are all alike, and so are nodes.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_needs {
    /// One process.
    pub per_process: qp_amounts,
    /// One node.
    pub per_node: qp_amounts,
    /// The whole job.
    pub job: qp_amounts,
}

impl From<Needs> for qp_needs {
    fn from(needs: Needs) -> qp_needs {
        let Needs {
            per_process,
            per_node,
            job,
            ..
        } = needs;
        qp_needs {
            per_process: per_process.into(),
            per_node: per_node.into(),
            job: job.into(),
        }
    }
}

export! {
    /// Says what a job in which everybody talks to everybody needs: what `qp plan` prints with its usual depths, but
    /// for reliable datagrams.
    ///
    /// @param nodes      Nodes.
    /// @param per_node   Processes on each.
    /// @param transport  QP_RC, QP_UD or QP_XRC.
    /// @param srq        Not 0: RC with one shared receive queue per process. XRC always has that, UD needs none.
    /// @param shm        Not 0: pairs on one node are left to shared memory.
    /// @param needs      Where the answer goes.
    /// @return 0; EINVAL (QP_CODE_RANGE): something is 0 or too large, or there is no plan for the transport.
    fn qp_plan(
        nodes: u32,
        per_node: u32,
        transport: c_int,
        srq: c_int,
        shm: c_int,
        needs: *mut qp_needs as Out<'_, qp_needs>,
    ) {
        let intra_node = if shm == 0 { IntraNode::Fabric } else { IntraNode::Shm };
        let planned = plan(nodes, per_node, Depths::default(), intra_node)
            .map_err(|error| Fault::range(error.to_string()))?;
        needs.set(match (transport, srq) {
            (2, 0) => planned.rc,
            (2, _) => planned.rc_srq,
            (4, _) => planned.ud,
            (9, _) => planned.xrc,
            (other, _) => {
                let text = format!("transport is {other}, but must be QP_RC (2), QP_UD (4) or QP_XRC (9)");
                return Err(Fault::range(text));
            }
        }.into());
        Ok(())
    }
}
