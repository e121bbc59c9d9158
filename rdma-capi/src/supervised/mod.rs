//! Supervised connections: watched, found dead within a known time, made anew, and explained.

mod attr;
mod event;
mod meet;

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use rdma_qp::supervise::{Happened, NotPosted, Probes, Proof, SuperviseError, Supervised, carried};
use rdma_qp::xrc::XrcSend;
use rdma_qp::{Armed, Device, Mr, MrSlice, NOTHING, Pd, PostFlags, Rc, Uc, Ud, exchange::tcp};

use crate::device::{event_from, qp_device, qp_event};
use crate::endpoint::qp_endpoint;
use crate::exchange::put_regions;
use crate::export::{Array, In, Out, Room, Text, export, put_text};
use crate::fault::*;
use crate::memory::qp_pd;
use crate::pair::{no_such, qp_pair_attr};
use crate::post::any::{self, Asks, Copied, Takes, To};
use crate::post::{nothing, qp_recv, qp_send};
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::{deadline, qp_region};
use attr::{Parts, qp_supervised_options};
use event::{of_device, of_event, of_message, of_receive, of_report, qp_supervised_event};
use meet::Messenger;
pub(crate) use meet::{qp_hear_fn, qp_tell_fn};

/// A connection that is made, watched, and made anew when it fails. One thread at a time may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_supervised {
    _never: [u8; 0],
}

/// What is known of a peer that answers while nothing else goes on.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_supervised_proof {
    /// RC: the peer's process is there. A probe takes no receive.
    QP_PROOF_PROCESS = 1,
    /// XRC: the peer's node is there, and not its process: that has ended when the channel to it closes. With qp_supervised_meet()
    /// nothing may tell that.
    QP_PROOF_NODE = 2,
    /// UC and UD: the peer's process is there, and calls qp_supervised_next(). A probe, and its answer, take a receive each.
    QP_PROOF_ECHO = 3,
}

/// The state of a supervised connection.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_supervised_state {
    /// Not 0: requests can be posted now.
    pub is_up: u32,
    /// Requests under way, probes included.
    pub under_way: u32,
    /// What a probe proves: one of enum qp_supervised_proof.
    pub proof: u32,
    /// 0.
    pub reserved: u32,
    /// Within how many milliseconds the death of an idle peer is noticed, as long as qp_supervised_next() is called and the
    /// port is up. A peer whose process ends is noticed at once, but not with qp_supervised_meet(), which has no channel that
    /// closes; over XRC, whose probes the peer's node answers, it may not be noticed at all then.
    pub notices_within_ms: u64,
}

/// What C has a `qp_supervised *` of.
pub(crate) struct Link {
    any: Any,
    /// What became of the requests of a life, and then that it has ended.
    report: VecDeque<(qp_supervised_event, String)>,
    /// A sentence about what was told last.
    text: String,
    /// Where it listens.
    address: Option<String>,
}

// SAFETY: no other type has this kind.
unsafe impl Object for Link {
    type C = qp_supervised;
    const KIND: Kind = Kind::Supervised;
}

/// A connection over any transport that can be supervised.
enum Any {
    Rc(Box<Supervised<u64, Rc>>),
    Uc(Box<Supervised<u64, Uc>>),
    Ud(Box<Supervised<u64, Ud>>),
    Xrc(Box<Supervised<u64, XrcSend>>),
}

/// The same for any transport.
macro_rules! any {
    ($any:expr, $link:ident => $what:expr) => {
        match $any {
            Any::Rc($link) => $what,
            Any::Uc($link) => $what,
            Any::Ud($link) => $what,
            Any::Xrc($link) => $what,
        }
    };
}

/// The same for those that receive; XRC is refused.
macro_rules! receiving {
    ($any:expr, $link:ident => $what:expr) => {
        match $any {
            Any::Rc($link) => Ok($what?),
            Any::Uc($link) => Ok($what?),
            Any::Ud($link) => Ok($what?),
            Any::Xrc(_) => Err(no_such(
                "a supervised connection over XRC",
                "receives: post them to its SRQ",
            )),
        }
    };
}

impl From<NotPosted> for Fault {
    fn from(error: NotPosted) -> Fault {
        match error {
            NotPosted::Post(error) => error.into(),
            down => Fault::new(QP_CODE_DOWN, libc::ENOTCONN, down.to_string()),
        }
    }
}

impl From<SuperviseError> for Fault {
    fn from(error: SuperviseError) -> Fault {
        let (code, errno) = match &error {
            SuperviseError::Port(_) => (QP_CODE_NOT_FOUND, libc::ENODEV),
            SuperviseError::DeviceRemoved { .. } => (QP_CODE_OVER, libc::ENODEV),
            SuperviseError::GaveUp => (QP_CODE_OVER, libc::ESHUTDOWN),
            SuperviseError::System(errno) => (QP_CODE_SYSTEM, errno.raw_os_error()),
            _ => (QP_CODE_REFUSED, libc::EINVAL),
        };
        Fault::new(code, errno, error.to_string())
    }
}

impl<T: Probes> Takes<T> for To<'_, Supervised<u64, T>, &[MrSlice<'_>]> {
    fn take<O: Asks<T>>(self, context: u64, op: O, flags: PostFlags) -> Result<(), Fault> {
        self.0.post(op, self.1, flags, context)?;
        Ok(())
    }
}

impl<T: Probes> Takes<T> for To<'_, Supervised<u64, T>, Copied<'_>> {
    fn take<O: Asks<T>>(self, context: u64, op: O, flags: PostFlags) -> Result<(), Fault> {
        self.0.post_inline(op, self.1.0, flags, context)?;
        Ok(())
    }
}

impl Link {
    fn new(any: Any, address: Option<String>) -> Link {
        Link {
            any,
            report: VecDeque::new(),
            text: String::new(),
            address,
        }
    }

    /// Posts the request of a struct.
    fn post<L>(&mut self, send: &qp_send, local: L) -> Result<(), Fault>
    where
        for<'q> To<'q, Supervised<u64, Rc>, L>: Takes<Rc>,
        for<'q> To<'q, Supervised<u64, Uc>, L>: Takes<Uc>,
        for<'q> To<'q, Supervised<u64, Ud>, L>: Takes<Ud>,
        for<'q> To<'q, Supervised<u64, XrcSend>, L>: Takes<XrcSend>,
    {
        match &mut self.any {
            Any::Rc(link) => any::rc(To(&mut **link, local), send),
            Any::Uc(link) => any::uc(To(&mut **link, local), send),
            Any::Ud(link) => {
                let peer = link.destination().ok_or(NotPosted::Down)?;
                any::ud_to(To(&mut **link, local), send, &peer)
            }
            Any::Xrc(link) => {
                let srq_num = link.peer_srq().ok_or(NotPosted::Down)?.get();
                let send = qp_send { srq_num, ..*send };
                any::xrc(To(&mut **link, local), &send)
            }
        }
    }

    /// What happened next. `None`: nothing did until the deadline.
    fn next(&mut self, timeout_ms: i64) -> Result<Option<qp_supervised_event>, Fault> {
        if let Some((told, text)) = self.report.pop_front() {
            self.text = text;
            return Ok(Some(told));
        }
        let happened = match timeout_ms {
            0 => any!(&mut self.any, link => link.poll(Instant::now()))?,
            _ => any!(&mut self.any, link => link.next(deadline(timeout_ms)))?,
        };
        Ok(happened.map(|happened| self.told(happened)))
    }

    fn told(&mut self, happened: Happened<u64>) -> qp_supervised_event {
        use event::qp_supervised_kind::*;
        let context = |done| any!(&self.any, link => link.cq().context(done));
        match &happened {
            Happened::Done(message) => {
                let told = of_message(message);
                self.text.clear();
                told
            }
            Happened::Received(done) => {
                let told = of_receive(QP_SUPERVISED_RECEIVED, done, context(done));
                self.text.clear();
                told
            }
            Happened::Heartbeat(done) => {
                let told = of_receive(QP_SUPERVISED_HEARTBEAT, done, context(done));
                self.text.clear();
                told
            }
            Happened::Event(event) => {
                self.text = event.to_string();
                of_event(event)
            }
            Happened::Device(event) => {
                self.text = format!("the device reported {:?}", event.kind());
                of_device(event)
            }
            Happened::Ended(report) => {
                for (messages, what) in [
                    (&report.not_done, "was not executed by the peer"),
                    (&report.unknown, "was executed by the peer or not"),
                ] {
                    self.report.extend(messages.iter().map(|message| {
                        let text = format!("the request {} {what}", message.context);
                        (of_message(message), text)
                    }));
                }
                let text = format!(
                    "ended because {}: {} requests not done, {} unknown",
                    report.why,
                    report.not_done.len(),
                    report.unknown.len()
                );
                self.report.push_back((of_report(report), text));
                let (told, text) = self
                    .report
                    .pop_front()
                    .unwrap_or((event::NOTHING, String::new()));
                self.text = text;
                told
            }
            other => {
                self.text = format!("{other:?}");
                event::of_kind(QP_SUPERVISED_OTHER)
            }
        }
    }
}

export! {
    /// Begins a supervised connection to a peer that listens: a Queue Pair and a CQ of its own, which qp_supervised_next() brings
    /// to life, watches, and brings to life again.
    ///
    /// @param device         The device of the protection domain. Its asynchronous events are read by the connection.
    /// @param attr           What its Queue Pair shall be like, its CQs and SRQ NULL; NULL for the usual one. Where recv_depth is 0, it
    ///                       is receive_count if that is more than 16. QP_XRC: an initiator and a target of the domain of srq,
    ///                       which is the XRC SRQ whose number the peer is told; receive_count is 0, and messages that have arrived
    ///                       are told by the SRQ's CQ. The SRQ stays the program's, also for other connections; keep it until the
    ///                       connection is destroyed.
    /// @param options        How it is supervised; NULL for the usual.
    /// @param offered        Regions that the peer may reach: it is told them in each life. NULL if offered_count is 0.
    /// @param offered_count  Their number, at most 1024.
    /// @param receives       The receives that each life begins with, at most as many as the receive queue holds. They are copied;
    ///                       their regions are in use until the connection is destroyed. NULL if receive_count is 0.
    /// @param receive_count  Their number.
    /// @param address        Where the peer listens, "host:port": it is looked for there again and again, whenever there is no
    ///                       connection.
    /// @param link           Where the handle goes; destroy it with qp_supervised_destroy().
    /// @return 0; EINVAL: QP_CODE_RANGE or QP_CODE_REFUSED, what was given cannot be; or as qp_pair_create().
    fn qp_supervised_connect(
        device: *mut qp_device as Held<Device>,
        pd: *mut qp_pd as Held<Pd>,
        attr: *const qp_pair_attr as Option<In<'_, qp_pair_attr>>,
        options: *const qp_supervised_options as Option<In<'_, qp_supervised_options>>,
        offered: *const qp_region as Array<'_, qp_region>,
        offered_count: usize,
        receives: *const qp_recv as Array<'_, qp_recv>,
        receive_count: usize,
        address: *const c_char as Text<'_>,
        link: *mut *mut qp_supervised as Out<'_, *mut qp_supervised>,
    ) {
        // SAFETY: these are the lengths of the two, says the header.
        let (offered, receives) = unsafe { (offered.of(offered_count)?, receives.of(receive_count)?) };
        let parts = Parts::new(attr, options, offered, receives)?;
        let any = parts.supervise(&device, &pd, attr::connect(address.0)?)?;
        link.set(insert(Link::new(any, None))?);
        Ok(())
    }

    /// Begins a supervised connection to a peer that connects. All else as qp_supervised_connect().
    ///
    /// @param address  Where to listen, "host:port"; port 0 takes a free one. One address is for one peer: a new one that comes
    ///                 takes the place of the one before. A process that was restarted listens there again.
    fn qp_supervised_listen(
        device: *mut qp_device as Held<Device>,
        pd: *mut qp_pd as Held<Pd>,
        attr: *const qp_pair_attr as Option<In<'_, qp_pair_attr>>,
        options: *const qp_supervised_options as Option<In<'_, qp_supervised_options>>,
        offered: *const qp_region as Array<'_, qp_region>,
        offered_count: usize,
        receives: *const qp_recv as Array<'_, qp_recv>,
        receive_count: usize,
        address: *const c_char as Text<'_>,
        link: *mut *mut qp_supervised as Out<'_, *mut qp_supervised>,
    ) {
        // SAFETY: these are the lengths of the two, says the header.
        let (offered, receives) = unsafe { (offered.of(offered_count)?, receives.of(receive_count)?) };
        let parts = Parts::new(attr, options, offered, receives)?;
        let listener = tcp::listen(address.0)?;
        let here = listener.local_addr().map_err(attr::not_told)?.to_string();
        let any = parts.supervise(&device, &pd, rdma_qp::supervise::listen(listener))?;
        link.set(insert(Link::new(any, Some(here)))?);
        Ok(())
    }

    /// Tells where a connection listens, such as "127.0.0.1:38765". Arguments as qp_query_text().
    ///
    /// @return As qp_query_text(); EINVAL (QP_CODE_STATE): it listens nowhere: only one of qp_supervised_listen() does.
    fn qp_supervised_address(
        link: *mut qp_supervised as Alone<Link>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let Some(address) = &link.address else {
            let text = "the connection listens nowhere: only one that qp_supervised_listen() made does";
            return Err(Fault::new(QP_CODE_STATE, libc::EINVAL, text));
        };
        put_text(address, &mut places, needed)
    }

    /// Begins a supervised connection to a peer that is met by functions of the program's, which carry messages to it and back:
    /// MPI, PMIx, a message service. Both ends do the same. All else as qp_supervised_connect().
    ///
    /// The functions are called within calls with the connection, qp_supervised_destroy() included, by the thread of the call. They
    /// must return (no longjmp, no C++ exception), and not wait. They may call the library, but not with the connection.
    ///
    /// The end of a process is told by no channel closing here: it is noticed when a probe or a request is not answered, so over
    /// XRC, whose probes the peer's node answers, it may not be noticed at all. A peer that comes anew, or destroys its end, tells so.
    ///
    /// @param tell     Sends a message to the peer.
    /// @param hear     Gives the next message of the peer's.
    /// @param context  Handed to both, never looked at; it must stay usable until the connection is destroyed.
    /// @param poll_ms  How often hear() is to be called while the program sleeps on the connection, in milliseconds; 0: 10.
    fn qp_supervised_meet(
        device: *mut qp_device as Held<Device>,
        pd: *mut qp_pd as Held<Pd>,
        attr: *const qp_pair_attr as Option<In<'_, qp_pair_attr>>,
        options: *const qp_supervised_options as Option<In<'_, qp_supervised_options>>,
        offered: *const qp_region as Array<'_, qp_region>,
        offered_count: usize,
        receives: *const qp_recv as Array<'_, qp_recv>,
        receive_count: usize,
        tell: qp_tell_fn,
        hear: qp_hear_fn,
        context: *mut c_void,
        poll_ms: u32,
        link: *mut *mut qp_supervised as Out<'_, *mut qp_supervised>,
    ) {
        // SAFETY: these are the lengths of the two, says the header.
        let (offered, receives) = unsafe { (offered.of(offered_count)?, receives.of(receive_count)?) };
        let parts = Parts::new(attr, options, offered, receives)?;
        let messenger = Messenger::new(tell, hear, context, poll_ms)?;
        link.set(insert(Link::new(parts.supervise(&device, &pd, carried(messenger))?, None))?);
        Ok(())
    }

    /// Tells the number of the target of a connection over XRC: completions of its SRQ name by it who sent.
    ///
    /// @return 0; EOPNOTSUPP (QP_CODE_UNSUPPORTED): it is not over XRC.
    fn qp_supervised_target_number(link: *mut qp_supervised as Alone<Link>, qp_num: *mut u32 as Out<'_, u32>) {
        let Any::Xrc(link) = &link.any else {
            return Err(no_such("a supervised connection that is not over XRC", "target"));
        };
        qp_num.set(link.target().qp_num());
        Ok(())
    }

    /// Posts a send request, as qp_post_send(). What becomes of it is told once, by QP_SUPERVISED_DONE with its context. On UD it
    /// goes to the peer, and on XRC to the peer's SRQ: send->to and send->srq_num are not looked at.
    ///
    /// @return As qp_post_send(); ENOTCONN (QP_CODE_DOWN): there is no connection at present. Nothing was posted then.
    fn qp_supervised_post_send(
        link: *mut qp_supervised as Alone<Link>,
        send: *const qp_send as In<'_, qp_send>,
    ) {
        let send = send.0;
        if send.mr.is_null() {
            nothing(send.len, "send")?;
            return link.post(send, &NOTHING[..]);
        }
        let mr = Held::<Mr>::of(send.mr, "send->mr")?;
        link.post(send, &[mr.slice(send.offset, send.len)?][..])
    }

    /// Posts a send request of bytes that are copied during the call, as qp_post_inline(). All else as qp_supervised_post_send().
    fn qp_supervised_post_inline(
        link: *mut qp_supervised as Alone<Link>,
        send: *const qp_send as In<'_, qp_send>,
        data: *const u8 as Array<'_, u8>,
        len: usize,
    ) {
        // SAFETY: `len` is the length of `data`, says the header.
        let bytes = unsafe { data.of(len) }?;
        link.post(send.0, Copied(bytes))
    }

    /// Posts a receive, as qp_post_recv(): one that was told of, again.
    ///
    /// @return As qp_post_recv(); ENOTCONN (QP_CODE_DOWN): there is no connection at present, and the next life begins with the
    ///         receives that it was made with; EOPNOTSUPP (QP_CODE_UNSUPPORTED): it is over XRC, post to its SRQ. Nothing was
    ///         posted then.
    fn qp_supervised_post_recv(
        link: *mut qp_supervised as Alone<Link>,
        recv: *const qp_recv as In<'_, qp_recv>,
    ) {
        let recv = recv.0;
        if recv.mr.is_null() {
            nothing(recv.len, "recv")?;
            return receiving!(&mut link.any, link => link.recv_with(recv.context, NOTHING).map(drop));
        }
        let mr = Held::<Mr>::of(recv.mr, "recv->mr")?;
        let local = mr.slice(recv.offset, recv.len)?;
        receiving!(&mut link.any, link => link.recv_with(recv.context, local).map(drop))
    }

    /// Tells what happened next, and does what is to be done for the connection meanwhile: nothing happens to it but in calls
    /// with it, so call this often, or sleep as qp_supervised_arm() says.
    ///
    /// @param timeout_ms  How long to wait, in milliseconds; 0: not at all; below 0: no limit. Other threads cannot post meanwhile.
    /// @param event       Where it goes.
    /// @return 0; ETIMEDOUT: nothing happened; ESHUTDOWN (QP_CODE_OVER): it gave up, see qp_supervised_options.give_up_ms; ENODEV
    ///         (QP_CODE_OVER): the device is gone; or what the system said.
    fn qp_supervised_next(
        link: *mut qp_supervised as Alone<Link>,
        timeout_ms: i64,
        event: *mut qp_supervised_event as Out<'_, qp_supervised_event>,
    ) {
        let Some(told) = link.next(timeout_ms)? else {
            let text = format!("nothing happened within {timeout_ms} ms");
            return Err(Fault::new(QP_CODE_TIMED_OUT, libc::ETIMEDOUT, text));
        };
        event.set(told);
        Ok(())
    }

    /// Says in a sentence what qp_supervised_next() told last, such as "dead: the channel to the peer is gone: ..."; empty after
    /// a request that is done, or a receive. Arguments and result as qp_query_text().
    fn qp_supervised_text(
        link: *mut qp_supervised as Alone<Link>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        put_text(&link.text, &mut places, needed)
    }

    /// Gives the descriptor that becomes readable after qp_supervised_arm(), for poll(2) and the like: the same for the whole
    /// life of the handle. It is the connection's: do not close it.
    fn qp_supervised_fd(link: *mut qp_supervised as Alone<Link>, fd: *mut c_int as Out<'_, c_int>) {
        fd.set(any!(&link.any, link => link.as_fd().as_raw_fd()));
        Ok(())
    }

    /// Prepares for sleeping on the descriptor, and looks whether there is something to do already.
    ///
    /// @param ready  Where the answer goes: 1, call qp_supervised_next() with a timeout of 0 until it says ETIMEDOUT; 0, the
    ///               descriptor becomes readable when there is something to do: then do the same.
    fn qp_supervised_arm(link: *mut qp_supervised as Alone<Link>, ready: *mut c_int as Out<'_, c_int>) {
        let now = !link.report.is_empty() || any!(&mut link.any, link => link.arm())? == Armed::Ready;
        ready.set(now.into());
        Ok(())
    }

    /// Tells the state of a connection.
    fn qp_supervised_query(
        link: *mut qp_supervised as Alone<Link>,
        state: *mut qp_supervised_state as Out<'_, qp_supervised_state>,
    ) {
        use qp_supervised_proof::*;
        any!(&link.any, link => {
            let within = link.notices_within().as_millis();
            state.set(qp_supervised_state {
                is_up: link.is_up().into(),
                under_way: link.under_way().try_into().unwrap_or(u32::MAX),
                proof: match link.proof() {
                    Proof::Process => QP_PROOF_PROCESS,
                    Proof::Node => QP_PROOF_NODE,
                    Proof::Echo => QP_PROOF_ECHO,
                } as u32,
                reserved: 0,
                notices_within_ms: within.try_into().unwrap_or(u64::MAX),
            });
        });
        Ok(())
    }

    /// Describes its Queue Pair for programs, as qp_pair_query_json().
    fn qp_supervised_query_json(
        link: *mut qp_supervised as Alone<Link>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let dump = any!(&link.any, link => link.qp().dump());
        put_text(&dump.to_json(), &mut places, needed)
    }

    /// Tells what the peer of the present or last life told of itself. A peer that was restarted has other regions.
    ///
    /// @param there    Where the peer's end goes; may be NULL.
    /// @param regions  Where the regions go that it offers, in its order; NULL if room is 0.
    /// @param room     Room there.
    /// @param found    Where their number goes; may be NULL.
    /// @return 0; ENOTCONN (QP_CODE_DOWN): there was no peer yet; ENOSPC (QP_CODE_SHORT_BUFFER): there are more regions.
    fn qp_supervised_peer(
        link: *mut qp_supervised as Alone<Link>,
        there: *mut qp_endpoint as Option<Out<'_, qp_endpoint>>,
        regions: *mut qp_region as Room<'_, qp_region>,
        room: usize,
        found: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `room` is the length of `regions`, says the header.
        let mut places = unsafe { regions.of(room) }?;
        let Some(peer) = any!(&link.any, link => link.peer()) else {
            let text = "there was no connection yet, so nothing is known of the peer";
            return Err(Fault::new(QP_CODE_DOWN, libc::ENOTCONN, text));
        };
        if let Some(mut there) = there {
            there.set(qp_endpoint::of_peer(&peer.endpoint)?);
        }
        put_regions(&peer.regions, &mut places, found)
    }

    /// Ends the present life of a connection, as a failure would, and makes it anew.
    fn qp_supervised_restart(link: *mut qp_supervised as Alone<Link>) {
        any!(&mut link.any, link => link.restart());
        Ok(())
    }

    /// Tells a connection what happened to its device, where another one on the same qp_device, or qp_device_event(), has read it:
    /// see QP_SUPERVISED_DEVICE.
    fn qp_supervised_device_event(
        link: *mut qp_supervised as Alone<Link>,
        event: *const qp_event as In<'_, qp_event>,
    ) {
        let event = event_from(event.0);
        any!(&mut link.any, link => link.device_event(&event));
        Ok(())
    }

    /// Ends a connection, at once. The peer finds its channel closed, and looks for another life of this end. What is under way is
    /// thrown away, so wait for QP_SUPERVISED_DONE before.
    fn qp_supervised_destroy(link: *mut qp_supervised as Later<Link>) {
        link.destroy(|_| Ok(()))
    }
}
