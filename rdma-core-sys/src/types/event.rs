//! Asynchronous events.

use super::*;
use core::ffi::c_int;

c_enum! {
    /// The kind of an asynchronous event.
    pub enum ibv_event_type: u32 {
        /// A CQ overran or is in error (element: cq).
        IBV_EVENT_CQ_ERR = 0,
        /// A QP went to ERR (element: qp).
        IBV_EVENT_QP_FATAL = 1,
        /// An invalid request arrived (element: qp).
        IBV_EVENT_QP_REQ_ERR = 2,
        /// A peer's access was refused (element: qp).
        IBV_EVENT_QP_ACCESS_ERR = 3,
        /// A packet arrived in RTR (element: qp).
        IBV_EVENT_COMM_EST = 4,
        /// The send queue of a QP in SQD is drained (element: qp).
        IBV_EVENT_SQ_DRAINED = 5,
        /// The alternate path was taken (element: qp).
        IBV_EVENT_PATH_MIG = 6,
        /// Taking the alternate path failed (element: qp).
        IBV_EVENT_PATH_MIG_ERR = 7,
        /// The device is in error.
        IBV_EVENT_DEVICE_FATAL = 8,
        /// The port came up (element: port).
        IBV_EVENT_PORT_ACTIVE = 9,
        /// The port went down (element: port).
        IBV_EVENT_PORT_ERR = 10,
        /// The LID changed (element: port).
        IBV_EVENT_LID_CHANGE = 11,
        /// The P_Key table changed (element: port).
        IBV_EVENT_PKEY_CHANGE = 12,
        /// The subnet manager changed (element: port).
        IBV_EVENT_SM_CHANGE = 13,
        /// An SRQ is in error (element: srq).
        IBV_EVENT_SRQ_ERR = 14,
        /// An SRQ fell below its limit (element: srq).
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        /// A QP with an SRQ in ERR took its last receive (element: qp).
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        /// The subnet manager asks for registration again (element: port).
        IBV_EVENT_CLIENT_REREGISTER = 17,
        /// The GID table changed (element: port).
        IBV_EVENT_GID_CHANGE = 18,
        /// A work queue is in error (element: wq).
        IBV_EVENT_WQ_FATAL = 19,
        /// The speed of the device changed (element: port).
        IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
    }
}

/// What an event is about, by its kind: the member of its element that is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventElement {
    /// `cq`.
    Cq,
    /// `qp`.
    Qp,
    /// `srq`.
    Srq,
    /// `wq`.
    Wq,
    /// `port_num`.
    Port,
    /// The device, which needs no member.
    Device,
}

impl ibv_event_type {
    /// The member of the element that is valid for such an event (man ibv_get_async_event); `None` for an unknown kind.
    ///
    /// ```
    /// use rdma_core_sys::*;
    ///
    /// assert_eq!(IBV_EVENT_SQ_DRAINED.element(), Some(EventElement::Qp));
    /// assert_eq!(IBV_EVENT_GID_CHANGE.element(), Some(EventElement::Port));
    /// assert_eq!(ibv_event_type(999).element(), None);
    /// ```
    #[must_use]
    pub const fn element(self) -> Option<EventElement> {
        Some(match self {
            IBV_EVENT_CQ_ERR => EventElement::Cq,
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => EventElement::Qp,
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => EventElement::Srq,
            IBV_EVENT_WQ_FATAL => EventElement::Wq,
            IBV_EVENT_PORT_ACTIVE
            | IBV_EVENT_PORT_ERR
            | IBV_EVENT_LID_CHANGE
            | IBV_EVENT_PKEY_CHANGE
            | IBV_EVENT_SM_CHANGE
            | IBV_EVENT_CLIENT_REREGISTER
            | IBV_EVENT_GID_CHANGE
            | IBV_EVENT_DEVICE_SPEED_CHANGE => EventElement::Port,
            IBV_EVENT_DEVICE_FATAL => EventElement::Device,
            _ => return None,
        })
    }
}

c_struct! {
    /// What an event is about; which member is valid follows from the type ([`ibv_event_type::element`]).
    pub union ibv_async_event_element (c "ibv_async_event" "element") [8, 8] {
        /// For CQ events.
        pub cq: *mut ibv_cq = 0,
        /// For QP events.
        pub qp: *mut ibv_qp = 0,
        /// For SRQ events.
        pub srq: *mut ibv_srq = 0,
        /// For work queue events.
        pub wq: *mut ibv_wq = 0,
        /// For port events, counted from 1.
        pub port_num: c_int = 0,
    }

    /// An asynchronous event; every one that was got must be acknowledged.
    pub struct ibv_async_event [16, 8] {
        /// What it is about.
        pub element: ibv_async_event_element = 0,
        /// Its kind.
        pub event_type: ibv_event_type = 8,
    }
}
