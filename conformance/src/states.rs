//! The moves of a Queue Pair, tried on a device and compared with the rules.

mod exceptions;
mod iwarp;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_core_sys::rules::{self, Bits, Kind, Limits, STATES, Transport};
use rdma_core_sys::*;

use crate::device::{Ah, Cq, Device, Failed, Pd, Qp, QpInit, Send, To, Xrcd};
use crate::{Platform, Tally};
pub use exceptions::{EXCEPTIONS, Exception};
pub use iwarp::{BARE_MOVES, BareMove};

pub use libc::{EINVAL, EOPNOTSUPP, EPERM};

/// Success, where an errno is compared.
pub const OK: i32 = 0;

/// One value out of range.
#[derive(Debug)]
pub struct Value {
    /// The field of `ibv_qp_attr`, as [`rules::Violation::field`] names it.
    pub field: &'static str,
    /// The mask bit that makes it count.
    pub bit: ibv_qp_attr_mask,
    /// What is put there, for people.
    pub what: &'static str,
    set: fn(&mut ibv_qp_attr, &Limits),
}

/// Values that cannot work, one at a time.
pub const VALUES: &[Value] = &[
    value("cur_qp_state", IBV_QP_CUR_STATE, "7", |a, _| {
        a.cur_qp_state = ibv_qp_state(7)
    }),
    value(
        "pkey_index",
        IBV_QP_PKEY_INDEX,
        "the table's length",
        |a, l| {
            a.pkey_index = l.pkey_tbl_len.unwrap_or(1) as u16;
        },
    ),
    value("port_num", IBV_QP_PORT, "0", |a, _| a.port_num = 0),
    value("port_num", IBV_QP_PORT, "one too many", |a, l| {
        a.port_num = l.phys_port_cnt.unwrap_or(1) + 1;
    }),
    value("qkey", IBV_QP_QKEY, "the high bit", |a, _| {
        a.qkey = 0x8000_0001
    }),
    value("ah_attr.port_num", IBV_QP_AV, "0", |a, _| {
        a.ah_attr.port_num = 0
    }),
    value("ah_attr.port_num", IBV_QP_AV, "one too many", |a, l| {
        a.ah_attr.port_num = l.phys_port_cnt.unwrap_or(1) + 1;
    }),
    value("ah_attr.is_global", IBV_QP_AV, "0", |a, _| {
        a.ah_attr.is_global = 0
    }),
    value("path_mtu", IBV_QP_PATH_MTU, "0", |a, _| {
        a.path_mtu = ibv_mtu(0)
    }),
    value("path_mtu", IBV_QP_PATH_MTU, "6", |a, _| {
        a.path_mtu = ibv_mtu(6)
    }),
    value("timeout", IBV_QP_TIMEOUT, "32", |a, _| a.timeout = 32),
    value("retry_cnt", IBV_QP_RETRY_CNT, "8", |a, _| a.retry_cnt = 8),
    value("rnr_retry", IBV_QP_RNR_RETRY, "8", |a, _| a.rnr_retry = 8),
    value("rq_psn", IBV_QP_RQ_PSN, "25 bits", |a, _| {
        a.rq_psn = 1 << 24
    }),
    value("sq_psn", IBV_QP_SQ_PSN, "25 bits", |a, _| {
        a.sq_psn = 1 << 24
    }),
    value("max_rd_atomic", IBV_QP_MAX_QP_RD_ATOMIC, "255", |a, _| {
        a.max_rd_atomic = 255
    }),
    value(
        "max_dest_rd_atomic",
        IBV_QP_MAX_DEST_RD_ATOMIC,
        "255",
        |a, _| {
            a.max_dest_rd_atomic = 255;
        },
    ),
    value("min_rnr_timer", IBV_QP_MIN_RNR_TIMER, "32", |a, _| {
        a.min_rnr_timer = 32
    }),
    value("dest_qp_num", IBV_QP_DEST_QPN, "25 bits", |a, _| {
        a.dest_qp_num = 1 << 24
    }),
];

const fn value(
    field: &'static str,
    bit: ibv_qp_attr_mask,
    what: &'static str,
    set: fn(&mut ibv_qp_attr, &Limits),
) -> Value {
    Value {
        field,
        bit,
        what,
        set,
    }
}

/// One call of `ibv_modify_qp`.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    /// The transport.
    pub transport: Transport,
    /// The state that the QP is in.
    pub from: ibv_qp_state,
    /// `qp_state`; without `IBV_QP_STATE` in the mask, the state that the QP is in.
    pub to: ibv_qp_state,
    /// The mask.
    pub mask: ibv_qp_attr_mask,
    /// The value that is out of range, if one is.
    pub value: Option<&'static Value>,
}

/// How a try came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// As the rules say.
    Agrees,
    /// Not as the rules say, for the reason of this name.
    Exception(&'static str),
    /// The device takes what only this library refuses.
    StricterByUs(&'static str),
    /// Not as the rules say; the text tells how.
    Unexplained(String),
}

/// A try and its outcome.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was tried.
    pub tried: Try,
    /// The errno that the rules say, 0 for success.
    pub expected: i32,
    /// The errno that the device gave.
    pub errno: i32,
    /// What that means.
    pub verdict: Verdict,
}

impl Outcome {
    /// The head of the table whose lines [`tsv`](Self::tsv) gives.
    pub const TSV_HEAD: &str = "transport\tfrom\tto\tmask\tvalue\texpected\terrno\tverdict";

    /// A line of tab-separated values.
    #[must_use]
    pub fn tsv(&self) -> String {
        let Try {
            transport,
            from,
            to,
            mask,
            value,
        } = self.tried;
        let value = value.map_or("-".to_owned(), |v| format!("{}: {}", v.field, v.what));
        let verdict = match &self.verdict {
            Verdict::Agrees => "agrees".to_owned(),
            Verdict::Exception(name) => format!("exception {name}"),
            Verdict::StricterByUs(field) => format!("stricter by us: {field}"),
            Verdict::Unexplained(how) => format!("UNEXPLAINED: {how}"),
        };
        let (mask, expected, errno) = (Bits(mask), self.expected, self.errno);
        format!("{transport}\t{from}\t{to}\t{mask}\t{value}\t{expected}\t{errno}\t{verdict}")
    }
}

/// A device with what a QP stands on.
#[derive(Debug)]
pub struct Bench {
    device: Rc<Device>,
    pd: Rc<Pd>,
    cq: Rc<Cq>,
    limits: Limits,
    gid_index: u8,
    gid: ibv_gid,
    mtu: ibv_mtu,
    platform: Platform,
}

/// The port that is used.
const PORT: u8 = 1;

impl Bench {
    /// Takes what a QP stands on from `device`. The QPs will have themselves as peers, by the GID of this index.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn new(device: &Rc<Device>, gid_index: u8) -> Result<Bench, Failed> {
        let port = device.port(PORT)?;
        let limits = Limits {
            qp_port: Some(PORT),
            ..Limits::new(&device.attributes()?, &port)
        };
        Ok(Bench {
            pd: Pd::new(device)?,
            cq: Cq::new(device, 16)?,
            limits,
            gid_index,
            gid: device.gid(PORT, gid_index)?,
            mtu: port.active_mtu,
            platform: Platform::here(),
            device: Rc::clone(device),
        })
    }

    /// The differences that this device is known to have.
    pub fn exceptions(&self) -> impl Iterator<Item = &'static Exception> {
        (EXCEPTIONS.iter()).filter(|e| e.is_of(self.device.name(), self.platform))
    }

    /// The kernel and the rdma-core under the device.
    #[must_use]
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// A new QP of this transport, in RESET.
    ///
    /// # Errors
    /// `ibv_create_qp`'s errno.
    pub fn qp(&self, transport: Transport) -> Result<Qp, Failed> {
        let Some(qp_type) = transport.qp_type() else {
            return Err(Failed {
                call: format!("a QP of {transport}"),
                errno: EOPNOTSUPP,
            });
        };
        let cap = ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = QpInit::new(&self.pd, [&self.cq, &self.cq], qp_type, cap);
        // Each end of XRC has one half only, and a target receives into SRQs.
        if matches!(transport, Transport::XrcIni | Transport::XrcTgt) {
            init.recv_cq = None;
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        }
        if transport == Transport::XrcTgt {
            init.xrcd = Some(Xrcd::new(&self.device)?);
            init.send_cq = None;
            init.cap = ibv_qp_cap::zeroed();
        }
        Qp::new(&init)
    }

    /// Attributes that are all fine.
    fn attributes(&self, qp: &Qp, from: ibv_qp_state, to: ibv_qp_state) -> ibv_qp_attr {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = to;
        attr.cur_qp_state = from;
        attr.path_mtu = self.mtu;
        attr.qkey = 0x1111_1111;
        attr.rq_psn = 0x12_3456;
        attr.sq_psn = 0x65_4321;
        attr.dest_qp_num = qp.number();
        attr.qp_access_flags =
            (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC).bits();
        attr.cap = qp.cap();
        attr.ah_attr.grh.dgid = self.gid;
        attr.ah_attr.grh.sgid_index = self.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = PORT;
        attr.alt_ah_attr = attr.ah_attr;
        attr.en_sqd_async_notify = 1;
        attr.max_rd_atomic = 1;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.port_num = PORT;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.alt_port_num = PORT;
        attr.alt_timeout = 14;
        attr
    }

    /// Moves a QP along by the masks that the rules require.
    fn step(
        &self,
        qp: &Qp,
        transport: Transport,
        from: ibv_qp_state,
        to: ibv_qp_state,
    ) -> Result<(), Failed> {
        let required = rules::required(transport, from, to).unwrap_or_default();
        qp.modify(&self.attributes(qp, from, to), required | IBV_QP_STATE)
            .map_err(|e| Failed {
                call: format!("{} {from}->{to} on {transport}", e.call),
                ..e
            })
    }

    /// A new QP in `state`; `None` where nothing that these programs do leads there.
    fn qp_in(&self, transport: Transport, state: ibv_qp_state) -> Result<Option<Qp>, Failed> {
        let path: &[ibv_qp_state] = match state {
            IBV_QPS_RESET => &[],
            IBV_QPS_INIT => &[IBV_QPS_INIT],
            IBV_QPS_RTR => &[IBV_QPS_INIT, IBV_QPS_RTR],
            IBV_QPS_RTS => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS],
            IBV_QPS_SQD => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD],
            IBV_QPS_ERR => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR],
            // Only the device itself moves a QP there: a UC or UD one whose request failed before it was sent.
            IBV_QPS_SQE if matches!(transport, Transport::Uc | Transport::Ud) => {
                &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
            }
            _ => return Ok(None),
        };
        let qp = self.qp(transport)?;
        let mut from = IBV_QPS_RESET;
        for &to in path {
            self.step(&qp, transport, from, to)?;
            from = to;
        }
        if state == IBV_QPS_SQE && !self.fail_a_send(&qp)? {
            return Ok(None);
        }
        // A device may take a moment to find an empty queue drained.
        let patience = Instant::now() + Duration::from_secs(5);
        loop {
            let attr = qp.query()?;
            if attr.qp_state != state {
                let call = format!("{transport} is in {} instead of {state}", attr.qp_state);
                return Err(Failed {
                    call,
                    errno: EINVAL,
                });
            }
            if attr.sq_draining == 0 || Instant::now() > patience {
                return Ok(Some(qp));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Posts a request that names memory without a key, and waits for its end. Says whether the QP is in SQE.
    fn fail_a_send(&self, qp: &Qp) -> Result<bool, Failed> {
        let nowhere = ibv_sge {
            addr: 0x1000,
            length: 1,
            lkey: 0,
        };
        let to = To {
            ah: Ah::new(
                &self.pd,
                &self.attributes(qp, IBV_QPS_RTS, IBV_QPS_RTS).ah_attr,
            )?,
            qp_num: qp.number(),
            qkey: 0,
        };
        qp.post_send(&Send {
            sges: vec![nowhere],
            to: Some(to),
            ..Send::default()
        })?;
        let patience = Instant::now() + Duration::from_secs(5);
        while self.cq.poll()?.is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(qp.query()?.qp_state == IBV_QPS_SQE)
    }

    /// The errno that the rules say, and who else refuses the values.
    fn expected(&self, tried: &Try, attr: &ibv_qp_attr) -> (i32, Kind) {
        if rules::check(tried.transport, tried.from, tried.to, tried.mask).is_err() {
            return (EINVAL, Kind::VerbsRule);
        }
        let found = rules::check_values(tried.transport, attr, tried.mask, &self.limits);
        let strictest = |kind| found.iter().any(|violation| violation.kind() == kind);
        let privileged =
            |v: &rules::Violation| matches!(v, rules::Violation::PrivilegedQkey { .. });
        match found.iter().any(privileged) {
            true => (EPERM, Kind::VerbsRule),
            _ if strictest(Kind::VerbsRule) => (EINVAL, Kind::VerbsRule),
            _ if strictest(Kind::StricterByUs) => (EINVAL, Kind::StricterByUs),
            _ => (OK, Kind::VerbsRule),
        }
    }

    /// Makes one try. Says how it came out, and whether the QP is still as it was.
    fn attempt(&self, qp: &Qp, tried: Try) -> Result<(Outcome, bool), Failed> {
        let mut attr = self.attributes(qp, tried.from, tried.to);
        if let Some(value) = tried.value {
            (value.set)(&mut attr, &self.limits);
        }
        let (expected, kind) = self.expected(&tried, &attr);
        let before = qp.query()?;
        let errno = qp.modify(&attr, tried.mask).err().map_or(OK, |e| e.errno);
        let after = qp.query()?;
        let untouched = format!("{before:?}") == format!("{after:?}");
        let exception = self.exceptions().find(|e| e.explains(&tried, errno));
        let verdict = if errno == OK && after.qp_state != tried.to {
            Verdict::Unexplained(format!("success, and the QP is in {}", after.qp_state))
        } else if errno != OK && after.qp_state != tried.from {
            Verdict::Unexplained(format!("refused, and the QP is in {}", after.qp_state))
        } else if errno != OK && !untouched {
            Verdict::Unexplained("refused, and attributes have changed".to_owned())
        } else if errno == expected {
            Verdict::Agrees
        } else if let Some(exception) = exception {
            Verdict::Exception(exception.name)
        } else if let (OK, Kind::StricterByUs, Some(value)) = (errno, kind, tried.value) {
            Verdict::StricterByUs(value.field)
        } else {
            Verdict::Unexplained(format!("errno {errno} instead of {expected}"))
        };
        let outcome = Outcome {
            tried,
            expected,
            errno,
            verdict,
        };
        Ok((outcome, errno != OK && untouched))
    }

    /// Makes every try of this transport, giving each outcome to `each`; reports what cannot be tried as skipped.
    ///
    /// # Errors
    /// Where a QP could not be brought to the state that a try starts from: a text.
    pub fn run(
        &self,
        transport: Transport,
        each: &mut dyn FnMut(&Outcome),
    ) -> Result<Tally, String> {
        let mut tally = Tally::default();
        for from in STATES {
            let tries: Vec<_> = STATES
                .iter()
                .flat_map(|&to| tries(transport, from, to))
                .collect();
            let mut qp = None;
            for tried in tries {
                if qp.is_none() {
                    qp = self.qp_in(transport, from).map_err(|e| e.to_string())?;
                }
                let Some(on) = &qp else {
                    println!(
                        "SKIP {transport}-from-{from}: only an error of the device leads there"
                    );
                    tally.skipped += 1;
                    break;
                };
                let (outcome, untouched) = self.attempt(on, tried).map_err(|e| e.to_string())?;
                match outcome.verdict {
                    Verdict::Agrees => tally.passed += 1,
                    Verdict::Exception(_) | Verdict::StricterByUs(_) => tally.expected += 1,
                    Verdict::Unexplained(_) => tally.failed += 1,
                }
                each(&outcome);
                if !untouched {
                    qp = None;
                }
            }
        }
        Ok(tally)
    }
}

/// Every bit that a mask can have, unknown ones up to the highest known one included.
fn all_bits() -> impl Iterator<Item = ibv_qp_attr_mask> {
    (0..=IBV_QP_RATE_LIMIT.bits().trailing_zeros())
        .map(|b| ibv_qp_attr_mask::from_bits_retain(1 << b))
}

/// What is tried of one move.
///
/// An allowed one: the least and the fullest mask, and each mask one bit away from one of them; then every value out of
/// range, with the least mask that names it. One that is not allowed: no attributes, and the masks of moves that begin or
/// end alike.
fn tries(transport: Transport, from: ibv_qp_state, to: ibv_qp_state) -> Vec<Try> {
    let mut masks = BTreeSet::new();
    let mut values = Vec::new();
    if let Some(allowed) = rules::masks(transport, from, to) {
        let least = allowed.required | IBV_QP_STATE;
        // No RoCE device takes an alternate path: with it, the fullest mask would only ever be refused for that.
        let fullest = least | (allowed.optional - IBV_QP_ALT_PATH);
        for base in [least, fullest] {
            masks.insert(base);
            masks.extend(all_bits().map(|bit| base ^ bit));
        }
        let usable = |value: &&Value| (allowed.required | allowed.optional).contains(value.bit);
        values = VALUES
            .iter()
            .filter(usable)
            .map(|value| (least | value.bit, value))
            .collect();
    } else {
        masks.insert(IBV_QP_STATE);
        for other in STATES {
            let alike = [
                rules::required(transport, from, other),
                rules::required(transport, other, to),
            ];
            masks.extend(
                alike
                    .into_iter()
                    .flatten()
                    .map(|required| required | IBV_QP_STATE),
            );
        }
    }
    let to_of = |mask: ibv_qp_attr_mask| {
        if mask.contains(IBV_QP_STATE) {
            to
        } else {
            from
        }
    };
    let plain = masks.into_iter().map(|mask| Try {
        transport,
        from,
        to: to_of(mask),
        mask,
        value: None,
    });
    let bad = values.into_iter().map(|(mask, value)| Try {
        transport,
        from,
        to,
        mask,
        value: Some(value),
    });
    plain.chain(bad).collect()
}
