//! What a supervised connection shall be like.

use std::time::Duration;

use rdma_qp::exchange::ExchangeError;
use rdma_qp::supervise::{Connect, Meeting, Options, Probes, Supervised, connect_any};
use rdma_qp::xrc::{SrqNum, XrcTarget};
use rdma_qp::{Access, Cq, Device, Mr, NOTHING, Pd, PostError, Qp, RecvQueue};

use super::Any;
use crate::cq::Queue;
use crate::export::In;
use crate::fault::*;
use crate::pair::{self, no_such, qp_pair_attr, qp_transport};
use crate::post::{nothing, qp_recv};
use crate::slots::{Alone, Held};
use crate::srq::{AnySrq, Shared, qp_srq};
use crate::values::{path, qp_path, qp_region, qp_timing, timing};

/// How a connection is supervised. Set it to all zero first: 0 means the usual everywhere.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_supervised_options {
    /// The port, counted from 1; 0: 1. Its best GID is chosen anew for each life of the connection.
    pub port: u32,
    /// An idle connection is probed when nothing was heard for so many milliseconds; 0: 1000.
    pub probe_ms: u32,
    /// The wait before the first attempt to meet the peer, in milliseconds, which doubles with each attempt; 0: 20.
    pub backoff_ms: u32,
    /// The longest wait, in milliseconds; 0: 2000. Half of each wait is drawn, so that many do not come at once.
    pub backoff_most_ms: u32,
    /// How long one attempt may take, in milliseconds; 0: 5000.
    pub step_ms: u32,
    /// After so many milliseconds without a connection no further attempt is made; 0: never.
    pub give_up_ms: u32,
    /// When to repeat and when to give up: with probe_ms it decides how soon a death is noticed. All zero: the usual one.
    pub timing: qp_timing,
    /// How packets are marked on their way.
    pub path: qp_path,
    /// Must be 0.
    pub reserved: u64,
}

/// Meets the peer at any of the addresses that a text names.
pub(super) fn connect(address: &str) -> Result<Connect, Fault> {
    connect_any(address).map_err(|error| {
        let errno = match &error {
            ExchangeError::Address { source, .. } => source.raw_os_error(),
            _ => None,
        };
        let text = format!("address {address:?}: {error}");
        Fault::new(QP_CODE_TEXT, errno.unwrap_or(libc::EINVAL), text)
    })
}

/// The system does not tell its own address.
pub(super) fn not_told(error: std::io::Error) -> Fault {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Fault::new(QP_CODE_SYSTEM, errno, error.to_string())
}

/// A receive that each life begins with, whose region is held.
struct Receive {
    context: u64,
    place: Option<(Held<Mr>, usize, usize)>,
}

impl Receive {
    fn new(recv: &qp_recv) -> Result<Receive, Fault> {
        let place = if recv.mr.is_null() {
            nothing(recv.len, "receives")?;
            None
        } else {
            let mr = Held::<Mr>::of(recv.mr, "receives->mr")?;
            mr.slice(recv.offset, recv.len)?;
            Some((mr, recv.offset, recv.len))
        };
        let context = recv.context;
        Ok(Receive { context, place })
    }

    fn post<T: RecvQueue>(&self, qp: &mut Qp<T>) -> Result<(), PostError> {
        let place = self.place.as_ref();
        // It was looked at before, and is inside.
        match place.and_then(|(mr, offset, len)| mr.get(*offset, *len)) {
            Some(local) => qp.recv_with(self.context, local),
            None => qp.recv_with(self.context, NOTHING),
        }?;
        Ok(())
    }
}

/// What a supervised connection is made of, looked at.
pub(super) struct Parts {
    attr: qp_pair_attr,
    options: Options,
    receives: Vec<Receive>,
}

impl Parts {
    pub(super) fn new(
        attr: Option<In<'_, qp_pair_attr>>,
        options: Option<In<'_, qp_supervised_options>>,
        offered: &[qp_region],
        receives: &[qp_recv],
    ) -> Result<Parts, Fault> {
        let mut attr = attr.map_or(qp_pair_attr::USUAL, |attr| *attr.0);
        let xrc = attr.transport == qp_transport::QP_XRC as u32;
        if !attr.send_cq.is_null() || !attr.recv_cq.is_null() || !attr.srq.is_null() && !xrc {
            let text = "a supervised connection makes its own CQ and has its own receives: send_cq, recv_cq and, but for XRC, srq must be NULL";
            return Err(Fault::range(text));
        }
        if xrc && !receives.is_empty() {
            let text = "receives of a supervised connection over XRC are posted to its SRQ: receive_count must be 0";
            return Err(Fault::range(text));
        }
        let count = u32::try_from(receives.len()).unwrap_or(u32::MAX);
        attr.send_depth = pair::or(attr.send_depth, 16);
        attr.recv_depth = match xrc {
            true => 0,
            false => pair::or(attr.recv_depth, count.max(16)),
        };
        if count > attr.recv_depth {
            let text = format!(
                "{} receives for a receive queue of {}: raise recv_depth",
                receives.len(),
                attr.recv_depth
            );
            return Err(Fault::range(text));
        }
        Ok(Parts {
            attr,
            options: self::options(options, offered)?,
            receives: receives
                .iter()
                .map(Receive::new)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Makes the connection.
    pub(super) fn supervise(
        self,
        device: &Device,
        pd: &Pd,
        meeting: impl Meeting + 'static,
    ) -> Result<Any, Fault> {
        let Parts {
            mut attr,
            options,
            receives,
        } = self;
        let srq = std::mem::replace(&mut attr.srq, std::ptr::null_mut());
        let cq = device.create_event_cq(attr.send_depth.saturating_add(attr.recv_depth))?;
        match pair::make(pd, &attr, &cq, None, None)? {
            pair::Any::Rc(qp) => begin(device, (qp, cq), meeting, options, receives).map(Any::Rc),
            pair::Any::Uc(qp) => begin(device, (qp, cq), meeting, options, receives).map(Any::Uc),
            pair::Any::Ud(qp) => begin(device, (qp, cq), meeting, options, receives).map(Any::Ud),
            pair::Any::Xrc(qp) => {
                let side = target(&attr, srq)?;
                let link = Supervised::over_xrc(device, (qp, cq), side, meeting, options)?;
                Ok(Any::Xrc(Box::new(link)))
            }
        }
    }
}

/// The target of a connection over XRC, and the SRQ whose number the peer is told.
fn target(attr: &qp_pair_attr, srq: *mut qp_srq) -> Result<(XrcTarget, SrqNum), Fault> {
    let shared = Alone::<Shared>::of(srq, "attr->srq")?;
    let (AnySrq::Xrc(srq), Some((domain, cq))) = (&shared.srq, &shared.reach) else {
        let text = "target that reaches it: qp_srq_create_xrc() makes one";
        return Err(no_such("an SRQ without XRC domain", text));
    };
    let mut target = domain.create_target()?;
    if attr.access != 0 {
        target = target.with_access(Access::from_bits_retain(attr.access));
    }
    target.report_on(&Alone::<Queue>::of(cq.0, "the CQ of attr->srq")?.cq)?;
    Ok((target, srq.srq_num()))
}

fn begin<T: Probes<Beside: Default> + RecvQueue>(
    device: &Device,
    parts: (Qp<T>, Cq),
    meeting: impl Meeting + 'static,
    options: Options,
    receives: Vec<Receive>,
) -> Result<Box<Supervised<u64, T>>, Fault> {
    let post = move |qp: &mut Qp<T>| receives.iter().try_for_each(|receive| receive.post(qp));
    Ok(Box::new(Supervised::new(
        device, parts, meeting, options, post,
    )?))
}

fn options(
    given: Option<In<'_, qp_supervised_options>>,
    offered: &[qp_region],
) -> Result<Options, Fault> {
    let mut options = Options {
        offered: offered.iter().map(qp_region::region).collect(),
        ..Options::default()
    };
    let Some(In(given)) = given else {
        return Ok(options);
    };
    if given.reserved != 0 {
        let text = "reserved of struct qp_supervised_options is not 0: set it to all zero first";
        return Err(Fault::range(text));
    }
    let or = |ms: u32, usual| match ms {
        0 => usual,
        ms => Duration::from_millis(ms.into()),
    };
    options.port = match given.port {
        0 => 1,
        port => crate::modify::narrow("port", port.into(), 255)?,
    };
    options.probe = or(given.probe_ms, options.probe);
    options.backoff.first = or(given.backoff_ms, options.backoff.first);
    options.backoff.most = or(given.backoff_most_ms, options.backoff.most);
    options.step = or(given.step_ms, options.step);
    options.give_up =
        (given.give_up_ms != 0).then(|| Duration::from_millis(given.give_up_ms.into()));
    options.timing = match given.timing {
        qp_timing {
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
        } => options.timing,
        _ => timing(Some(In(&given.timing)))?,
    };
    options.path = path(Some(In(&given.path)))?;
    Ok(options)
}
