//! The software device for programs that know nothing of it: a shared object for `LD_PRELOAD`.
//!
//! It stands in front of libibverbs. Each function that libibverbs exports is here under the same name and version; it asks
//! the object that it is given which table it belongs to ([`rdma_core_sys::dispatch`]), and hands the call there. So the
//! devices of libibverbs, if there are any, work as they do without it, beside those of the software device, and beside those
//! of a copy of the software device that the program itself contains. `ibv_get_device_list` gives first the real devices,
//! then ours.
//!
//! - `verbs`: the exported functions, and which table each call goes to.
//! - `devices`: the list of devices, and opening ours.
//! - `real`: where libibverbs is, if it is.
//! - `loading`: programs that load libibverbs by hand get this library.
//! - `facade`: the paths below /dev and /sys at which programs look for devices.
//! - `report`: what is told at the end of a process. `record`: what is written for `qp doctor` while it runs. `ending`: how both
//!   do without keeping a process from its end.
//!
//! The environment's `RDMA_SOFT_*` variables say what the device is ([`rdma_soft::profile`]); `qp run` sets them.
#![deny(unsafe_code)]

mod devices;
mod ending;
mod facade;
mod loading;
mod real;
mod record;
mod report;
mod verbs;

use rdma_soft::say;
