//! Completion queues, and what they give.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rdma_core_sys::ibv_cq;
use rdma_qp::{
    Armed, CloseCqError, Completion, Cq, Device, Failure, Operation, QueueKind, Sender, Success,
    Ticket,
};

use crate::device::qp_device;
use crate::errors::in_use;
use crate::export::{Out, Places, Room, export, put_text};
use crate::fault::*;
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::deadline;

/// A completion queue. One thread at a time may call functions with it; Queue Pairs that report to it may be used by others.
#[allow(non_camel_case_types)]
pub struct qp_cq {
    _never: [u8; 0],
}

/// What a request asks for.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_op {
    /// SEND into the next receive of the peer; on UD, of whom `to` names.
    QP_SEND = 0,
    /// SEND with immediate data.
    QP_SEND_WITH_IMM = 1,
    /// SEND that invalidates a key of the peer, given as imm (RC).
    QP_SEND_WITH_INV = 2,
    /// RDMA WRITE (RC, UC).
    QP_WRITE = 3,
    /// RDMA WRITE with immediate data, which takes a receive of the peer (RC, UC).
    QP_WRITE_WITH_IMM = 4,
    /// RDMA READ (RC).
    QP_READ = 5,
    /// Atomic compare and swap of 8 bytes (RC).
    QP_CMP_AND_SWP = 6,
    /// Atomic fetch and add to 8 bytes (RC).
    QP_FETCH_AND_ADD = 7,
    /// Invalidation of a key of this side, given as imm (RC, UC).
    QP_LOCAL_INV = 8,
    /// A memory window was bound. Only in completions.
    QP_BIND = 9,
    /// A receive. Only in completions.
    QP_RECV = 10,
}

/// Which queue a completion is of.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_queue {
    /// The send queue.
    QP_SQ = 0,
    /// The receive queue.
    QP_RQ = 1,
    /// A shared receive queue.
    QP_SRQ = 2,
}

/// In qp_completion.flags: imm is immediate data that came with the message.
pub const QP_HAS_IMM: u8 = 1;
/// In qp_completion.flags: the receive was taken by an RDMA WRITE with immediate: the data is where the peer wrote to.
pub const QP_BY_WRITE: u8 = 2;
/// In qp_completion.flags: imm is the key of this side that the peer invalidated.
pub const QP_INVALIDATED: u8 = 4;
/// In qp_completion.flags: the receive is a datagram, its buffer begins with 40 bytes that are the device's, and sender_qp_num
/// and what follows say who sent it.
pub const QP_DATAGRAM: u8 = 8;
/// In qp_completion.flags: these 40 bytes are filled: always on Ethernet.
pub const QP_HAS_GRH: u8 = 16;

/// One request is done. Where status is not 0, only context, qp_num, status, vendor_err, operation and queue mean something.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_completion {
    /// That of the request.
    pub context: u64,
    /// Number of the Queue Pair; of a receive of an SRQ, of that which the message came by (0 if it was destroyed meanwhile).
    pub qp_num: u32,
    /// How it ended: one of enum ibv_wc_status, 0 for success.
    pub status: u32,
    /// The vendor's own code.
    pub vendor_err: u32,
    /// Bytes of the message (receives; the 40 of a datagram not counted), or read (READ, atomics); else 0.
    pub byte_len: u32,
    /// Immediate data in host byte order, or a key; see flags.
    pub imm: u32,
    /// What was asked for: one of enum qp_op. With and without immediate data are the same.
    pub operation: u8,
    /// Which queue: one of enum qp_queue.
    pub queue: u8,
    /// QP_HAS_IMM and so on.
    pub flags: u8,
    /// The service level that a datagram came with.
    pub service_level: u8,
    /// Number of the Queue Pair that sent a datagram.
    pub sender_qp_num: u32,
    /// LID of the port that sent a datagram; 0 on Ethernet.
    pub sender_lid: u16,
    /// 0.
    pub reserved: u16,
}

/// The contexts of a queue's requests, by the low bits of their number: there are at least as many places as requests that can
/// be outstanding.
pub(crate) struct Contexts(Box<[AtomicU64]>);

impl Contexts {
    pub(crate) fn new(requests: u32) -> Contexts {
        let places = (requests.max(1) as usize).next_power_of_two();
        Contexts((0..places).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline(always)]
    fn place(&self, sequence: u64) -> &AtomicU64 {
        &self.0[sequence as usize & (self.0.len() - 1)]
    }

    #[inline(always)]
    pub(crate) fn put(&self, sequence: u64, context: u64) {
        self.place(sequence).store(context, Relaxed);
    }

    #[inline(always)]
    fn get(&self, sequence: u64) -> u64 {
        self.place(sequence).load(Relaxed)
    }
}

/// The contexts of a Queue Pair.
pub(crate) struct PairContexts {
    pub(crate) send: Contexts,
    pub(crate) recv: Contexts,
}

/// What is known of a Queue Pair that reports to a CQ.
struct Reporter {
    /// 0: nobody.
    qp_num: u32,
    contexts: Arc<PairContexts>,
}

/// Who reports to a CQ, by the number of the Queue Pair: a table with a free place after each run of taken ones.
struct Reporters {
    places: Box<[Reporter]>,
    taken: usize,
    nobody: Arc<PairContexts>,
}

impl Reporters {
    fn new() -> Reporters {
        let nobody = Arc::new(PairContexts {
            send: Contexts::new(1),
            recv: Contexts::new(1),
        });
        let places = Reporters::free(&nobody, 8);
        Reporters {
            places,
            taken: 0,
            nobody,
        }
    }

    fn free(nobody: &Arc<PairContexts>, places: usize) -> Box<[Reporter]> {
        (0..places)
            .map(|_| Reporter {
                qp_num: 0,
                contexts: nobody.clone(),
            })
            .collect()
    }

    /// The place of a Queue Pair, or where it would be.
    #[inline(always)]
    fn place(&self, qp_num: u32) -> usize {
        let mask = self.places.len() - 1;
        let mut at = qp_num as usize & mask;
        while self.places[at].qp_num != qp_num && self.places[at].qp_num != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline(always)]
    fn find(&self, qp_num: u32) -> &PairContexts {
        &self.places[self.place(qp_num)].contexts
    }

    /// Enters a Queue Pair, in place of an earlier one of its number.
    fn enter(&mut self, qp_num: u32, contexts: Arc<PairContexts>) {
        if (self.taken + 1) * 2 > self.places.len() {
            // Those that were destroyed go.
            let old = std::mem::take(&mut self.places);
            let live: Vec<Reporter> = old
                .into_iter()
                .filter(|r| r.qp_num != 0 && Arc::strong_count(&r.contexts) > 1)
                .collect();
            self.places = Reporters::free(&self.nobody, ((live.len() + 1) * 4).next_power_of_two());
            self.taken = 0;
            for Reporter { qp_num, contexts } in live {
                self.put(qp_num, contexts);
            }
        }
        self.put(qp_num, contexts);
    }

    fn put(&mut self, qp_num: u32, contexts: Arc<PairContexts>) {
        let at = self.place(qp_num);
        self.taken += usize::from(self.places[at].qp_num == 0);
        self.places[at] = Reporter { qp_num, contexts };
    }
}

/// What C has a `qp_cq *` of.
pub(crate) struct Queue {
    pub(crate) cq: Cq,
    known: Known,
    /// The last completion that was no success.
    failed: Option<Completion>,
}

/// Whose completions come here.
struct Known {
    reporters: Reporters,
    /// Of SRQs, with their numbers.
    shared: Vec<(u32, Arc<Contexts>)>,
}

// SAFETY: no other type has this kind.
unsafe impl Object for Queue {
    type C = qp_cq;
    const KIND: Kind = Kind::Cq;
}

impl Known {
    fn new() -> Known {
        Known {
            reporters: Reporters::new(),
            shared: Vec::new(),
        }
    }

    /// Hands over what C gets of a success. It is put together from what the completion has, one by one, and each kind is
    /// handed over by itself, so that nothing of it goes to memory on the way.
    #[inline(always)]
    fn success(&self, done: &Completion, success: &Success, put: impl FnOnce(qp_completion)) {
        if success.operation == Operation::Recv {
            let message = Message {
                ticket: done.ticket,
                queue: done.queue,
                qp_num: done.qp_num,
                byte_len: success.byte_len,
                imm: success.imm,
                invalidated: success.invalidated,
                by_write: success.by_write,
                sender: success.sender,
            };
            return put(self.received(message));
        }
        let contexts = &self.reporters.find(done.qp_num).send;
        put(qp_completion {
            context: contexts.get(done.ticket.sequence()),
            qp_num: done.qp_num,
            byte_len: success.byte_len,
            operation: code(success.operation),
            queue: qp_queue::QP_SQ as u8,
            ..NOTHING
        });
    }

    /// What C gets of a receive.
    #[inline(never)]
    fn received(&self, message: Message) -> qp_completion {
        let Message { ticket, qp_num, .. } = message;
        let (imm, mut flags) = match (message.imm, message.invalidated) {
            (Some(imm), _) => (imm, QP_HAS_IMM),
            (None, Some(key)) => (key, QP_INVALIDATED),
            (None, None) => (0, 0),
        };
        if message.by_write {
            flags |= QP_BY_WRITE;
        }
        let mut sender = (0, 0, 0);
        if let Some(from) = &message.sender {
            flags |= QP_DATAGRAM | if from.has_grh { QP_HAS_GRH } else { 0 };
            sender = (from.service_level, from.qp_num, from.lid);
        }
        qp_completion {
            context: self.context(message.queue, qp_num, ticket),
            qp_num,
            byte_len: message.byte_len,
            imm,
            operation: qp_op::QP_RECV as u8,
            queue: queue(message.queue),
            flags,
            service_level: sender.0,
            sender_qp_num: sender.1,
            sender_lid: sender.2,
            ..NOTHING
        }
    }

    /// What C gets of a failure.
    #[cold]
    #[inline(never)]
    fn failure(&self, done: &Completion, failure: &Failure) -> qp_completion {
        qp_completion {
            context: self.context(done.queue, done.qp_num, done.ticket),
            qp_num: done.qp_num,
            status: failure.status.0,
            vendor_err: failure.vendor_err,
            operation: code(failure.operation),
            queue: queue(done.queue),
            ..NOTHING
        }
    }

    /// Finds the context of a request.
    fn context(&self, queue: QueueKind, qp_num: u32, ticket: Ticket) -> u64 {
        let sequence = ticket.sequence();
        match queue {
            QueueKind::Send => self.reporters.find(qp_num).send.get(sequence),
            QueueKind::Recv => self.reporters.find(qp_num).recv.get(sequence),
            _ => {
                let number = ticket.srq();
                let found = self.shared.iter().find(|(srq, _)| Some(*srq) == number);
                found.map_or(0, |(_, contexts)| contexts.get(sequence))
            }
        }
    }
}

/// What a completion says of a receive.
struct Message {
    ticket: Ticket,
    queue: QueueKind,
    qp_num: u32,
    byte_len: u32,
    imm: Option<u32>,
    invalidated: Option<u32>,
    by_write: bool,
    sender: Option<Sender>,
}

/// What a completion has that does not say anything.
const NOTHING: qp_completion = qp_completion {
    context: 0,
    qp_num: 0,
    status: 0,
    vendor_err: 0,
    byte_len: 0,
    imm: 0,
    operation: 0,
    queue: 0,
    flags: 0,
    service_level: 0,
    sender_qp_num: 0,
    sender_lid: 0,
    reserved: 0,
};

/// The queue as C has it.
fn queue(kind: QueueKind) -> u8 {
    let queue = match kind {
        QueueKind::Send => qp_queue::QP_SQ,
        QueueKind::Recv => qp_queue::QP_RQ,
        _ => qp_queue::QP_SRQ,
    };
    queue as u8
}

impl Queue {
    /// A new Queue Pair reports here.
    pub(crate) fn enter(&mut self, qp_num: u32, contexts: Arc<PairContexts>) {
        self.known.reporters.enter(qp_num, contexts);
    }

    /// Receives of an SRQ complete here.
    pub(crate) fn enter_srq(&mut self, number: u32, contexts: Arc<Contexts>) {
        let shared = &mut self.known.shared;
        shared.retain(|(known, contexts)| *known != number && Arc::strong_count(contexts) > 1);
        shared.push((number, contexts));
    }

    /// What C gets of a completion.
    #[cold]
    #[inline(never)]
    pub(crate) fn translate(&mut self, done: &Completion) -> qp_completion {
        match &done.outcome {
            Ok(success) => {
                let mut out = NOTHING;
                self.known.success(done, success, |made| out = made);
                out
            }
            Err(failure) => {
                self.failed = Some(*done);
                self.known.failure(done, failure)
            }
        }
    }

    /// Takes what is there.
    #[inline(always)]
    fn poll(&mut self, places: &mut Places<'_, qp_completion>) -> Result<usize, Fault> {
        if places.len() == 1 {
            return self.poll_one(places).map(usize::from);
        }
        self.poll_more(places, 0)
    }

    /// Takes the next completion, and puts it where C wants it. `false`: there is none.
    #[inline(always)]
    fn poll_one(&mut self, places: &mut Places<'_, qp_completion>) -> Result<bool, Fault> {
        // Both ways need the place, one at a time.
        let places = RefCell::new(places);
        let other = Cell::new(None);
        let known = &self.known;
        let taken = self.cq.poll_by(
            #[inline(always)]
            |done| {
                if let Ok(success) = &done.outcome {
                    known.success(&done, success, |made| places.borrow_mut().set(0, made));
                }
            },
            |done| other.set(Some(done)),
        )?;
        if let Some(done) = other.get() {
            let out = self.translate(&done);
            places.into_inner().set(0, out);
        }
        Ok(taken.is_some())
    }

    /// Takes as many as there is room for behind the first `count`, and says how many there are then.
    #[inline(never)]
    fn poll_more(
        &mut self,
        places: &mut Places<'_, qp_completion>,
        mut count: usize,
    ) -> Result<usize, Fault> {
        let mut failed = None;
        while count < places.len() {
            let before = count;
            let mut batch = match self.cq.poll_batch() {
                Ok(batch) => batch,
                // What was taken is handed out first; a CQ that does not work says so again.
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            };
            while count < places.len()
                && let Some(done) = batch.next()
            {
                if let Ok(success) = &done.outcome {
                    let put = |made| places.set(count, made);
                    self.known.success(&done, success, put);
                } else {
                    // (A copy of its own, so that what succeeds need not go to memory.)
                    let done = failed.insert(done);
                    if let Err(failure) = &done.outcome {
                        places.set(count, self.known.failure(done, failure));
                    }
                }
                count += 1;
            }
            drop(batch);
            if count == before {
                break;
            }
        }
        self.failed = failed.or(self.failed);
        Ok(count)
    }
}

/// The operation as C has it.
#[inline(always)]
fn code(operation: Operation) -> u8 {
    let op = match operation {
        Operation::Send => qp_op::QP_SEND,
        Operation::SendInv => qp_op::QP_SEND_WITH_INV,
        Operation::Write => qp_op::QP_WRITE,
        Operation::Read => qp_op::QP_READ,
        Operation::CompareSwap => qp_op::QP_CMP_AND_SWP,
        Operation::FetchAdd => qp_op::QP_FETCH_AND_ADD,
        Operation::BindWindow => qp_op::QP_BIND,
        Operation::LocalInv => qp_op::QP_LOCAL_INV,
        _ => qp_op::QP_RECV,
    };
    op as u8
}

export! {
    /// Makes a completion queue.
    ///
    /// @param entries  Completions that it has room for: the sum of the depths of the queues that will report to it.
    /// @param events   Not 0: it has a descriptor to sleep on, see qp_cq_fd().
    /// @param cq       Where the handle goes; destroy it with qp_cq_destroy().
    /// @return 0; EINVAL (QP_CODE_LIMIT): the device has no CQ with so many entries; or what the device said.
    fn qp_cq_create(
        device: *mut qp_device as Held<Device>,
        entries: u32,
        events: c_int,
        cq: *mut *mut qp_cq as Out<'_, *mut qp_cq>,
    ) {
        let made = if events == 0 { device.create_cq(entries)? } else { device.create_event_cq(entries)? };
        cq.set(insert(Queue { cq: made, known: Known::new(), failed: None })?);
        Ok(())
    }

    /// Takes completions that are there, without waiting.
    ///
    /// @param completions  Where they go; NULL only if room is 0.
    /// @param room         Most that there is room for.
    /// @param count        Where their number goes; 0 is no error.
    /// @return 0; or what the device said: the CQ does not work any more.
    hot fn qp_poll(
        cq: *mut qp_cq as Alone<Queue>,
        completions: *mut qp_completion as Room<'_, qp_completion>,
        room: usize,
        count: *mut usize as Out<'_, usize>,
    ) {
        // SAFETY: `room` is the length of `completions`, says the header.
        let mut places = unsafe { completions.of(room) }?;
        count.set(cq.poll(&mut places)?);
        Ok(())
    }

    /// Waits until at least one completion is there, and takes what is there.
    ///
    /// A CQ with events sleeps; one without polls, at first busily, then with short naps.
    ///
    /// @param timeout_ms   How long, in milliseconds; below 0: no limit.
    /// @param completions  Where they go.
    /// @param room         Most that there is room for; at least 1.
    /// @param count        Where their number goes; may be NULL.
    /// @return 0; ETIMEDOUT (QP_CODE_TIMED_OUT): there was none; or what the device said.
    fn qp_wait(
        cq: *mut qp_cq as Alone<Queue>,
        timeout_ms: i64,
        completions: *mut qp_completion as Room<'_, qp_completion>,
        room: usize,
        count: *mut usize as Option<Out<'_, usize>>,
    ) {
        if room == 0 {
            return Err(Fault::range("room is 0: a wait needs room for at least one completion"));
        }
        // SAFETY: `room` is the length of `completions`, says the header.
        let mut places = unsafe { completions.of(room) }?;
        let Some(first) = cq.cq.wait_any(deadline(timeout_ms))? else {
            let text = format!("no completion within {timeout_ms} ms");
            return Err(Fault::new(QP_CODE_TIMED_OUT, libc::ETIMEDOUT, text));
        };
        let out = cq.translate(&first);
        places.set(0, out);
        let found = cq.poll_more(&mut places, 1)?;
        if let Some(mut count) = count {
            count.set(found);
        }
        Ok(())
    }

    /// Says in a sentence all that is known of the last completion of this CQ that was no success: the operation, towards
    /// whom, the usual causes, and what was set. Ask before the Queue Pair is reset or destroyed. Empty where there was none.
    /// Arguments and result as qp_query_text().
    fn qp_cq_explain(
        cq: *mut qp_cq as Alone<Queue>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let report = cq.failed.as_ref().and_then(|done| cq.cq.explain(done));
        put_text(&report.map_or(String::new(), |report| report.to_string()), &mut places, needed)
    }

    /// Gives the descriptor that becomes readable after qp_cq_arm(), for poll(2) and the like. It is the CQ's: do not close it.
    ///
    /// @return 0; EOPNOTSUPP: the CQ was made without events.
    fn qp_cq_fd(cq: *mut qp_cq as Alone<Queue>, fd: *mut c_int as Out<'_, c_int>) {
        let Some(found) = cq.cq.event_fd() else {
            return Err(rdma_qp::PollError::NoChannel.into());
        };
        fd.set(found.as_raw_fd());
        Ok(())
    }

    /// Asks for one wake-up of the descriptor, and looks whether something is there already.
    ///
    /// @param ready  Where the answer goes: 1, something is there, poll; 0, the descriptor will become readable.
    /// @return 0; EOPNOTSUPP: the CQ was made without events; or what the device said.
    fn qp_cq_arm(cq: *mut qp_cq as Alone<Queue>, ready: *mut c_int as Out<'_, c_int>) {
        let armed = cq.cq.arm()?;
        ready.set((armed == Armed::Ready).into());
        Ok(())
    }

    /// Takes the wake-ups off the descriptor: call it when that is readable, then poll.
    fn qp_cq_take_events(cq: *mut qp_cq as Alone<Queue>) {
        cq.cq.take_events()?;
        Ok(())
    }

    /// Gives the object of libibverbs that a CQ is, as qp_device_raw(). Who polls it takes completions away from the books.
    fn qp_cq_raw(cq: *mut qp_cq as Alone<Queue>, raw: *mut *mut ibv_cq as Out<'_, *mut ibv_cq>) {
        raw.set(cq.cq.as_ptr());
        Ok(())
    }

    /// Destroys a CQ.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): Queue Pairs report to it, which qp_last_error() names; or what the device said. The
    ///         CQ stays then.
    fn qp_cq_destroy(cq: *mut qp_cq as Later<Queue>) {
        cq.destroy(|queue| {
            let Queue { cq, known, failed } = queue;
            cq.close().map_err(|error| {
                let text = error.to_string();
                let (cq, fault) = match error {
                    CloseCqError::Refused { cq, source } => (cq, Fault::of(QP_CODE_SYSTEM, source, &text)),
                    CloseCqError::Busy { cq, .. } => (cq, in_use(text)),
                    // There is no third.
                    _ => unreachable!("{text}"),
                };
                (Queue { cq: *cq, known, failed }, fault)
            })
        })
    }
}
