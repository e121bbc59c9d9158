//! Devices: real ones, and the software device; their ports and events.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;

use rdma_core_sys::*;
use rdma_qp::{AsyncEvent, Device, GidEntry, OpenError};
use rdma_soft::Profile;

use crate::errors::in_use;
use crate::export::{Out, Room, Text, export, put_text};
use crate::fault::*;
use crate::modify::narrow;
use crate::slots::{Held, Kind, Later, Object, insert};
use crate::values::deadline;
use crate::verbs::verbs;

/// An open device. Any number of calls may be under way with it.
#[allow(non_camel_case_types)]
pub struct qp_device {
    _never: [u8; 0],
}

// SAFETY: no other type has this kind.
unsafe impl Object for Device {
    type C = qp_device;
    const KIND: Kind = Kind::Device;
}

/// Something that happened to a device, a port, a Queue Pair or an SRQ.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_event {
    /// What: one of enum ibv_event_type.
    pub kind: u32,
    /// To what: the number of the Queue Pair, of the port, or of the SRQ (qp_srq_number()); 0 for all else.
    pub number: u32,
}

/// An event as C has it.
pub(crate) fn event_of(event: &AsyncEvent) -> qp_event {
    let number = match *event {
        AsyncEvent::Qp { qp_num, .. } => qp_num,
        AsyncEvent::Port { port, .. } => port.into(),
        AsyncEvent::Srq { srq, .. } => srq,
        _ => 0,
    };
    qp_event {
        kind: event.kind().0,
        number,
    }
}

/// An event that C has.
pub(crate) fn event_from(event: &qp_event) -> AsyncEvent {
    let kind = ibv_event_type(event.kind);
    match kind {
        IBV_EVENT_PORT_ACTIVE
        | IBV_EVENT_PORT_ERR
        | IBV_EVENT_LID_CHANGE
        | IBV_EVENT_PKEY_CHANGE
        | IBV_EVENT_SM_CHANGE
        | IBV_EVENT_CLIENT_REREGISTER
        | IBV_EVENT_GID_CHANGE => AsyncEvent::Port {
            kind,
            // No port has a number that is cut off.
            port: u8::try_from(event.number).unwrap_or(0),
        },
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::Qp {
            kind,
            qp_num: event.number,
        },
        _ => AsyncEvent::Other { kind },
    }
}

/// The GID at that place of a port's table; below 0 the best one.
pub(crate) fn gid(device: &Device, port: c_int, index: c_int) -> Result<GidEntry, Fault> {
    let port = device.port(narrow("port", port.into(), 255)?)?;
    Ok(match u32::try_from(index) {
        Ok(index) => port.gid(index)?,
        Err(_) => port.best_gid()?.entry(),
    })
}

/// The profile that a text of `name = value` lines describes.
fn profile(text: &str) -> Result<Profile, Fault> {
    let mut vars = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            let text = format!("line {number} of the profile is not `name = value`: {line}");
            return Err(Fault::new(QP_CODE_TEXT, libc::EINVAL, text));
        };
        vars.push((
            format!("RDMA_SOFT_{}", name.trim().to_uppercase()),
            value.trim().to_owned(),
        ));
    }
    let wrong =
        |error: rdma_soft::ProfileError| Fault::new(QP_CODE_TEXT, libc::EINVAL, error.to_string());
    if vars.is_empty() {
        Profile::from_env()
    } else {
        Profile::from_vars(vars)
    }
    .map_err(wrong)
}

export! {
    /// Opens a device of libibverbs.
    ///
    /// @param name    Its name, such as "mlx5_0"; NULL: the first one.
    /// @param device  Where the handle goes; destroy it with qp_device_destroy().
    /// @return 0; ENODEV: there is no such device (QP_CODE_NOT_FOUND), or no libibverbs (QP_CODE_NO_VERBS); or what the
    ///         system said.
    fn qp_device_open(
        name: *const c_char as Option<Text<'_>>,
        device: *mut *mut qp_device as Out<'_, *mut qp_device>,
    ) {
        let verbs = verbs()?;
        let opened = match name {
            Some(Text(name)) => Device::open(verbs, name)?,
            None => Device::open_index(verbs, 0)?,
        };
        device.set(insert(opened)?);
        Ok(())
    }

    /// Makes a software device and opens it: RoCE v2 in user space, without hardware, driver or rights. Each call makes
    /// another node with an address of its own.
    ///
    /// @param profile  What it is like, one `name = value` a line, `#` begins a comment: the variables RDMA_SOFT_* without
    ///                 RDMA_SOFT_, in any case, such as "ports = 2\nmtu = 1024\nfaults = loss=1%,seed=7". NULL, or nothing:
    ///                 as the environment says.
    /// @param device   Where the handle goes; destroy it with qp_device_destroy().
    /// @return 0; EINVAL (QP_CODE_TEXT): the profile makes no sense; or why it could not be opened.
    fn qp_soft_open(
        profile: *const c_char as Option<Text<'_>>,
        device: *mut *mut qp_device as Out<'_, *mut qp_device>,
    ) {
        let profile = self::profile(profile.map_or("", |text| text.0))?;
        let name = rdma_soft::add_device(profile)
            .map_err(|error| Fault::new(QP_CODE_TEXT, libc::EINVAL, error.to_string()))?;
        let opened = Device::open(rdma_soft::verbs(), &name).map_err(|error| match (&error, rdma_soft::open_error(&name)) {
            (OpenError::Refused { source, .. }, Some(why)) => Fault::of(QP_CODE_SYSTEM, *source, &format!("{error}: {why}")),
            _ => error.into(),
        })?;
        device.set(insert(opened)?);
        Ok(())
    }

    /// Tells the names of the devices that libibverbs has, one a line. Arguments and result as qp_query_text().
    fn qp_device_list(
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let names: String = Device::list(verbs()?)?.into_iter().map(|info| info.name + "\n").collect();
        put_text(&names, &mut places, needed)
    }

    /// Tells the name of a device. Arguments and result as qp_query_text().
    fn qp_device_name(
        device: *mut qp_device as Held<Device>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        put_text(device.name(), &mut places, needed)
    }

    /// Tells how many ports a device has; they are counted from 1.
    fn qp_device_ports(device: *mut qp_device as Held<Device>, ports: *mut c_int as Out<'_, c_int>) {
        ports.set(device.port_count().into());
        Ok(())
    }

    /// Chooses the GID of a port that connections should use: RoCE v2, not link-local, not empty.
    ///
    /// @param index  Where its place in the port's table goes.
    /// @return 0; ENODEV: there is no such port; ENODATA: no entry will do, and qp_last_error() says why each does not.
    fn qp_device_best_gid(
        device: *mut qp_device as Held<Device>,
        port: c_int,
        index: *mut c_int as Out<'_, c_int>,
    ) {
        let entry = gid(&device, port, -1)?;
        index.set(entry.index as c_int);
        Ok(())
    }

    /// Tells the GID at a place of a port's table as text, such as "::ffff:10.0.0.5". Arguments and result as qp_query_text().
    ///
    /// @param index  The place; -1 for that of qp_device_best_gid().
    fn qp_device_gid(
        device: *mut qp_device as Held<Device>,
        port: c_int,
        index: c_int,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        put_text(&gid(&device, port, index)?.gid.to_string(), &mut places, needed)
    }

    /// Gives the descriptor that is readable when qp_device_event() has something. It is the device's: do not close it. A drain of a
    /// Queue Pair with a shared receive queue, and its move from RESET to INIT, take events off it and keep them for
    /// qp_device_event(): ask that once more after either.
    fn qp_device_event_fd(device: *mut qp_device as Held<Device>, fd: *mut c_int as Out<'_, c_int>) {
        fd.set(device.event_fd().as_raw_fd());
        Ok(())
    }

    /// Waits for the next asynchronous event of a device, and acknowledges it.
    ///
    /// @param timeout_ms  How long, in milliseconds; below 0: no limit.
    /// @param event       Where it goes.
    /// @return 0; ETIMEDOUT: there was none; or what the device said.
    fn qp_device_event(
        device: *mut qp_device as Held<Device>,
        timeout_ms: i64,
        event: *mut qp_event as Out<'_, qp_event>,
    ) {
        let Some(found) = device.next_event(deadline(timeout_ms))? else {
            return Err(Fault::new(QP_CODE_TIMED_OUT, libc::ETIMEDOUT, "no event until the deadline"));
        };
        event.set(event_of(&found));
        Ok(())
    }

    /// Gives the object of libibverbs that a device is. It is the library's, and alive until the device is destroyed.
    ///
    /// @param context  Where the pointer goes. Where it is a software device, hand it to inline functions of
    ///                 <infiniband/verbs.h> only, unless the program runs with `qp run`: libibverbs itself does not know it.
    fn qp_device_raw(device: *mut qp_device as Held<Device>, context: *mut *mut ibv_context as Out<'_, *mut ibv_context>) {
        context.set(device.as_ptr());
        Ok(())
    }

    /// Tells whether a device is a software device of this library.
    fn qp_device_is_soft(device: *mut qp_device as Held<Device>, is_soft: *mut c_int as Out<'_, c_int>) {
        // SAFETY: the context is alive: the device has it open.
        is_soft.set(unsafe { dispatch::table_of(device.as_ptr()) }.is_some().into());
        Ok(())
    }

    /// Closes a device.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): something that was made from it is left, and the device stays open.
    fn qp_device_destroy(device: *mut qp_device as Later<Device>) {
        device.destroy(|device| {
            device.close().map_err(|device| {
                let text = format!("{}: something that was made from it is left", device.name());
                (device, in_use(text))
            })
        })
    }
}
