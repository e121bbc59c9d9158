//! Devices, what they say of themselves, and their asynchronous events.

use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use rdma_core_sys::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Failed, Source, failed, outcome};

/// An open device.
#[derive(Debug)]
pub struct Device {
    pub(super) verbs: Verbs,
    pub(super) context: NonNull<ibv_context>,
    name: String,
}

impl Device {
    /// Opens the device of that name, or the first one.
    ///
    /// # Errors
    /// A text that names what is missing.
    pub fn open(source: Source, name: Option<&str>) -> Result<Rc<Device>, String> {
        let verbs = match source {
            Source::Soft => *rdma_soft::verbs(),
            Source::System => Verbs::open().map_err(|e| e.to_string())?,
        };
        Device::open_with(verbs, name)
    }

    /// Opens the device of that name, or the first one, of a table of functions.
    ///
    /// # Errors
    /// A text that names what is missing.
    pub fn open_with(verbs: Verbs, name: Option<&str>) -> Result<Rc<Device>, String> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { verbs.get_device_list(&mut count) };
        if list.is_null() {
            return Err(failed("ibv_get_device_list").to_string());
        }
        let mut seen = Vec::new();
        let mut opened = None;
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: below the count of the list, which is not freed yet.
            let device = unsafe { *list.add(at) };
            // SAFETY: a device of the list; its name is a C string that lives as long.
            let found = unsafe { CStr::from_ptr(verbs.get_device_name(device)) };
            let found = found.to_string_lossy().into_owned();
            if opened.is_none() && name.is_none_or(|name| name == found) {
                // SAFETY: a device of the list, which is not freed yet.
                let context = NonNull::new(unsafe { verbs.open_device(device) });
                opened = Some(context.ok_or_else(|| failed(format!("ibv_open_device {found}"))));
            }
            seen.push(found);
        }
        // SAFETY: the list of `get_device_list`, freed once; an open device stays valid.
        unsafe { verbs.free_device_list(list) };
        match opened {
            Some(context) => {
                let context = context.map_err(|e| e.to_string())?;
                let name = name.unwrap_or(&seen[0]).to_owned();
                let device = Device {
                    verbs,
                    context,
                    name,
                };
                // SAFETY: the context is open: `device` closes it when it is dropped.
                match unsafe { ops::missing_fast_op(device.context.as_ptr()) } {
                    Some(op) => Err(format!("{} has no {op}", device.name)),
                    None => Ok(Rc::new(device)),
                }
            }
            None => Err(format!(
                "no device {}; there are: {}",
                name.unwrap_or("at all"),
                seen.join(" ")
            )),
        }
    }

    /// Where its functions come from.
    #[must_use]
    pub fn verbs(&self) -> Verbs {
        self.verbs
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its attributes.
    ///
    /// # Errors
    /// The call's errno.
    pub fn attributes(&self) -> Result<ibv_device_attr, Failed> {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: the context is open until `self` is dropped; `attr` is writable.
        let errno = unsafe { self.verbs.query_device(self.context.as_ptr(), &mut attr) };
        outcome("ibv_query_device", errno).map(|()| attr)
    }

    /// The attributes of a port, counted from 1.
    ///
    /// # Errors
    /// The call's errno.
    pub fn port(&self, port: u8) -> Result<ibv_port_attr, Failed> {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: the context is open until `self` is dropped and of this table; `attr` is writable.
        let errno =
            unsafe { ops::ibv_query_port(&self.verbs, self.context.as_ptr(), port, &mut attr) };
        outcome("ibv_query_port", errno).map(|()| attr)
    }

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// The call's errno.
    pub fn gid(&self, port: u8, index: u8) -> Result<ibv_gid, Failed> {
        let mut gid = ibv_gid::zeroed();
        let at = c_int::from(index);
        // SAFETY: the context is open until `self` is dropped; `gid` is writable.
        let result = unsafe { (self.verbs).query_gid(self.context.as_ptr(), port, at, &mut gid) };
        match result {
            0 => Ok(gid),
            _ => Err(failed(format!(
                "ibv_query_gid of port {port}, index {index}"
            ))),
        }
    }

    /// The next asynchronous event, if one comes within `patience`. It is acknowledged here, so that no destroy waits.
    ///
    /// # Errors
    /// What a failed wait or `ibv_get_async_event` left in errno.
    pub fn event(&self, patience: Duration) -> Result<Option<Event>, Failed> {
        // SAFETY: the context is open until `self` is dropped; the number is copied out.
        let fd = unsafe { (*self.context.as_ptr()).async_fd };
        if !readable(fd, patience)? {
            return Ok(None);
        }
        let mut event = ibv_async_event::zeroed();
        // SAFETY: the context is open until `self` is dropped; `event` is writable.
        if unsafe { (self.verbs).get_async_event(self.context.as_ptr(), &mut event) } != 0 {
            return Err(failed("ibv_get_async_event"));
        }
        let kind = event.event_type;
        // SAFETY: the type says which member of the element is valid. Its object is alive: destroying it would wait for
        // the acknowledgement below, and this thread is the only one that destroys.
        let subject = unsafe {
            match kind.element() {
                Some(EventElement::Cq) => Subject::Cq(event.element.cq.addr()),
                Some(EventElement::Qp) => Subject::Qp((*event.element.qp).qp_num),
                Some(EventElement::Srq) => Subject::Srq(event.element.srq.addr()),
                Some(EventElement::Port) => Subject::Port(event.element.port_num),
                _ => Subject::Other,
            }
        };
        // SAFETY: the event that was just got, acknowledged once.
        unsafe { self.verbs.ack_async_event(&mut event) };
        Ok(Some(Event { kind, subject }))
    }
}

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its kind.
    pub kind: ibv_event_type,
    /// What it is about.
    pub subject: Subject,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A CQ, by [`Cq::id`](super::Cq::id).
    Cq(usize),
    /// A QP, by its number.
    Qp(u32),
    /// An SRQ, by [`Srq::id`](super::Srq::id).
    Srq(usize),
    /// A port, counted from 1.
    Port(c_int),
    /// The device, or what these programs do not use.
    Other,
}

/// Waits until a descriptor of the verbs objects here can be read; says whether it can.
pub(super) fn readable(fd: c_int, patience: Duration) -> Result<bool, Failed> {
    // SAFETY: the descriptor of a live object of this module, which closes it no earlier than its drop.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let patience = Timespec::try_from(patience).ok();
    match poll(&mut fds, patience.as_ref()) {
        Ok(ready) => Ok(ready != 0),
        Err(errno) => Err(Failed {
            call: "poll".to_owned(),
            errno: errno.raw_os_error(),
        }),
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened once, closed here only; all objects on it own it, so they are gone.
        let result = unsafe { self.verbs.close_device(self.context.as_ptr()) };
        if result != 0 {
            eprintln!("{}", failed("ibv_close_device"));
        }
    }
}
