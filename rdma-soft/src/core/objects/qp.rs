//! Queue Pairs.

use rdma_core_sys::rules::Transport;
use rustix::io::Errno;

use super::{above, count, draw_number, within};
use crate::core::qp::Qp;
use crate::core::{CallError, Engine, MULTICAST_QP, QpInit, XrcdId};

impl Engine {
    /// A new Queue Pair, in RESET. Returns its number.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a transport that this device does not have; `EINVAL` for capacities above the
    /// caps, for queues that the transport has not, and for unknown objects; `ENOMEM` above the number
    /// of Queue Pairs.
    pub fn create_qp(&mut self, init: QpInit) -> Result<u32, CallError> {
        self.check_parts(&init)?;
        let caps = &self.shared.config.caps;
        for (name, value, cap, max) in [
            ("max_send_wr", init.max_send_wr, "max_qp_wr", caps.max_qp_wr),
            ("max_recv_wr", init.max_recv_wr, "max_qp_wr", caps.max_qp_wr),
            ("max_send_sge", init.max_send_sge, "max_sge", caps.max_sge),
            ("max_recv_sge", init.max_recv_sge, "max_sge", caps.max_sge),
            (
                "max_inline_data",
                init.max_inline,
                "max_inline_data",
                caps.max_inline_data,
            ),
        ] {
            above(name, value, cap, max)?;
        }
        within("max_qp", self.qps.len(), caps.max_qp)?;
        // 0 and 1 are the management Queue Pairs.
        let num = draw_number(&mut self.next_qpn, |n| {
            n > 1 && n != MULTICAST_QP && !self.qps.contains_key(&n)
        });
        self.qps
            .insert(num, Qp::new(num, init, &self.shared.config));
        self.count_users(&init, 1);
        Ok(num)
    }

    /// Which objects and queues a transport has.
    fn check_parts(&self, init: &QpInit) -> Result<(), CallError> {
        let name = init.transport.name();
        let (sends, receives) = match init.transport {
            Transport::Rc | Transport::Uc | Transport::Ud => (true, true),
            Transport::XrcIni => (true, false),
            Transport::XrcTgt => (false, true),
            Transport::Smi | Transport::Gsi | Transport::RawPacket => {
                let why = format!("this device has no {name} Queue Pairs");
                return Err(CallError::new(Errno::OPNOTSUPP, why));
            }
        };
        let refuse = |why: &str| Err(CallError::invalid(format!("{name}: {why}")));
        let target = init.transport == Transport::XrcTgt;
        if sends {
            self.known_pd(init.pd)?;
            self.known_cq(init.send_cq)?;
        } else if init.max_send_wr > 0 || init.max_send_sge > 0 {
            return refuse("max_send_wr and max_send_sge must be 0: a target has no send queue");
        }
        if receives && !target {
            self.known_cq(init.recv_cq)?;
        } else if init.max_recv_wr > 0 || init.max_recv_sge > 0 {
            return refuse(if target {
                "max_recv_wr and max_recv_sge must be 0: a target takes its receives from the SRQs of its domain"
            } else {
                "max_recv_wr and max_recv_sge must be 0: initiator QPs have no receive queue"
            });
        }
        match (init.srq, init.transport) {
            (None, _) => {}
            (Some(_), Transport::XrcIni) => {
                return refuse(
                    "srq must be null: the SRQ belongs to the target side; put its number in each request",
                );
            }
            (Some(_), Transport::XrcTgt) => {
                return refuse("srq must be null: each request names an SRQ of the domain");
            }
            (Some(srq), _) => match self.shared.srqs.get(&srq) {
                None => return refuse("unknown SRQ"),
                Some(srq) if srq.init.xrc.is_some() => {
                    return refuse("an XRC SRQ serves XRC targets only");
                }
                Some(_) => {}
            },
        }
        match (init.xrcd, target) {
            (Some(xrcd), true) => self.known_xrcd(xrcd),
            (None, true) => refuse("a target needs an XRC domain (IBV_QP_INIT_ATTR_XRCD)"),
            (Some(_), false) => refuse("only a target takes an XRC domain"),
            (None, false) => Ok(()),
        }
    }

    /// What the XRC target `qp_num` of the domain `xrcd` was created with: for `ibv_open_qp`.
    ///
    /// # Errors
    /// `EINVAL` if there is no such target in that domain.
    pub fn open_qp(&self, qp_num: u32, xrcd: XrcdId) -> Result<QpInit, CallError> {
        match self.qps.get(&qp_num) {
            Some(qp) if qp.init.xrcd == Some(xrcd) => Ok(qp.init),
            _ => Err(CallError::invalid(format!(
                "no XRC target {qp_num:#x} in that XRC domain"
            ))),
        }
    }

    /// Ends a Queue Pair; what is pending is discarded without completions, and receives that it took
    /// from a shared receive queue and did not use go back there.
    pub fn destroy_qp(&mut self, qp_num: u32) -> Result<(), CallError> {
        let attached: Vec<_> = (self.groups.iter())
            .filter(|(_, members)| members.contains(&qp_num))
            .map(|(group, _)| group.to_string())
            .collect();
        if !attached.is_empty() {
            return Err(CallError::busy(format!(
                "QP {qp_num:#x} is attached to {}: detach it first",
                attached.join(", ")
            )));
        }
        let mut qp = self.qps.remove(&qp_num).ok_or(Errno::INVAL)?;
        qp.give_back(&mut self.shared);
        self.agenda.forget(&qp);
        self.shared.keys.qp_gone(qp_num);
        self.count_users(&qp.init, -1);
        Ok(())
    }

    fn count_users(&mut self, init: &QpInit, by: isize) {
        if let Some(pd) = init.pd {
            count(&mut self.pds, pd, by);
        }
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            count(&mut self.cqs, cq, by);
        }
        if let Some(xrcd) = init.xrcd {
            count(&mut self.xrcds, xrcd, by);
        }
        if let Some(srq) = init.srq.and_then(|id| self.shared.srqs.get_mut(&id)) {
            srq.users = srq.users.saturating_add_signed(by);
        }
    }
}
