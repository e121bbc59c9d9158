//! Memory windows on what peers write.

use rdma_core_sys::ops::ibv_inc_rkey;
use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_mw_type};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Data, SendOp, SendWqe, SgeList, WindowBind};

use crate::books::{Op, Opening, Window};
use crate::world::{Verdict, World};

impl World {
    /// The owner of a target opens a window on it, or ends it.
    ///
    /// # Errors
    /// What the engine refused.
    pub fn window(&mut self, rng: &mut Rng) -> Verdict {
        let conn = rng.below(self.conns.len() as u64) as usize;
        let way = rng.below(2) as usize;
        let c = &self.conns[conn];
        if c.kind.transport != Transport::Rc || c.life != c.ends[way].life {
            return Ok(());
        }
        // The owner is at the other end, and asks by its own send queue.
        let owner = 1 - way;
        let host = c.ends[owner].host;
        let target = c.ways[way].target;
        let Some(life) = self
            .may_send(conn, owner)
            .filter(|_| !self.areas[target].gone)
        else {
            return Ok(());
        };
        let window = self.conns[conn].ways[way].window;
        let pd = self.hosts[host].pd;
        let engine = self.hosts[host].engine.as_mut().ok_or("a dead host")?;
        let (op, wr, key) = match window {
            Some(w) if w.life == life && w.opening == Opening::Changing => return Ok(()),
            Some(w) if w.life == life && w.opening == Opening::Open => {
                // Nobody must be using it.
                let stream = self.conns[conn].ways[way].streams.get(&life);
                if stream.is_none_or(|s| s.sends.open() > 0) {
                    return Ok(());
                }
                (
                    Op::LocalInv,
                    SendOp::LocalInvalidate { rkey: w.rkey },
                    w.rkey,
                )
            }
            other => {
                if let Some(old) = other.filter(|w| w.life != life) {
                    engine.dealloc_mw(old.rkey).map_err(|e| e.to_string())?;
                }
                let at = match other.filter(|w| w.life == life) {
                    Some(closed) => closed.rkey,
                    None => engine
                        .alloc_mw(pd, ibv_mw_type::IBV_MW_TYPE_2)
                        .map_err(|e| e.to_string())?,
                };
                let rkey = ibv_inc_rkey(at);
                let (addr, len) = self.areas[target].range();
                let lkey = Some(self.areas[target].keys.lkey);
                let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                    | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
                let bind = WindowBind {
                    window: at,
                    rkey,
                    lkey,
                    addr,
                    len,
                    access,
                };
                (Op::Bind, SendOp::BindWindow(bind), rkey)
            }
        };
        self.conns[conn].ways[way].window = Some(Window {
            rkey: key,
            opening: Opening::Changing,
            life,
        });
        let Some(mut req) = self.draft(rng, conn, owner, life, op)? else {
            return Ok(());
        };
        (req.len, req.poison, req.key, req.signaled) = (0, None, Some(key), true);
        let posted = &mut self.conns[conn].ends[owner].posted[0];
        *posted += 1;
        let wqe = SendWqe {
            wr_id: req.id,
            seq: *posted - 1,
            op: wr,
            data: Data::Sges(SgeList::new()),
            signaled: true,
            solicited: false,
            fence: true,
            xrc_srq: 0,
        };
        self.post(conn, owner, life, req, wqe);
        Ok(())
    }
}
