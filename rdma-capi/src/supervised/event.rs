//! What happens to a supervised connection, in the form that C gets.

use std::time::Duration;

use rdma_core_sys::ibv_event_type;
use rdma_qp::supervise::{Event, Message, Report, Why};
use rdma_qp::{AsyncEvent, Completion};

use crate::cq::{any, qp_completion};
use crate::device::{event_of, qp_event};
use crate::mesh::fate;

/// What happened to a supervised connection.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_supervised_kind {
    /// The request `context` has ended; `fate` says what the peer made of it, and `completion.status` how it ended: one of enum
    /// ibv_wc_status, UINT32_MAX where it had no completion of its own. Every request that was posted gets one of these, once.
    QP_SUPERVISED_DONE = 1,
    /// A message came, into the receive `context`; `completion` says all of it. Look at the data before the next call, and post
    /// the receive again.
    QP_SUPERVISED_RECEIVED = 2,
    /// UC and UD: a probe of the peer's, or the answer to one, took the receive `context`: post it again.
    QP_SUPERVISED_HEARTBEAT = 3,
    /// Nothing was heard for a while, so the peer is probed.
    QP_SUPERVISED_PROBING = 4,
    /// Requests are under way, nothing was heard for `us`, and the device has not given up.
    QP_SUPERVISED_SILENT = 5,
    /// The connection is dead; `why`. What became of its requests follows, and then QP_SUPERVISED_ENDED.
    QP_SUPERVISED_DEAD = 6,
    /// The connection has ended, and every request of it was told of; `not_done` and `unknown` count those that were not known
    /// to be done, and `complete` is 0 if the device did not say of each what became of it. Nothing is posted again by itself.
    QP_SUPERVISED_ENDED = 7,
    /// The peer will be looked for, for the `attempt`th time, in `us`.
    QP_SUPERVISED_RECOVERING = 8,
    /// The connection is there, for the first time or again, by the `attempt`th attempt, `us` after there was none. A peer that
    /// was restarted has other regions: qp_supervised_peer().
    QP_SUPERVISED_RECOVERED = 9,
    /// There was no connection for `us`, and nobody is looked for any more: see qp_supervised_options.give_up_ms.
    QP_SUPERVISED_GAVE_UP = 10,
    /// The port went down. Nobody is probed or looked for until it is up.
    QP_SUPERVISED_PORT_DOWN = 11,
    /// The port is up again.
    QP_SUPERVISED_PORT_UP = 12,
    /// The GID that the peer knows is gone: the connection is made anew with another one.
    QP_SUPERVISED_GID_CHANGED = 13,
    /// The device is gone, or does not work any more: this is the end.
    QP_SUPERVISED_DEVICE_REMOVED = 14,
    /// `device` happened to the device, and concerns not this connection alone: hand it to the others that are on the same
    /// qp_device, with qp_supervised_device_event().
    QP_SUPERVISED_DEVICE = 15,
    /// Something that has no number here yet: qp_supervised_text() says it.
    QP_SUPERVISED_OTHER = 16,
}

/// Why a supervised connection ended.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_supervised_why {
    /// A request or a probe failed, and with it the Queue Pair; `completion.status` says how. IBV_WC_RETRY_EXC_ERR: the peer
    /// does not answer.
    QP_WHY_FAILED = 1,
    /// Nothing was heard for too long, and the device did not tell.
    QP_WHY_SILENT = 2,
    /// The channel to the peer closed: its process ended, or it has noticed a failure.
    QP_WHY_CHANNEL_LOST = 3,
    /// The peer came anew: it was restarted, or has noticed a failure.
    QP_WHY_PEER_CAME_ANEW = 4,
    /// The device said that the Queue Pair is in error; `device` says what.
    QP_WHY_EVENT = 5,
    /// The GID that the peer knows is gone.
    QP_WHY_GID_CHANGED = 6,
    /// The device is gone, or does not work any more.
    QP_WHY_DEVICE_REMOVED = 7,
    /// The program asked for it: qp_supervised_restart().
    QP_WHY_ASKED = 8,
    /// Something that has no number here yet: qp_supervised_text() says it.
    QP_WHY_OTHER = 9,
}

/// Something that happened to a supervised connection. Fields that the kind says nothing of are 0.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_supervised_event {
    /// What: one of enum qp_supervised_kind.
    pub kind: u32,
    /// DEAD, ENDED: one of enum qp_supervised_why.
    pub why: u32,
    /// DONE: the request's context; RECEIVED, HEARTBEAT: the receive's.
    pub context: u64,
    /// DONE: one of enum qp_fate.
    pub fate: u32,
    /// RECOVERING, RECOVERED: the number of the attempt, from 1.
    pub attempt: u32,
    /// SILENT, RECOVERING, RECOVERED, GAVE_UP: microseconds.
    pub us: u64,
    /// ENDED: requests that the peer has not executed.
    pub not_done: u32,
    /// ENDED: requests that the peer has executed or not.
    pub unknown: u32,
    /// ENDED: not 0 if the device gave every request its outcome.
    pub complete: u32,
    /// Must be 0.
    pub reserved: u32,
    /// DEVICE, and DEAD and ENDED because of QP_WHY_EVENT: what the device reported.
    pub device: qp_event,
    /// RECEIVED, HEARTBEAT: as qp_poll() gives it. DONE, and DEAD and ENDED because of QP_WHY_FAILED: its status.
    pub completion: qp_completion,
}

/// One in which nothing happened.
pub(super) const NOTHING: qp_supervised_event = qp_supervised_event {
    kind: 0,
    why: 0,
    context: 0,
    fate: 0,
    attempt: 0,
    us: 0,
    not_done: 0,
    unknown: 0,
    complete: 0,
    reserved: 0,
    device: qp_event { kind: 0, number: 0 },
    completion: qp_completion::NOTHING,
};

use qp_supervised_kind::*;

pub(super) fn of_kind(kind: qp_supervised_kind) -> qp_supervised_event {
    qp_supervised_event {
        kind: kind as u32,
        ..NOTHING
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// A request has ended.
pub(super) fn of_message(message: &Message<u64>) -> qp_supervised_event {
    let mut told = of_kind(QP_SUPERVISED_DONE);
    told.context = message.context;
    told.fate = fate(message.fate);
    told.completion.context = message.context;
    told.completion.status = message.status.map_or(u32::MAX, |status| status.0);
    told
}

/// A receive has ended.
pub(super) fn of_receive(
    kind: qp_supervised_kind,
    done: &Completion,
    context: u64,
) -> qp_supervised_event {
    qp_supervised_event {
        context,
        completion: any(done, context),
        ..of_kind(kind)
    }
}

fn because(why: &Why, told: &mut qp_supervised_event) {
    use qp_supervised_why::*;
    let number = match why {
        Why::Failed(status) => {
            told.completion.status = status.0;
            QP_WHY_FAILED
        }
        Why::Silent => QP_WHY_SILENT,
        Why::ChannelLost(_) => QP_WHY_CHANNEL_LOST,
        Why::PeerCameAnew => QP_WHY_PEER_CAME_ANEW,
        Why::Event(ibv_event_type(kind)) => {
            told.device.kind = *kind;
            QP_WHY_EVENT
        }
        Why::GidChanged => QP_WHY_GID_CHANGED,
        Why::DeviceRemoved => QP_WHY_DEVICE_REMOVED,
        Why::Asked => QP_WHY_ASKED,
        _ => QP_WHY_OTHER,
    };
    told.why = number as u32;
}

/// A connection has ended.
pub(super) fn of_report(report: &Report<u64>) -> qp_supervised_event {
    let count = |messages: &[Message<u64>]| messages.len().try_into().unwrap_or(u32::MAX);
    let mut told = of_kind(QP_SUPERVISED_ENDED);
    told.not_done = count(&report.not_done);
    told.unknown = count(&report.unknown);
    told.complete = report.complete.into();
    because(&report.why, &mut told);
    told
}

/// Something happened to the device.
pub(super) fn of_device(event: &AsyncEvent) -> qp_supervised_event {
    qp_supervised_event {
        device: event_of(event),
        ..of_kind(QP_SUPERVISED_DEVICE)
    }
}

/// A step in the life of a connection.
pub(super) fn of_event(event: &Event) -> qp_supervised_event {
    let mut told = NOTHING;
    let kind = match event {
        Event::Probing => QP_SUPERVISED_PROBING,
        Event::Silent { lasts } => {
            told.us = micros(*lasts);
            QP_SUPERVISED_SILENT
        }
        Event::Dead { why } => {
            because(why, &mut told);
            QP_SUPERVISED_DEAD
        }
        Event::Recovering { attempt, wait, .. } => {
            (told.attempt, told.us) = (*attempt, micros(*wait));
            QP_SUPERVISED_RECOVERING
        }
        Event::Recovered { attempt, after, .. } => {
            (told.attempt, told.us) = (*attempt, micros(*after));
            QP_SUPERVISED_RECOVERED
        }
        Event::GaveUp { after, .. } => {
            told.us = micros(*after);
            QP_SUPERVISED_GAVE_UP
        }
        Event::PortDown => QP_SUPERVISED_PORT_DOWN,
        Event::PortUp => QP_SUPERVISED_PORT_UP,
        Event::GidChanged => QP_SUPERVISED_GID_CHANGED,
        Event::DeviceRemoved => QP_SUPERVISED_DEVICE_REMOVED,
        _ => QP_SUPERVISED_OTHER,
    };
    told.kind = kind as u32;
    told
}
