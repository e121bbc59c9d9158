//! Completion queues, and what they give.

mod done;

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::time::Duration;

use rdma_core_sys::ibv_cq;
use rdma_qp::{Armed, CloseCqError, Completion, Cq, Device, Quick};

use crate::device::qp_device;
use crate::errors::in_use;
use crate::export::{Out, Places, Room, export, hot_boundary, put_text};
use crate::fault::*;
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::deadline;

pub(crate) use done::any;

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

/// What C has a `qp_cq *` of.
pub(crate) struct Queue {
    pub(crate) cq: Cq,
    /// The last completion that was no success.
    failed: Option<Completion>,
}

// SAFETY: no other type has this kind.
unsafe impl Object for Queue {
    type C = qp_cq;
    const KIND: Kind = Kind::Cq;
}

impl Queue {
    /// What C gets of a completion that was just taken.
    #[cold]
    #[inline(never)]
    pub(crate) fn translate(&mut self, taken: &Completion) -> qp_completion {
        if taken.outcome.is_err() {
            self.failed = Some(*taken);
        }
        done::any(taken, self.cq.context(taken))
    }

    /// Takes as many as there is room for behind the first `count`, and says how many there are then.
    fn poll(
        &mut self,
        places: &mut Places<'_, qp_completion>,
        mut count: usize,
    ) -> Result<usize, Fault> {
        while count < places.len() {
            let before = count;
            let mut batch = match self.cq.poll_batch() {
                Ok(batch) => batch,
                // What was taken is handed out first; a CQ that does not work says so again.
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            };
            while count < places.len() {
                if let Some(row) = batch.row() {
                    count += done::row(row, places.from(count));
                    continue;
                }
                let mut other = None;
                let taken = batch.next_by(
                    #[inline(always)]
                    |usual| {
                        if let Some(place) = places.from(count).first_mut() {
                            done::usual(usual, usual.context(), place);
                        }
                    },
                    |taken, context| other = Some((taken, context)),
                );
                if taken.is_none() {
                    break;
                }
                if let Some((taken, context)) = other {
                    if taken.outcome.is_err() {
                        self.failed = Some(taken);
                    }
                    places.set(count, done::any(&taken, context));
                }
                count += 1;
            }
            if count == before {
                break;
            }
        }
        Ok(count)
    }
}

/// Polls for several: all of it the short way if that is how they came, or goes on with what is not.
#[inline(never)]
fn poll_rows(
    mut cq: Alone<Queue>,
    mut places: Places<'_, qp_completion>,
    mut count: Out<'_, usize>,
) -> c_int {
    let mut taken = 0;
    let all = match cq.cq.poll_batch() {
        Ok(mut batch) => {
            while taken < places.len()
                && let Some(row) = batch.row()
            {
                taken += done::row(row, places.from(taken));
            }
            taken == places.len() || batch.is_empty()
        }
        // It says so again.
        Err(_) => false,
    };
    if !all {
        return poll_rest(cq, places, taken, count);
    }
    count.set(taken);
    0
}

/// Goes on with a poll for several, of which the first `taken` are there.
#[cold]
#[inline(never)]
fn poll_rest(
    mut cq: Alone<Queue>,
    mut places: Places<'_, qp_completion>,
    taken: usize,
    mut count: Out<'_, usize>,
) -> c_int {
    hot_boundary(|| {
        count.set(cq.poll(&mut places, taken)?);
        Ok(())
    })
}

/// Goes on with a poll for one completion that is not for the short way.
#[cold]
#[inline(never)]
fn poll_on(
    mut cq: Alone<Queue>,
    place: Out<'_, qp_completion>,
    mut count: Out<'_, usize>,
) -> c_int {
    hot_boundary(|| {
        count.set(cq.poll(&mut place.into(), 0)?);
        Ok(())
    })
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
        cq.set(insert(Queue { cq: made, failed: None })?);
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
    ) first {
        if room != 1 {
            // SAFETY: `room` is the length of `completions`, says the header.
            return Some(poll_rows(cq, unsafe { completions.glance_of(room) }?, count));
        }
        // SAFETY: `room` is the length of `completions`, says the header.
        let mut place = unsafe { completions.one() }?;
        let taken = cq.cq.poll_quick(
            #[inline(always)]
            |usual| done::usual(usual, usual.context(), place.place()),
        );
        match taken {
            Quick::Done(()) => count.set(1),
            Quick::Nothing => count.set(0),
            Quick::Other => return Some(poll_on(cq, place, count)),
        }
        Some(0)
    } then {
        // SAFETY: `room` is the length of `completions`, says the header.
        let mut places = unsafe { completions.of(room) }?;
        count.set(cq.poll(&mut places, 0)?);
        Ok(())
    }

    /// Waits until at least one completion is there, and takes what is there.
    ///
    /// A CQ with events sleeps, and arms itself: no qp_cq_arm() before; one without polls, at first busily, then with short naps.
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
        let found = cq.poll(&mut places, 1)?;
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

    /// Says how long a wait on a CQ with events polls before it sleeps: to sleep and to be woken costs several microseconds.
    ///
    /// @param microseconds  That time; 0, as it is at first: it sleeps at once.
    fn qp_cq_set_spin(cq: *mut qp_cq as Alone<Queue>, microseconds: u32) {
        cq.cq.set_spin(Duration::from_micros(microseconds.into()));
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
            let Queue { cq, failed } = queue;
            cq.close().map_err(|error| {
                let text = error.to_string();
                let (cq, fault) = match error {
                    CloseCqError::Refused { cq, source } => (cq, Fault::of(QP_CODE_SYSTEM, source, &text)),
                    CloseCqError::Busy { cq, .. } => (cq, in_use(text)),
                    // There is no third.
                    _ => unreachable!("{text}"),
                };
                (Queue { cq: *cq, failed }, fault)
            })
        })
    }
}
