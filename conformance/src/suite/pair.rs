//! Two Queue Pairs that talk with each other.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::*;

use super::arm::{GRHS, PORT, SOURCE, TARGET};
use super::setting::{RD_ATOMIC, calls, capacity};
use super::{Arm, DEPTH, QKEY, SGES, Setting, Side, Trouble, expect};
use crate::bytes::{pattern, same};
use crate::device::{Ah, Cq, Qp, QpInit, Send, Srq, To, Xrcd};

thread_local! {
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::from_secs(10)) };
}

/// Longest time that anything may take, for the checks of this thread.
#[must_use]
pub fn patience() -> Duration {
    PATIENCE.get()
}

/// Sets how long anything may take: much where it must come, and little where the device is known to let it out.
pub(super) fn set_patience(known: bool) {
    PATIENCE.set(Duration::from_secs(if known { 2 } else { 10 }));
}

/// After so long a message that did not come is lost, where it may be.
const LOST: Duration = Duration::from_millis(1500);
/// One end.
#[derive(Debug)]
pub struct End {
    /// Where it is.
    pub side: Rc<Side>,
    /// The QP.
    pub qp: Qp,
    /// The CQ of its sends.
    pub sends: Rc<Cq>,
    /// The CQ of its receives.
    pub receives: Rc<Cq>,
    /// The SRQ that it takes receives from.
    pub srq: Option<Rc<Srq>>,
    /// The XRC domain of a target.
    pub xrcd: Option<Rc<Xrcd>>,
    /// The end of the transport that it is.
    pub transport: Transport,
    setting: Setting,
}

/// The asking end, and the answering one.
#[derive(Debug)]
pub struct Pair {
    /// What it is like.
    pub setting: Setting,
    /// The end that asks.
    pub a: End,
    /// The end that answers.
    pub b: End,
    /// The way of datagrams from `a` to `b`.
    pub ah: Option<Rc<Ah>>,
}

impl End {
    /// An end in RESET, with CQs of its own.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn new(side: &Rc<Side>, setting: Setting, answers: bool) -> Result<End, Trouble> {
        let cq = || Cq::new(&side.device, 4 * DEPTH.cast_signed());
        End::on(side, setting, answers, [cq()?, cq()?])
    }

    /// An end in RESET on these CQs, for sends and receives.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn on(
        side: &Rc<Side>,
        setting: Setting,
        answers: bool,
        [sends, receives]: [Rc<Cq>; 2],
    ) -> Result<End, Trouble> {
        let transport = match (setting.transport, answers) {
            (Transport::XrcIni, true) => Transport::XrcTgt,
            (transport, _) => transport,
        };
        let shared = answers && setting.shared;
        let target = transport == Transport::XrcTgt;
        let xrcd = match target {
            true => Some(Xrcd::new(&side.device)?),
            false => None,
        };
        let srq = match (&xrcd, shared) {
            (_, false) => None,
            (None, true) => Some(Srq::new(&side.pd, DEPTH, SGES)?),
            (Some(xrcd), true) => Some(Srq::xrc(&side.pd, xrcd, &receives, DEPTH, SGES)?),
        };
        let qp_type = transport.qp_type().ok_or("a transport without a type")?;
        let cap = capacity(transport, shared);
        let mut init = QpInit::new(&side.pd, [&sends, &receives], qp_type, cap);
        match transport {
            Transport::XrcIni => init.recv_cq = None,
            Transport::XrcTgt => {
                (init.send_cq, init.recv_cq) = (None, None);
                init.xrcd = xrcd.clone();
            }
            _ => init.srq = srq.clone(),
        }
        if setting.extended {
            init.send_ops = calls(transport);
        }
        Ok(End {
            qp: Qp::new(&init)?,
            side: Rc::clone(side),
            sends,
            receives,
            srq,
            xrcd,
            transport,
            setting,
        })
    }

    /// Attributes for every move, with `peer` at the other end. The PSNs wrap round in the first longer message.
    #[must_use]
    pub fn attributes(&self, peer: &End) -> ibv_qp_attr {
        let psn = |end: &End| 0xff_fff0 | end.qp.number() & 0xf;
        let mut attr = ibv_qp_attr::zeroed();
        attr.port_num = PORT;
        attr.qkey = QKEY;
        attr.qp_access_flags = self.setting.access.bits();
        attr.path_mtu = self.setting.mtu;
        attr.dest_qp_num = peer.qp.number();
        attr.rq_psn = psn(peer);
        attr.sq_psn = psn(self);
        attr.max_rd_atomic = RD_ATOMIC;
        attr.max_dest_rd_atomic = RD_ATOMIC;
        attr.min_rnr_timer = 12;
        attr.timeout = self.setting.timeout;
        attr.retry_cnt = self.setting.retry_cnt;
        attr.rnr_retry = self.setting.rnr_retry;
        attr.ah_attr = self.side.vector(peer.side.gid);
        attr
    }

    /// Moves the QP along these states, from the first, by the masks that the rules require.
    ///
    /// # Errors
    /// The move that failed.
    pub fn go(&self, attr: &ibv_qp_attr, states: &[ibv_qp_state]) -> Result<(), Trouble> {
        for pair in states.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let mask = rules::required(self.transport, from, to).unwrap_or_default();
            let attr = ibv_qp_attr {
                qp_state: to,
                ..*attr
            };
            (self.qp.modify(&attr, mask | IBV_QP_STATE))
                .map_err(|e| format!("{from}->{to} on {}: {e}", self.transport))?;
        }
        Ok(())
    }

    /// Posts a receive, to the SRQ where there is one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn receive(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Trouble> {
        match &self.srq {
            Some(srq) => srq.post(wr_id, sges)?,
            None => self.qp.post_recv(wr_id, sges)?,
        }
        Ok(())
    }

    /// Waits until the QP is in this state.
    ///
    /// # Errors
    /// The state that it stays in.
    pub fn in_state(&self, wanted: ibv_qp_state) -> Result<(), Trouble> {
        let end = Instant::now() + patience();
        loop {
            let state = self.qp.query()?.qp_state;
            if state == wanted {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("the QP is in {state} instead of {wanted}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The states on the way to one of them.
#[must_use]
pub fn way_to(state: ibv_qp_state) -> &'static [ibv_qp_state] {
    const ALL: [ibv_qp_state; 4] = [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS];
    let end = ALL.iter().position(|&s| s == state).unwrap_or(3);
    &ALL[..=end]
}

impl Pair {
    /// Two ends in RESET.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn new(arm: &Arm, setting: Setting) -> Result<Pair, Trouble> {
        let [a, b] = &arm.sides;
        Pair::of(
            setting,
            End::new(a, setting, false)?,
            End::new(b, setting, true)?,
        )
    }

    /// A pair of these ends.
    ///
    /// # Errors
    /// `ibv_create_ah`'s errno.
    pub fn of(setting: Setting, a: End, b: End) -> Result<Pair, Trouble> {
        let ah = match setting.transport {
            Transport::Ud => Some(Ah::new(&a.side.pd, &a.side.vector(b.side.gid))?),
            _ => None,
        };
        Ok(Pair { setting, a, b, ah })
    }

    /// Two ends that talk: both in RTS, or the answering one where the setting wants it.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn connected(arm: &Arm, setting: Setting) -> Result<Pair, Trouble> {
        let pair = Pair::new(arm, setting)?;
        pair.connect()?;
        Ok(pair)
    }

    /// Moves both ends from RESET to where the setting wants them, the answering one first.
    ///
    /// # Errors
    /// The move that failed.
    pub fn connect(&self) -> Result<(), Trouble> {
        let Pair { a, b, .. } = self;
        b.go(&b.attributes(a), way_to(self.setting.answers_in))?;
        a.go(&a.attributes(b), way_to(IBV_QPS_RTS))
    }

    /// Addresses a request to the other end: datagrams by handle, XRC requests by SRQ.
    ///
    /// # Errors
    /// `ibv_get_srq_num`'s errno.
    pub fn address(&self, mut send: Send) -> Result<Send, Trouble> {
        if let Some(ah) = &self.ah {
            send.to = Some(To {
                ah: Rc::clone(ah),
                qp_num: self.b.qp.number(),
                qkey: QKEY,
            });
        }
        if let (Transport::XrcIni, Some(srq)) = (self.setting.transport, &self.b.srq) {
            send.srq = srq.number()?;
        }
        Ok(send)
    }

    /// Posts a request of the asking end, addressed to the other one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn ask(&self, send: Send) -> Result<(), Trouble> {
        let send = self.address(send)?;
        match self.setting.extended {
            true => self.a.qp.post_extended(&[send])?,
            false => self.a.qp.post_send(&send)?,
        }
        Ok(())
    }

    /// Posts a receive of the answering end with room for `len` bytes at [`TARGET`], and for a datagram's header.
    ///
    /// # Errors
    /// The call's errno.
    pub fn make_room(&self, wr_id: u64, len: usize) -> Result<(), Trouble> {
        let header = (self.setting.transport == Transport::Ud).then_some((GRHS, 40));
        let room = (len > 0).then_some((TARGET, len));
        let parts: Vec<_> = header.into_iter().chain(room).collect();
        self.b.receive(wr_id, &self.b.side.buffer.sges(&parts))
    }

    /// Sends a message of `len` bytes with its completions and its bytes checked.
    ///
    /// # Errors
    /// What is wrong.
    pub fn exchange(&self, number: u32, len: usize) -> Result<(), Trouble> {
        let (a, b) = (&self.a.side.buffer, &self.b.side.buffer);
        a.write(SOURCE, &pattern(number, len));
        b.write(TARGET, &vec![0xee; len + 1]);
        self.make_room(number.into(), len)?;
        let parts: &[_] = if len == 0 { &[] } else { &[(SOURCE, len)] };
        self.ask(Send {
            wr_id: number.into(),
            flags: IBV_SEND_SIGNALED,
            sges: a.sges(parts),
            ..Send::default()
        })?;
        let sent = self.sent()?;
        expect("the status of a message", sent.status, IBV_WC_SUCCESS)?;
        expect("the wr_id of a message", sent.wr_id, number.into())?;
        let wc = self.received()?;
        expect("the status of a receive", wc.status, IBV_WC_SUCCESS)?;
        expect("the wr_id of a receive", wc.wr_id, number.into())?;
        let header = if self.ah.is_some() { 40 } else { 0 };
        expect("byte_len of a receive", wc.byte_len as usize, len + header)?;
        same(&b.read(TARGET, len), &pattern(number, len))?;
        expect(
            "the byte behind the message",
            b.read(TARGET + len, 1)[0],
            0xee,
        )
    }

    /// A request of the asking end that names `len` bytes at [`SOURCE`] and at the peer's [`TARGET`], signaled.
    #[must_use]
    pub fn request(&self, opcode: ibv_wr_opcode, len: usize) -> Send {
        let (a, b) = (&self.a.side.buffer, &self.b.side.buffer);
        let parts: &[_] = if len == 0 { &[] } else { &[(SOURCE, len)] };
        Send {
            opcode,
            flags: IBV_SEND_SIGNALED,
            sges: a.sges(parts),
            remote: (b.address(TARGET), b.rkey()),
            ..Send::default()
        }
    }

    /// Posts a request and waits for a completion with this status, which it must have.
    ///
    /// # Errors
    /// Another status, or none.
    pub fn ends_with(&self, send: Send, status: ibv_wc_status) -> Result<ibv_wc, Trouble> {
        let what = format!("the status of {:?}", send.opcode);
        let wr_id = send.wr_id;
        self.ask(send)?;
        let wc = self.sent()?;
        expect(&what, wc.status, status)?;
        expect("its wr_id", wc.wr_id, wr_id)?;
        expect("its QP", wc.qp_num, self.a.qp.number())?;
        Ok(wc)
    }

    /// The next completion of the asking end.
    ///
    /// # Errors
    /// None comes.
    pub fn sent(&self) -> Result<ibv_wc, Trouble> {
        next(&self.a.sends, "the request")
    }

    /// The next completion of the answering end's receives. Where messages may be lost, one that does not come is.
    ///
    /// # Errors
    /// None comes.
    pub fn received(&self) -> Result<ibv_wc, Trouble> {
        match self.setting.transport {
            Transport::Uc | Transport::Ud => {
                let wc = within(&self.b.receives, LOST)?;
                wc.ok_or_else(|| Trouble::Lost("the message did not come".to_owned()))
            }
            _ => next(&self.b.receives, "the receive"),
        }
    }

    /// Neither end has a completion left.
    ///
    /// # Errors
    /// The one that is.
    pub fn quiet(&self) -> Result<(), Trouble> {
        for (cq, of) in [
            (&self.a.sends, "requests"),
            (&self.a.receives, "the asking end's receives"),
            (&self.b.receives, "receives"),
            (&self.b.sends, "the answering end's requests"),
        ] {
            if let Some(wc) = cq.poll()? {
                let (status, wr_id) = (wc.status, wc.wr_id);
                return Err(
                    format!("one completion of {of} too many: {status:?} of {wr_id:#x}").into(),
                );
            }
        }
        Ok(())
    }
}

/// The next completion of a CQ, if one comes in time.
///
/// # Errors
/// `ibv_poll_cq`'s errno.
pub fn within(cq: &Cq, patience: Duration) -> Result<Option<ibv_wc>, Trouble> {
    Ok(cq.next_within(patience)?)
}

/// The next completion of a CQ.
///
/// # Errors
/// None comes within [`patience`].
pub fn next(cq: &Cq, of: &str) -> Result<ibv_wc, Trouble> {
    let wc = within(cq, patience())?;
    wc.ok_or_else(|| format!("no completion of {of} within {:?}", patience()).into())
}
