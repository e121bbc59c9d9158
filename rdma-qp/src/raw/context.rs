//! Devices and open contexts.

use std::collections::VecDeque;
use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_core_sys::*;

use super::{pointer, srq, status};
use crate::errno::Errno;
use crate::fd;

/// What the device list says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) guid: u64,
}

/// What a device says of itself.
///
/// # Safety
/// `device` is a live device of that table's library.
unsafe fn listed(verbs: &Verbs, device: *mut ibv_device) -> Listed {
    // SAFETY: the device is live, as the caller promises; the name is a C string inside it.
    unsafe {
        let name = verbs.get_device_name(device);
        let name = if name.is_null() {
            c""
        } else {
            CStr::from_ptr(name)
        };
        Listed {
            name: name.to_string_lossy().into_owned(),
            guid: u64::from_be(verbs.get_device_guid(device)),
        }
    }
}

/// Calls `visit` with each device in the list, while the list is held.
fn visit_devices<T>(
    verbs: &Verbs,
    mut visit: impl FnMut(NonNull<ibv_device>, Listed) -> Option<T>,
) -> Result<Option<T>, Errno> {
    let mut count: c_int = 0;
    // SAFETY: the function of the table that was loaded with it; it writes the count and returns an array of that many
    // devices, or null.
    let list = pointer(unsafe { verbs.get_device_list(&mut count) })?;
    let mut found = None;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the array has `count` entries and lives until it is freed below.
        let Some(device) = NonNull::new(unsafe { *list.as_ptr().add(index) }) else {
            break;
        };
        // SAFETY: a device of the list is valid while the list is held.
        let listed = unsafe { listed(verbs, device.as_ptr()) };
        found = visit(device, listed);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list came from the same table and is freed once; opened devices stay valid, as the manual promises.
    unsafe { verbs.free_device_list(list.as_ptr()) };
    Ok(found)
}

/// The devices that the table knows.
pub(crate) fn list(verbs: &Verbs) -> Result<Vec<Listed>, Errno> {
    let mut all = Vec::new();
    visit_devices(verbs, |_, listed| -> Option<()> {
        all.push(listed);
        None
    })?;
    Ok(all)
}

/// An open device.
pub(crate) struct ContextHandle {
    pub(crate) verbs: Verbs,
    ptr: NonNull<ibv_context>,
    /// The device's name.
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// Closed with the handle: this library opened it.
    owned: bool,
    inbox: Mutex<Inbox>,
}

/// What was taken of the asynchronous events.
#[derive(Default)]
struct Inbox {
    /// Taken on the way to another one, and not handed out.
    kept: VecDeque<RawEvent>,
    /// QPs that have taken their last receive from their SRQ, in this life.
    last_wqe: Vec<u32>,
}

impl Inbox {
    /// Forgets that the QP of that number has taken its last receive.
    fn forget_last_wqe(&mut self, qp: u32) {
        self.last_wqe.retain(|seen| *seen != qp);
        let told = RawEvent {
            kind: IBV_EVENT_QP_LAST_WQE_REACHED,
            element: Element::Qp(qp),
        };
        self.kept.retain(|event| *event != told);
    }
}

// SAFETY: ibv_context and all calls on it may be used from any thread (libibverbs is thread safe, as its manual says).
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

/// An asynchronous event, copied out before it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawEvent {
    pub(crate) kind: ibv_event_type,
    pub(crate) element: Element,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// The QP of that number.
    Qp(u32),
    /// The port of that number.
    Port(u8),
    /// The SRQ of that number.
    Srq(u32),
    /// A CQ, the device, an SRQ that is not of this library, or something unknown.
    Other,
}

/// The member of the element union that is valid for such an event.
///
/// # Safety
/// `event` was got from the library and is not acknowledged yet.
unsafe fn element(event: &ibv_async_event) -> Element {
    match event.event_type.element() {
        Some(EventElement::Qp) => {
            // SAFETY: these types say that the element is a QP; its destruction waits until the event is acknowledged, so
            // by the contract of this function it is alive.
            Element::Qp(unsafe { (*event.element.qp).qp_num })
        }
        Some(EventElement::Port) => {
            // SAFETY: these types say that the element is a port number.
            Element::Port(u8::try_from(unsafe { event.element.port_num }).unwrap_or(0))
        }
        Some(EventElement::Srq) => {
            // SAFETY: these types say that the element is an SRQ; its destruction waits until the event is acknowledged, so
            // by the contract of this function it is alive.
            unsafe { srq::number_of(event.element.srq) }.map_or(Element::Other, Element::Srq)
        }
        _ => Element::Other,
    }
}

impl ContextHandle {
    /// Opens the device of that name. `Ok(None)`: there is none.
    pub(crate) fn open(verbs: &Verbs, name: &str) -> Result<Option<ContextHandle>, Errno> {
        visit_devices(verbs, |device, listed| {
            (listed.name == name).then(|| {
                // SAFETY: the device is of this table's list, which is held during the visit.
                let ptr = pointer(unsafe { verbs.open_device(device.as_ptr()) })?;
                // SAFETY: the context was just opened.
                if unsafe { ops::missing_fast_op(ptr.as_ptr()) }.is_some() {
                    // SAFETY: the context was just opened and is used by nobody.
                    let _ = unsafe { verbs.close_device(ptr.as_ptr()) };
                    return Err(Errno::EOPNOTSUPP);
                }
                Ok(ContextHandle {
                    verbs: *verbs,
                    ptr,
                    name: listed.name,
                    guid: listed.guid,
                    owned: true,
                    inbox: Mutex::default(),
                })
            })
        })?
        .transpose()
    }

    /// A context that the program opened, and closes.
    ///
    /// # Safety
    /// `context` is null or a live context of that table's library, and stays live as long as the handle.
    pub(super) unsafe fn borrow(
        verbs: &Verbs,
        context: *mut ibv_context,
    ) -> Result<ContextHandle, Errno> {
        let ptr = NonNull::new(context).ok_or(Errno::EINVAL)?;
        // SAFETY: the caller promises a live context, so its device is live too.
        let Listed { name, guid } = unsafe { listed(verbs, ptr.as_ref().device) };
        Ok(ContextHandle {
            verbs: *verbs,
            ptr,
            name,
            guid,
            owned: false,
            inbox: Mutex::default(),
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.ptr.as_ptr()
    }

    pub(crate) fn query_device(&self) -> Result<ibv_device_attr, Errno> {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: the context is live (invariant 1); `attr` is a whole ibv_device_attr.
        status(unsafe { self.verbs.query_device(self.as_ptr(), &mut attr) })?;
        Ok(attr)
    }

    /// The whole of `ibv_port_attr`: through the context's own operation, as the header does it. The exported symbol
    /// fills the old head of the structure only.
    pub(crate) fn query_port(&self, port: u8) -> Result<ibv_port_attr, Errno> {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: the context is live (invariant 1); `attr` is a whole ibv_port_attr.
        status(unsafe { ops::ibv_query_port(&self.verbs, self.as_ptr(), port, &mut attr) })?;
        Ok(attr)
    }

    /// All filled entries of all ports' GID tables, at most `max`; `Ok(None)` where the library is too old to tell.
    pub(crate) fn gid_table(&self, max: usize) -> Result<Option<Vec<ibv_gid_entry>>, Errno> {
        let mut entries = vec![ibv_gid_entry::zeroed(); max];
        // SAFETY: the context is live (invariant 1); `entries` has room for `max` entries.
        let found = unsafe {
            ops::ibv_query_gid_table(&self.verbs, self.as_ptr(), entries.as_mut_ptr(), max, 0)
        };
        match usize::try_from(found) {
            Ok(found) => {
                entries.truncate(found);
                Ok(Some(entries))
            }
            Err(_) => match Errno::from_raw(i32::try_from(found.saturating_neg()).unwrap_or(5)) {
                Errno::EOPNOTSUPP => Ok(None),
                errno => Err(errno),
            },
        }
    }

    /// The GID at `index`; zero for an empty slot.
    pub(crate) fn query_gid(&self, port: u8, index: u32) -> Result<ibv_gid, Errno> {
        let mut gid = ibv_gid::zeroed();
        let index = c_int::try_from(index).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the context is live (invariant 1); `gid` is an ibv_gid.
        status(unsafe { self.verbs.query_gid(self.as_ptr(), port, index, &mut gid) })?;
        Ok(gid)
    }

    /// The partition key at `index`, in host byte order.
    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<u16, Errno> {
        let mut pkey = 0;
        // SAFETY: the context is live (invariant 1); `pkey` is a 16-bit integer.
        status(unsafe {
            self.verbs
                .query_pkey(self.as_ptr(), port, index.into(), &mut pkey)
        })?;
        Ok(u16::from_be(pkey))
    }

    /// The descriptor that is readable when an asynchronous event waits.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is live (invariant 1), so the field can be read and the descriptor is open until the
        // context is closed, which the borrow of self prevents.
        unsafe { BorrowedFd::borrow_raw(self.ptr.as_ref().async_fd) }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Both lists are whole after every single operation on them.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next asynchronous event: one that was kept, or else one that is taken and acknowledged now. Blocks if none waits
    /// and the descriptor is blocking.
    pub(crate) fn next_event(&self) -> Result<RawEvent, Errno> {
        let mut inbox = self.inbox();
        match inbox.kept.pop_front() {
            Some(event) => Ok(event),
            None => self.take_event(&mut inbox),
        }
    }

    /// Whether the QP of that number has taken its last receive from its SRQ. Looks at all events that wait, and keeps
    /// them. The descriptor is not blocking.
    pub(crate) fn saw_last_wqe(&self, qp: u32) -> Result<bool, Errno> {
        let mut inbox = self.inbox();
        self.keep_waiting(&mut inbox)?;
        Ok(inbox.last_wqe.contains(&qp))
    }

    /// Forgets what was seen of the QP of that number: its life has ended, or it is destroyed. So a program that drains and
    /// never asks for events does not gather them.
    pub(super) fn forget_last_wqe(&self, qp: u32) {
        self.inbox().forget_last_wqe(qp);
    }

    /// The same of a QP that is about to leave RESET, for what nobody has seen yet, too: whatever there is of it is of a former
    /// life. An adapter may raise the event after the move to RESET has returned, but none of the new life before this one.
    pub(super) fn forget_waiting_last_wqe(&self, qp: u32) {
        let mut inbox = self.inbox();
        // Where the events cannot be read the next drain says so.
        let _ = fd::set_nonblocking(self.async_fd()).and_then(|()| self.keep_waiting(&mut inbox));
        inbox.forget_last_wqe(qp);
    }

    /// Takes all events that wait, and keeps them. The descriptor is not blocking.
    fn keep_waiting(&self, inbox: &mut Inbox) -> Result<(), Errno> {
        loop {
            match self.take_event(inbox) {
                Ok(event) => inbox.kept.push_back(event),
                Err(errno) if errno.is_again() => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Takes and acknowledges an event. The lock is held, so that a QP that waits for its acknowledgement to be destroyed is
    /// forgotten afterwards.
    fn take_event(&self, inbox: &mut Inbox) -> Result<RawEvent, Errno> {
        let mut event = ibv_async_event::zeroed();
        // SAFETY: the context is live (invariant 1); `event` is an ibv_async_event.
        status(unsafe { self.verbs.get_async_event(self.as_ptr(), &mut event) })?;
        // SAFETY: the event was just got and is acknowledged below.
        let element = unsafe { element(&event) };
        // SAFETY: the event was just got from this table's library and is acknowledged once.
        unsafe { self.verbs.ack_async_event(&mut event) };
        if let (IBV_EVENT_QP_LAST_WQE_REACHED, Element::Qp(qp)) = (event.event_type, element) {
            inbox.last_wqe.push(qp);
        }
        Ok(RawEvent {
            kind: event.event_type,
            element,
        })
    }

    /// Whether events are kept for [`ContextHandle::next_event`], of which the descriptor tells nothing.
    pub(crate) fn has_kept(&self) -> bool {
        !self.inbox().kept.is_empty()
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: the context is live and every child held an Arc to it, so none is left (invariant 2).
        if let Err(errno) = status(unsafe { self.verbs.close_device(self.as_ptr()) }) {
            tracing::error!(device = %self.name, %errno, "the device could not be closed and stays open");
        }
    }
}
