//! What queries write over what was there before.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use rdma_core_sys::*;

use super::{Device, Failed, outcome};

impl Device {
    /// What `ibv_query_device` makes of an `ibv_device_attr` whose bytes all are `byte`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn device_over(&self, byte: u8) -> Result<ibv_device_attr, Failed> {
        let context = self.context.as_ptr();
        over(byte, "ibv_query_device", |attr| {
            // SAFETY: the context is open until `self` is dropped; `attr` is writable.
            unsafe { self.verbs.query_device(context, attr) }
        })
    }

    /// What `ibv_query_device_ex` makes of an `ibv_device_attr_ex` whose bytes all are `byte`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn device_ex_over(&self, byte: u8) -> Result<ibv_device_attr_ex, Failed> {
        let (context, input) = (self.context.as_ptr(), std::ptr::null());
        over(byte, "ibv_query_device_ex", |attr| {
            // SAFETY: the context is open until `self` is dropped and of this table; there may be no input; `attr` is
            // writable.
            unsafe { ops::ibv_query_device_ex(&self.verbs, context, input, attr) }
        })
    }

    /// What `ibv_query_port` makes of an `ibv_port_attr` whose bytes all are `byte`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn port_over(&self, port: u8, byte: u8) -> Result<ibv_port_attr, Failed> {
        let context = self.context.as_ptr();
        over(byte, "ibv_query_port", |attr| {
            // SAFETY: the context is open until `self` is dropped and of this table; `attr` is writable.
            unsafe { ops::ibv_query_port(&self.verbs, context, port, attr) }
        })
    }

    /// What `ibv_query_gid_ex` makes of an `ibv_gid_entry` whose bytes all are `byte`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn gid_over(&self, port: u8, index: u8, byte: u8) -> Result<ibv_gid_entry, Failed> {
        let context = self.context.as_ptr();
        over(byte, "ibv_query_gid_ex", |entry| {
            let (port, index) = (port.into(), index.into());
            // SAFETY: the context is open until `self` is dropped and of this table; `entry` is writable.
            unsafe { ops::ibv_query_gid_ex(&self.verbs, context, port, index, entry, 0) }
        })
    }
}

/// What a call, which gives 0 or an errno value, makes of a structure whose bytes all are `byte`.
fn over<T: Numbers>(byte: u8, name: &str, call: impl FnOnce(*mut T) -> c_int) -> Result<T, Failed> {
    let mut value = MaybeUninit::<T>::uninit();
    let at = value.as_mut_ptr();
    // SAFETY: the room is for one T, and this writes all of it.
    unsafe { at.write_bytes(byte, 1) };
    outcome(name, call(at))?;
    // SAFETY: every byte was written above, the call wrote numbers over some, and T takes any by its trait.
    Ok(unsafe { value.assume_init() })
}

/// Structures of nothing but numbers, every value of which is one.
///
/// # Safety
/// Whatever bytes a value has, it is valid.
unsafe trait Numbers {}
// SAFETY: integers, arrays of them and structures of them; C's enums are integers in this library.
unsafe impl Numbers for ibv_device_attr {}
// SAFETY: as above.
unsafe impl Numbers for ibv_device_attr_ex {}
// SAFETY: as above.
unsafe impl Numbers for ibv_port_attr {}
// SAFETY: as above; a GID is its bytes.
unsafe impl Numbers for ibv_gid_entry {}
