//! Making a QP.

use std::marker::PhantomData;
use std::sync::Arc;

use rdma_core_sys::rules;
use rdma_core_sys::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QPS_RTS, ibv_qp_cap, ibv_qp_create_flags,
};

use super::{Qp, QpInfo, RecvQueue, Transport, Ud};
use crate::account::Share;
use crate::attach::Attachments;
use crate::buffer::PostedBuffers;
use crate::cq::{Cq, PollError, SrqUser};
use crate::errno::Errno;
use crate::pd::{Access, Pd};
use crate::raw::qp::{NotMade, Parts, QpHandle};
use crate::srq::Srq;
use crate::wr_id::QueueKind;

/// A QP could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateQpError {
    /// The CQ and the PD are of two devices, or of one device opened twice.
    #[error("the {queue} would report to a CQ of {cq}, but the PD is of {pd}{}: make both from the same Device", twice(.cq, .pd))]
    OtherDevice {
        /// The queue.
        queue: QueueKind,
        /// Device of the CQ.
        cq: String,
        /// Device of the PD.
        pd: String,
    },
    /// The SRQ is of another PD.
    #[error(
        "SRQ {srq} of {device} belongs to another protection domain than the QP: make both from the same Pd"
    )]
    SrqOfOtherPd {
        /// Number of the SRQ.
        srq: u32,
        /// Its device.
        device: String,
    },
    /// More was asked for than the device can do.
    #[error("{field} is {value}, but {device} allows at most {max}")]
    OverLimit {
        /// The field, as verbs spells it.
        field: &'static str,
        /// What was asked for.
        value: u32,
        /// What the device allows.
        max: u32,
        /// The device.
        device: String,
    },
    /// The CQ could overrun.
    #[error(
        "the {queue} may have {depth} requests outstanding, but its CQ of {capacity} entries has room for {unreserved} \
         more (the rest is promised to other queues): make the CQ larger or the queue shorter"
    )]
    NoRoomInCq {
        /// The queue.
        queue: QueueKind,
        /// Its depth.
        depth: u32,
        /// Entries of the CQ.
        capacity: u32,
        /// Entries not promised to any queue.
        unreserved: u32,
    },
    /// The CQ does not work.
    #[error(transparent)]
    Cq(#[from] PollError),
    /// The library refused.
    #[error(
        "{device} did not create a QP of send depth {}, receive depth {}, {} and {} entries each, {} bytes inline: {source}{}",
        .cap.max_send_wr, .cap.max_recv_wr, .cap.max_send_sge, .cap.max_recv_sge, .cap.max_inline_data, hint(*.source)
    )]
    Refused {
        /// The device.
        device: String,
        /// What was asked for.
        cap: CapAsked,
        /// What the library said.
        source: Errno,
    },
}

/// What was asked for at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CapAsked {
    /// Outstanding sends.
    pub max_send_wr: u32,
    /// Outstanding receives.
    pub max_recv_wr: u32,
    /// Entries per send.
    pub max_send_sge: u32,
    /// Entries per receive.
    pub max_recv_sge: u32,
    /// Bytes inline.
    pub max_inline_data: u32,
}

fn twice(cq: &str, pd: &str) -> &'static str {
    if cq == pd { " opened another time" } else { "" }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EINVAL => "; is inline_data more than it can do, or the sum too much?",
        Errno::ENOMEM => "; is its number of QPs used up, or locked memory (ulimit -l)?",
        _ => "",
    }
}

/// What a QP shall be like. Made by [`Pd::rc`], [`Pd::uc`], [`Pd::ud`] and [`Pd::xrc`].
///
/// ```
/// use rdma_qp::Device;
/// let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
/// let qp = pd.rc(&cq).send_depth(128).recv_depth(128).create()?;
/// println!("{qp}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is made until create() is called"]
pub struct QpBuilder<'a, T: Transport> {
    pd: &'a Pd,
    send_cq: &'a Cq,
    recv_cq: &'a Cq,
    srq: Option<&'a Srq>,
    cap: ibv_qp_cap,
    access: Access,
    create_flags: ibv_qp_create_flags,
    transport: PhantomData<T>,
}

impl<'a, T: Transport> QpBuilder<'a, T> {
    pub(crate) fn new(pd: &'a Pd, cq: &'a Cq) -> QpBuilder<'a, T> {
        // An XRC initiator has no receive queue, and serves nobody.
        let posts = rules::allowed_posts(T::RULES, IBV_QPS_RTS);
        let receives = posts.is_some_and(|posts| posts.post_recv);
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: if receives { 16 } else { 0 },
            max_send_sge: 1,
            max_recv_sge: u32::from(receives),
            max_inline_data: 0,
        };
        let access = if receives {
            Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
        } else {
            Access::empty()
        };
        QpBuilder {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap,
            access,
            create_flags: ibv_qp_create_flags::empty(),
            transport: PhantomData,
        }
    }

    /// Most sends outstanding at a time; 16 if not set.
    pub fn send_depth(mut self, requests: u32) -> Self {
        self.cap.max_send_wr = requests;
        self
    }

    /// Most ranges that one send gathers; 1 if not set.
    pub fn send_sge(mut self, entries: u32) -> Self {
        self.cap.max_send_sge = entries;
        self
    }

    /// Bytes that one send can carry inline; 0 if not set.
    pub fn inline_data(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// Creates the QP, in RESET.
    ///
    /// # Errors
    /// The parts do not fit together, the device's limits or the CQ's room are exceeded, or the library refused.
    pub fn create(mut self) -> Result<Qp<T>, CreateQpError> {
        if self.srq.is_some() {
            (self.cap.max_recv_wr, self.cap.max_recv_sge) = (0, 0);
        }
        self.check()?;
        for cq in [self.send_cq, self.recv_cq] {
            cq.settle()?;
        }
        let share = match self.srq {
            Some(srq) => Some(self.share(srq)?),
            None => None,
        };
        let parts = Parts {
            pd: self.pd.handle(),
            srq: self.srq.map(Srq::handle),
            send_cq: self.send_cq.handle(),
            recv_cq: self.recv_cq.handle(),
            qp_type: T::RULES.qp_type().unwrap_or_default(),
            cap: self.cap,
            create_flags: self.create_flags,
            recv_header: T::RECV_HEADER,
        };
        let handle = match QpHandle::create(&parts) {
            Ok(handle) => handle,
            Err(reason) => {
                if let Some((share, true)) = share {
                    share.srq.detach(&share);
                }
                return Err(self.not_made(reason));
            }
        };
        let info = Arc::new(QpInfo::new(self.pd.device(), handle.number()));
        self.send_cq.enter(&handle.send, &info, self.pd.handle());
        self.recv_cq.enter(&handle.recv, &info, self.pd.handle());
        if let Some((share, _)) = share {
            let user = SrqUser {
                info: info.clone(),
                recv: handle.recv.clone(),
                root: None,
            };
            self.recv_cq
                .enter_srq_user(&share, self.pd.handle(), user)?;
        }
        tracing::debug!(device = %info.device, qp = info.qp_num, transport = %T::RULES, "QP created");
        let buffers = PostedBuffers::new(
            Attachments::new(&handle.send),
            Attachments::new(&handle.recv),
        );
        Ok(Qp {
            buffers,
            handle,
            info,
            device: self.pd.device_attr().clone(),
            cqs: (self.send_cq.id(), self.recv_cq.id()),
            silence: Default::default(),
            silence_before_list: Default::default(),
            copies_wait: false,
            access: self.access,
            told: None,
            marker: None,
            transport: PhantomData,
        })
    }

    /// Reserves what the SRQ may complete on the CQ. `true`: that was not so before.
    fn share(&self, srq: &Srq) -> Result<(Share, bool), CreateQpError> {
        let share = srq.handle().attach(self.recv_cq.handle());
        share.ok_or_else(|| CreateQpError::NoRoomInCq {
            queue: QueueKind::SharedRecv,
            depth: srq.depth(),
            capacity: self.recv_cq.capacity(),
            unreserved: self.recv_cq.unreserved(),
        })
    }

    fn check(&self) -> Result<(), CreateQpError> {
        if let Some(srq) = self.srq
            && !Arc::ptr_eq(srq.handle().pd(), self.pd.handle())
        {
            return Err(CreateQpError::SrqOfOtherPd {
                srq: srq.number(),
                device: srq.device().to_owned(),
            });
        }
        for (queue, cq) in [
            (QueueKind::Send, self.send_cq),
            (QueueKind::Recv, self.recv_cq),
        ] {
            if !Arc::ptr_eq(&cq.handle().context, &self.pd.handle().context) {
                let (cq, pd) = (cq.device().to_owned(), self.pd.device().to_owned());
                return Err(CreateQpError::OtherDevice { queue, cq, pd });
            }
        }
        let (attr, cap) = (self.pd.device_attr(), &self.cap);
        let limits = [
            ("max_send_wr", cap.max_send_wr, attr.max_qp_wr),
            ("max_recv_wr", cap.max_recv_wr, attr.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, attr.max_sge),
            ("max_recv_sge", cap.max_recv_sge, attr.max_sge),
        ];
        for (field, value, max) in limits {
            let max = u32::try_from(max).unwrap_or(0);
            if value > max {
                return Err(CreateQpError::OverLimit {
                    field,
                    value,
                    max,
                    device: self.pd.device().to_owned(),
                });
            }
        }
        Ok(())
    }

    fn not_made(&self, reason: NotMade) -> CreateQpError {
        match reason {
            NotMade::NoRoom(queue) => {
                let (cq, depth) = match queue {
                    QueueKind::Send => (self.send_cq, self.cap.max_send_wr),
                    _ => (self.recv_cq, self.cap.max_recv_wr),
                };
                // Where both queues share a CQ, the send queue's share is taken already.
                let taken = if queue == QueueKind::Recv && self.send_cq.id() == cq.id() {
                    self.cap.max_send_wr
                } else {
                    0
                };
                let unreserved = cq.unreserved().saturating_sub(taken);
                CreateQpError::NoRoomInCq {
                    queue,
                    depth,
                    capacity: cq.capacity(),
                    unreserved,
                }
            }
            NotMade::Refused(source) => {
                let ibv_qp_cap {
                    max_send_wr,
                    max_recv_wr,
                    max_send_sge,
                    max_recv_sge,
                    max_inline_data,
                } = self.cap;
                let cap = CapAsked {
                    max_send_wr,
                    max_recv_wr,
                    max_send_sge,
                    max_recv_sge,
                    max_inline_data,
                };
                CreateQpError::Refused {
                    device: self.pd.device().to_owned(),
                    cap,
                    source,
                }
            }
        }
    }
}

impl<'a, T: RecvQueue> QpBuilder<'a, T> {
    /// Most receives outstanding at a time; 16 if not set.
    pub fn recv_depth(mut self, requests: u32) -> Self {
        self.cap.max_recv_wr = requests;
        self
    }

    /// Most ranges that one receive scatters to; 1 if not set.
    pub fn recv_sge(mut self, entries: u32) -> Self {
        self.cap.max_recv_sge = entries;
        self
    }

    /// Completions of receives go to this CQ, rather than to that of the sends.
    pub fn recv_cq(mut self, cq: &'a Cq) -> Self {
        self.recv_cq = cq;
        self
    }

    /// It takes its receives from this SRQ, and has no receive queue of its own: `recv_depth` and `recv_sge` mean nothing
    /// then. Their completions go to the CQ for receives, which needs room for all receives of the SRQ, once for all QPs.
    pub fn srq(mut self, srq: &'a Srq) -> Self {
        self.srq = Some(srq);
        self
    }

    /// What the peer may do, used by [`Qp::connect`]; WRITE, READ and atomics if not set. A region's own rights decide
    /// on top of it.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}

impl QpBuilder<'_, Ud> {
    /// What the QP sends to a group that it is a member of does not come back to it
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`). A device that cannot do that refuses to create it.
    pub fn block_self_mcast_loopback(mut self) -> Self {
        self.create_flags |= IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
        self
    }
}
