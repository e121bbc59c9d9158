//! Completions in the form that C gets.

use std::mem::MaybeUninit;

use rdma_qp::{Completion, Failure, Operation, QueueKind, Row, Success, Usual};

use super::{
    QP_BY_WRITE, QP_DATAGRAM, QP_HAS_GRH, QP_HAS_IMM, QP_INVALIDATED, qp_completion, qp_op,
    qp_queue,
};

impl qp_completion {
    /// One that does not say anything.
    pub(crate) const NOTHING: qp_completion = qp_completion {
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
}

const NOTHING: qp_completion = qp_completion::NOTHING;

/// Hands over the success of a request, as most are. Each kind is handed over by itself, so that nothing of it goes to memory
/// on the way.
#[inline(always)]
pub(super) fn usual(done: Usual<'_>, context: u64, place: &mut MaybeUninit<qp_completion>) {
    let made = qp_completion {
        context,
        qp_num: done.qp_num(),
        ..NOTHING
    };
    if done.operation() == Operation::Send {
        place.write(made);
        return;
    }
    match done.operation() {
        Operation::Write => {
            place.write(qp_completion {
                operation: qp_op::QP_WRITE as u8,
                ..made
            });
        }
        Operation::Read => {
            place.write(qp_completion {
                operation: qp_op::QP_READ as u8,
                byte_len: done.byte_len(),
                ..made
            });
        }
        _ => {
            place.write(any(&done.to_completion(), context));
        }
    }
}

/// Hands over a row of them, as long as there are places; says how many.
#[inline(always)]
pub(super) fn row(row: Row<'_, '_>, places: &mut [MaybeUninit<qp_completion>]) -> usize {
    let qp_num = row.qp_num();
    if row.operation() == Operation::Send {
        return row.take(places, |place, _, context| {
            place.write(qp_completion {
                context,
                qp_num,
                ..NOTHING
            });
        });
    }
    any_row(row, places)
}

/// The same for whatever it asked for.
#[inline(never)]
fn any_row(row: Row<'_, '_>, places: &mut [MaybeUninit<qp_completion>]) -> usize {
    row.take(places, |place, done, context| usual(done, context, place))
}

const _: () = assert!(qp_op::QP_SEND as u8 == 0 && qp_queue::QP_SQ as u8 == 0);

/// Any completion.
#[inline(never)]
pub(crate) fn any(done: &Completion, context: u64) -> qp_completion {
    let made = qp_completion {
        context,
        qp_num: done.qp_num,
        queue: queue(done.queue),
        ..NOTHING
    };
    match &done.outcome {
        Ok(success) => success_of(success, made),
        Err(failure) => failure_of(failure, made),
    }
}

fn success_of(success: &Success, made: qp_completion) -> qp_completion {
    let (imm, mut flags) = match (success.imm, success.invalidated) {
        (Some(imm), _) => (imm, QP_HAS_IMM),
        (None, Some(key)) => (key, QP_INVALIDATED),
        (None, None) => (0, 0),
    };
    if success.by_write {
        flags |= QP_BY_WRITE;
    }
    let mut sender = (0, 0, 0);
    if let Some(from) = &success.sender {
        flags |= QP_DATAGRAM | if from.has_grh { QP_HAS_GRH } else { 0 };
        sender = (from.service_level, from.qp_num, from.lid);
    }
    qp_completion {
        byte_len: success.byte_len,
        imm,
        operation: code(success.operation),
        flags,
        service_level: sender.0,
        sender_qp_num: sender.1,
        sender_lid: sender.2,
        ..made
    }
}

#[cold]
fn failure_of(failure: &Failure, made: qp_completion) -> qp_completion {
    qp_completion {
        status: failure.status.0,
        vendor_err: failure.vendor_err,
        operation: code(failure.operation),
        ..made
    }
}

/// The queue as C has it.
fn queue(kind: QueueKind) -> u8 {
    let queue = match kind {
        QueueKind::Send => qp_queue::QP_SQ,
        QueueKind::Recv => qp_queue::QP_RQ,
        _ => qp_queue::QP_SRQ,
    };
    queue as u8
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
