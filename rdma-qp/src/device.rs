//! Devices: the list, opening one, its attributes and its asynchronous events.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys::{Verbs, ibv_context, ibv_device_attr, ibv_event_type};

use crate::cq::{Cq, CreateCqError};
use crate::deadline::Deadline;
use crate::errno::Errno;
use crate::fd;
use crate::pd::Pd;
use crate::port::{BadPort, Port};
use crate::raw::context::{ContextHandle, Element, list};
use crate::raw::cq::CqHandle;
use crate::raw::pd::PdHandle;

/// How long it may take until an event is seen that another thread took off the descriptor.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A device in the list of the verbs library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its node GUID.
    pub guid: u64,
}

/// A device could not be listed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The list of devices could not be had.
    #[error("the verbs library gave no list of devices")]
    List(#[source] Errno),
    /// There is no device of that name.
    #[error("there is no RDMA device {name:?}; {}", known(.devices))]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        devices: Vec<String>,
    },
    /// There are fewer devices.
    #[error("there is no RDMA device number {index} (counted from 0); {}", known(.devices))]
    NoSuchIndex {
        /// The number that was asked for.
        index: usize,
        /// The names that there are.
        devices: Vec<String>,
    },
    /// The device could not be opened.
    #[error("{name} could not be opened: {source}{}", open_hint(*.source))]
    Refused {
        /// Its name.
        name: String,
        /// What the library said.
        source: Errno,
    },
    /// The device was opened, but does not tell its attributes.
    #[error("{name} does not tell its attributes")]
    Query {
        /// Its name.
        name: String,
        /// What the library said.
        source: Errno,
    },
}

fn known(devices: &[String]) -> String {
    match devices {
        [] => "there are none at all: is a driver loaded?".into(),
        names => format!("there are: {}", names.join(", ")),
    }
}

fn open_hint(errno: Errno) -> &'static str {
    match errno.name() {
        Some("EACCES" | "EPERM") => "; may this user open /dev/infiniband/uverbs*?",
        Some("ENODEV" | "ENOENT" | "ENXIO") => {
            "; is the module ib_uverbs loaded, and /dev/infiniband visible here?"
        }
        _ => "",
    }
}

/// An open device.
///
/// Everything made from it keeps it open, so it may be dropped at any time.
///
/// ```
/// use rdma_qp::Device;
/// let verbs = rdma_soft::verbs();
/// let name = Device::list(verbs)?[0].name.clone();
/// let device = Device::open(verbs, &name)?;
/// assert!(device.port_count() >= 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    context: Arc<ContextHandle>,
    attr: Arc<ibv_device_attr>,
}

impl Device {
    /// The devices that the verbs library knows.
    ///
    /// # Errors
    /// The library gave no list.
    pub fn list(verbs: &Verbs) -> Result<Vec<DeviceInfo>, OpenError> {
        let listed = list(verbs).map_err(OpenError::List)?;
        Ok(listed
            .into_iter()
            .map(|d| DeviceInfo {
                name: d.name,
                guid: d.guid,
            })
            .collect())
    }

    /// Opens the device called `name`.
    ///
    /// # Errors
    /// There is none of that name (the error lists those that there are), or it cannot be opened.
    pub fn open(verbs: &Verbs, name: &str) -> Result<Device, OpenError> {
        let refused = |source| OpenError::Refused {
            name: name.to_owned(),
            source,
        };
        let Some(context) = ContextHandle::open(verbs, name).map_err(refused)? else {
            let devices = Device::list(verbs)?.into_iter().map(|d| d.name).collect();
            return Err(OpenError::NoSuchDevice {
                name: name.to_owned(),
                devices,
            });
        };
        let query = |source| OpenError::Query {
            name: name.to_owned(),
            source,
        };
        let attr = context.query_device().map_err(query)?;
        Ok(Device {
            context: Arc::new(context),
            attr: Arc::new(attr),
        })
    }

    /// Opens the device at `index` of the list, counted from 0.
    ///
    /// # Errors
    /// There are fewer, or it cannot be opened.
    pub fn open_index(verbs: &Verbs, index: usize) -> Result<Device, OpenError> {
        let devices = Device::list(verbs)?;
        match devices.get(index) {
            Some(device) => Device::open(verbs, &device.name),
            None => {
                let devices = devices.into_iter().map(|d| d.name).collect();
                Err(OpenError::NoSuchIndex { index, devices })
            }
        }
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    pub(crate) fn attr_handle(&self) -> &Arc<ibv_device_attr> {
        &self.attr
    }

    /// Its name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// Its node GUID.
    pub fn guid(&self) -> u64 {
        self.context.guid
    }

    /// Its attributes, as `ibv_query_device` gave them when it was opened.
    pub fn attr(&self) -> &ibv_device_attr {
        &self.attr
    }

    /// The verbs object, for calls that this library does not have. It is closed with the last user of the device.
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Number of its ports; they are counted from 1.
    pub fn port_count(&self) -> u8 {
        self.attr.phys_port_cnt
    }

    /// Port `number`, counted from 1.
    ///
    /// # Errors
    /// There is no such port; the error says which there are.
    pub fn port(&self, number: u8) -> Result<Port, BadPort> {
        Port::new(self.context.clone(), number, self.port_count())
    }

    /// All its ports.
    pub fn ports(&self) -> Vec<Port> {
        (1..=self.port_count())
            .filter_map(|number| self.port(number).ok())
            .collect()
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The library refused.
    pub fn alloc_pd(&self) -> Result<Pd, AllocPdError> {
        let refused = |source| AllocPdError {
            device: self.name().to_owned(),
            max: self.attr.max_pd,
            source,
        };
        Ok(Pd::new(
            Arc::new(PdHandle::alloc(&self.context).map_err(refused)?),
            self.attr.clone(),
        ))
    }

    /// Creates a completion queue with room for at least `entries` completions, to be polled.
    ///
    /// # Errors
    /// `entries` is 0 or above the device's limit, or the library refused.
    pub fn create_cq(&self, entries: u32) -> Result<Cq, CreateCqError> {
        self.make_cq(entries, false)
    }

    /// Creates a completion queue as [`Device::create_cq`] does, with a completion channel of its own, so that one can
    /// sleep until something completes: [`Cq::wait`] does, and [`Cq::event_fd`] goes into any event loop.
    ///
    /// # Errors
    /// As [`Device::create_cq`].
    pub fn create_event_cq(&self, entries: u32) -> Result<Cq, CreateCqError> {
        self.make_cq(entries, true)
    }

    fn make_cq(&self, entries: u32, events: bool) -> Result<Cq, CreateCqError> {
        let max = u32::try_from(self.attr.max_cqe).unwrap_or(0);
        if entries == 0 || entries > max {
            return Err(CreateCqError::Entries { entries, max });
        }
        let refused = |source| CreateCqError::Refused {
            device: self.name().to_owned(),
            entries,
            source,
        };
        let handle = CqHandle::create(&self.context, entries, events).map_err(refused)?;
        if let Some(fd) = handle.event_fd() {
            fd::set_nonblocking(fd).map_err(refused)?;
        }
        Ok(Cq::new(Arc::new(handle)))
    }

    /// The descriptor that is readable when an asynchronous event waits.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.context.async_fd()
    }

    /// Waits for the next asynchronous event until `deadline`. `None`: there was none.
    ///
    /// The event is acknowledged before it is returned, so it never holds up the destruction of what it is about.
    ///
    /// Draining a QP with an SRQ takes events off the descriptor, and keeps them for this call; so does moving it from RESET to
    /// INIT, where its new life begins. Who sleeps on [`Device::event_fd`] asks here once more after either.
    ///
    /// # Errors
    /// The device is gone, or the system refused.
    pub fn next_event(&self, deadline: impl Into<Deadline>) -> Result<Option<AsyncEvent>, Errno> {
        let deadline = deadline.into();
        fd::set_nonblocking(self.event_fd())?;
        loop {
            match self.context.next_event() {
                Ok(event) => return Ok(Some(AsyncEvent::new(event.kind, event.element))),
                Err(errno) if errno.is_again() => {
                    // Whoever drains a QP meanwhile may take the event that makes the descriptor readable, and keep it.
                    let slice = deadline.at_most(LOOK_AGAIN);
                    if !fd::wait_readable(self.event_fd(), slice)? && deadline.passed() {
                        return Ok(None);
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Closes the device, if nothing made from it is left.
    ///
    /// # Errors
    /// Something still uses it: the device comes back. Dropping it instead closes it when the last user is gone.
    pub fn close(self) -> Result<(), Device> {
        let Device { context, attr } = self;
        match Arc::try_unwrap(context) {
            Ok(context) => {
                drop(context);
                Ok(())
            }
            Err(context) => Err(Device { context, attr }),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl AsFd for Device {
    /// As [`Device::event_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_fd()
    }
}

/// A protection domain could not be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no protection domain on {device} (which can have {max}): {source}")]
pub struct AllocPdError {
    /// The device.
    pub device: String,
    /// How many it can have.
    pub max: i32,
    /// What the library said.
    pub source: Errno,
}

/// Something happened to the device, a port, a QP, or an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// Something happened to a QP.
    Qp {
        /// What: one of the QP events of `ibv_get_async_event(3)`.
        kind: ibv_event_type,
        /// Number of the QP.
        qp_num: u32,
    },
    /// Something happened to a port.
    Port {
        /// What: one of the port events of `ibv_get_async_event(3)`.
        kind: ibv_event_type,
        /// Number of the port, counted from 1.
        port: u8,
    },
    /// Something happened to a CQ, the device, or what this library does not know.
    Other {
        /// What.
        kind: ibv_event_type,
    },
    /// Something happened to an SRQ: it fell below its limit, or it failed.
    Srq {
        /// What: one of the SRQ events of `ibv_get_async_event(3)`.
        kind: ibv_event_type,
        /// Number of the SRQ, see [`Srq::number`](crate::Srq::number).
        srq: u32,
    },
}

impl AsyncEvent {
    fn new(kind: ibv_event_type, element: Element) -> AsyncEvent {
        match element {
            Element::Qp(qp_num) => AsyncEvent::Qp { kind, qp_num },
            Element::Port(port) => AsyncEvent::Port { kind, port },
            Element::Srq(srq) => AsyncEvent::Srq { kind, srq },
            Element::Other => AsyncEvent::Other { kind },
        }
    }

    /// What happened.
    pub fn kind(&self) -> ibv_event_type {
        match *self {
            AsyncEvent::Qp { kind, .. }
            | AsyncEvent::Port { kind, .. }
            | AsyncEvent::Srq { kind, .. }
            | AsyncEvent::Other { kind } => kind,
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsyncEvent::Qp { kind, qp_num } => write!(f, "{kind:?} on QP {qp_num:#x}"),
            AsyncEvent::Port { kind, port } => write!(f, "{kind:?} on port {port}"),
            AsyncEvent::Srq { kind, srq } => write!(f, "{kind:?} on SRQ {srq}"),
            AsyncEvent::Other { kind } => write!(f, "{kind:?}"),
        }
    }
}
