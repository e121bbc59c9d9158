//! What changes while a node runs: its ports, and the end of the device.

use std::sync::atomic::Ordering;

use rdma_core_sys::{ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rustix::io::Errno;

use super::Node;
use super::driver::Driver;
use super::event::{Notice, Subject};
use crate::core::config::{GidEntry, PortConfig};
use crate::core::time::Instant;
use crate::core::{CallError, ModifyError, Refused};

/// A port as it is now.
#[derive(Clone, Debug)]
pub(crate) struct PortNow {
    /// Its tables and sizes.
    pub(crate) config: PortConfig,
    /// Its link is up.
    pub(crate) up: bool,
    /// Frames that were refused for their partition key, by all ports of the node together.
    pub(crate) bad_pkeys: u64,
    /// Datagrams that were refused for their Q_Key, by all ports of the node together.
    pub(crate) bad_qkeys: u64,
}

impl Driver {
    fn port_config(&self, port: u8) -> Result<&PortConfig, ModifyError> {
        let at = usize::from(port).checked_sub(1);
        let config = at.and_then(|at| self.engine.config().ports.get(at));
        config.ok_or(ModifyError::NoPort(port))
    }
}

impl Node {
    /// The clock that completions are stamped with, in nanoseconds.
    pub(crate) fn raw_clock(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// A port by its number, from 1.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub(crate) fn port(&self, port: u8) -> Result<PortNow, CallError> {
        self.control(|driver, _, _| {
            let counters = driver.engine.counters();
            Ok(PortNow {
                config: driver.port_config(port)?.clone(),
                up: driver.is_up(port),
                bad_pkeys: counters.refused(Refused::BadPkey),
                bad_qkeys: counters.refused(Refused::BadQkey),
            })
        })
    }

    /// Takes the link of a port up or down: what it would carry while it is down is lost.
    ///
    /// # Errors
    /// `EINVAL` if there is no such port.
    pub(crate) fn set_port_up(&self, port: u8, up: bool) -> Result<(), CallError> {
        let changed = self.control(|driver, _, _| {
            driver.port_config(port)?;
            let changed = driver.is_up(port) != up;
            driver.set_up(port, up);
            Ok::<_, CallError>(changed)
        })?;
        if changed {
            let kind = match up {
                true => ibv_event_type::IBV_EVENT_PORT_ACTIVE,
                false => ibv_event_type::IBV_EVENT_PORT_ERR,
            };
            self.announce(kind, &Subject::Port(port));
        }
        Ok(())
    }

    /// Changes an entry of a port's GID table, or makes it empty. Queue Pairs and address handles that
    /// were given the entry before keep what it was.
    ///
    /// # Errors
    /// `EINVAL` if there is no such port or entry.
    pub(crate) fn set_gid(
        &self,
        port: u8,
        index: usize,
        entry: Option<GidEntry>,
    ) -> Result<(), CallError> {
        let place = |config: &mut PortConfig| {
            let entries = config.gids.len();
            let slot = config.gids.get_mut(index).ok_or(entries)?;
            *slot = entry.unwrap_or(GidEntry::EMPTY);
            Ok(())
        };
        self.change_port(port, index, "GID", place)?;
        self.announce(ibv_event_type::IBV_EVENT_GID_CHANGE, &Subject::Port(port));
        Ok(())
    }

    /// Changes an entry of a port's partition key table, for all that use it.
    ///
    /// # Errors
    /// `EINVAL` if there is no such port or entry.
    pub(crate) fn set_pkey(&self, port: u8, index: usize, pkey: u16) -> Result<(), CallError> {
        let place = |config: &mut PortConfig| {
            let entries = config.pkeys.len();
            *config.pkeys.get_mut(index).ok_or(entries)? = pkey;
            Ok(())
        };
        self.change_port(port, index, "partition key", place)?;
        self.announce(ibv_event_type::IBV_EVENT_PKEY_CHANGE, &Subject::Port(port));
        Ok(())
    }

    /// Changes entry `index` of a table; `change` gives the table's length if there is no such entry.
    fn change_port(
        &self,
        port: u8,
        index: usize,
        table: &str,
        change: impl FnOnce(&mut PortConfig) -> Result<(), usize>,
    ) -> Result<(), CallError> {
        self.control(|driver, _, _| {
            let mut config = driver.port_config(port)?.clone();
            change(&mut config).map_err(|entries| {
                CallError::invalid(format!(
                    "index {index}: the {table} table of port {port} has {entries} entries"
                ))
            })?;
            driver.engine.set_port(port, config)
        })
    }

    /// The device fails: all Queue Pairs end in ERR, where requests are flushed, and stay there, but for
    /// those in RESET, which have no way there; no object is made or changed any more.
    pub(crate) fn fail(&self) {
        if self.failed.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.control(|driver, now, notices| {
            let qps: Vec<_> = driver.objects.qps.values().cloned().collect();
            for qp in qps {
                driver.take_posts_of(&qp);
                let engine = &mut driver.engine;
                let moved = engine.modify_qp(qp.num, &attr, ibv_qp_attr_mask::IBV_QP_STATE);
                driver.report(now, notices);
                if let Ok(state) = moved {
                    qp.set_state(state);
                }
            }
        });
        self.announce(ibv_event_type::IBV_EVENT_DEVICE_FATAL, &Subject::Device);
    }

    /// A control call that makes or changes an object.
    ///
    /// # Errors
    /// `EIO` once the device has failed, and what `call` refuses.
    pub(super) fn change<R>(
        &self,
        call: impl FnOnce(&mut Driver, Instant, &mut Vec<Notice>) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        self.control(|driver, now, notices| {
            self.check_alive()?;
            call(driver, now, notices)
        })
    }

    /// Whether objects can be made and changed.
    ///
    /// # Errors
    /// `EIO` once the device has failed.
    pub(crate) fn check_alive(&self) -> Result<(), CallError> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(CallError::new(
                Errno::IO,
                "the device has failed (IBV_EVENT_DEVICE_FATAL): destroy what is on it, close it, and open it again",
            ));
        }
        Ok(())
    }
}
