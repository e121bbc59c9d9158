//! What the device reports.

use std::time::Duration;

use rdma_core_sys::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
};

use super::{Happened, Supervised};
use crate::device::AsyncEvent;
use crate::supervise::{Probes, Why};

impl<C, T: Probes> Supervised<C, T> {
    pub(super) fn device_events(&mut self, at: Duration) {
        loop {
            match self.device.next_event(Duration::ZERO) {
                Ok(None) => break,
                Ok(Some(event)) => {
                    // What concerns all connections of the device is told to all.
                    let of_this_qp = matches!(event, AsyncEvent::Qp { qp_num, .. } if self.has_failed(qp_num).is_some());
                    self.note(at, &event);
                    if !of_this_qp {
                        self.happened.push_back(Happened::Device(event));
                    }
                }
                Err(_) => {
                    self.device_removed(at);
                    break;
                }
            }
        }
    }

    /// Takes an event in, if it concerns this connection.
    pub(super) fn note(&mut self, at: Duration, event: &AsyncEvent) {
        match *event {
            AsyncEvent::Port { kind, port } if port == self.options.port => match kind {
                IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR => match self.port_is_up() {
                    Ok(up) => self.machine.port(at, up),
                    Err(_) => self.machine.port(at, kind == IBV_EVENT_PORT_ACTIVE),
                },
                IBV_EVENT_GID_CHANGE if self.has_lost_gid() => self.machine.gid_changed(at),
                _ => return,
            },
            AsyncEvent::Qp { kind, qp_num } => {
                let is_fatal = matches!(
                    kind,
                    IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR
                );
                // The event may be of a life that has ended.
                if is_fatal && self.has_failed(qp_num) == Some(true) {
                    self.machine.down(at, Why::Event(kind));
                }
            }
            AsyncEvent::Other {
                kind: IBV_EVENT_DEVICE_FATAL,
            } => self.device_removed(at),
            _ => return,
        }
        self.act(at);
    }

    /// `None`: that is no Queue Pair of this end.
    fn has_failed(&self, qp_num: u32) -> Option<bool> {
        T::has_failed(&self.qp, &self.beside, qp_num)
    }

    pub(super) fn device_removed(&mut self, at: Duration) {
        self.removed = true;
        self.machine.device_removed(at);
        self.act(at);
    }

    pub(super) fn port_is_up(&self) -> Result<bool, String> {
        let port = self.device.port(self.options.port);
        let info = port.map_err(|error| error.to_string())?.query();
        Ok(info.map_err(|error| error.to_string())?.is_active())
    }

    /// Whether the GID that the peer was told is not in the table any more, or there is none yet.
    fn has_lost_gid(&self) -> bool {
        let Some(gid) = &self.gid else { return true };
        let port = self.device.port(self.options.port);
        let now = port.ok().and_then(|port| port.gid(gid.index).ok());
        now.is_none_or(|now| (now.gid, now.kind) != (gid.gid, gid.kind))
    }
}
