//! Requests that are done in the node: local invalidate and the binding of memory windows.

use rdma_core_sys::ibv_wc_status;

use crate::core::keys::Asker;
use crate::core::qp::{Qp, Shared};
use crate::core::wqe::SendOp;

impl Qp {
    /// Does what the request at the cursor does in the node, unless that was done before.
    pub(super) fn execute_local(&mut self, shared: &mut Shared) {
        let index = self.sq.cursor.0;
        let (pd, qp_num) = (self.init.pd, self.num);
        let Some(e) = self.sq.queue.get_mut(index) else {
            return;
        };
        if !e.executed {
            let done = pd.ok_or(()).and_then(|pd| {
                let by = Asker { pd, qp_num };
                match &e.wqe.op {
                    SendOp::LocalInvalidate { rkey } => {
                        shared.keys.invalidate(by, *rkey, Some(e.wqe.seq))
                    }
                    SendOp::BindWindow(bind) => shared.keys.bind(by, bind),
                    _ => Ok(()),
                }
                .map_err(|_| ())
            });
            if done.is_err() {
                let status = match e.wqe.op {
                    SendOp::BindWindow(_) => ibv_wc_status::IBV_WC_MW_BIND_ERR,
                    _ => ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
                };
                let order = self.sq.base + index as u64;
                return self.fail_later(shared, order, status);
            }
            e.executed = true;
        }
        let awaited = e.wqe.signaled || self.init.sq_sig_all;
        let order = self.sq.base + index as u64;
        self.sq.cursor = (index + 1, 0);
        self.retire_local(shared);
        shared.awaits |= awaited && self.sq.by_order(order).is_some();
    }

    /// Completes the requests at the front that were done in the node.
    pub fn retire_local(&mut self, shared: &mut Shared) {
        while self.sq.started > 0 && self.sq.queue.front().is_some_and(|e| e.executed) {
            if let Some(e) = self.sq.pop() {
                self.complete_send(shared, &e.wqe, ibv_wc_status::IBV_WC_SUCCESS, 0);
            }
        }
    }
}
