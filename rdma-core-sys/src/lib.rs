//! The libibverbs ABI in Rust: types, function table, loaders, inline operations, and the rules of Queue Pairs as data.
//!
//! - The types of `infiniband/verbs.h` under their C names, flat in this crate ([`ibv_qp`], [`ibv_wc`] ...). Enums are
//!   transparent integers with named constants, masks are `bitflags` types: an unknown value is data.
//! - [`Verbs`]: what libibverbs exports, as a table of function pointers. It comes from rdma-core, which is looked for while
//!   the program runs (no headers and no library are needed to build), or from a device written in Rust.
//! - [`ops`]: what the header does inline, through pointers inside the objects.
//! - [`dispatch`]: which table an object belongs to, where a process has several.
//! - [`rules`]: which moves of a QP are allowed with which attributes, checked before any call.
//!
//! Everything that touches an object is `unsafe`, with C's contract; the safe layer is the crate `rdma-qp`.
//!
//! ```
//! use rdma_core_sys::{LoadError, Verbs, ops};
//! use std::ffi::CStr;
//!
//! match Verbs::open() {
//!     Ok(verbs) => {
//!         let mut count = 0;
//!         // SAFETY: `count` is writable; the list is read up to its count and freed once, after the last use of a name.
//!         unsafe {
//!             let list = verbs.get_device_list(&mut count);
//!             if list.is_null() {
//!                 println!("no device list: {}", std::io::Error::from_raw_os_error(ops::errno()));
//!             } else {
//!                 for i in 0..count as usize {
//!                     println!("{}", CStr::from_ptr(verbs.get_device_name(*list.add(i))).to_string_lossy());
//!                 }
//!                 verbs.free_device_list(list);
//!             }
//!         }
//!     }
//!     Err(error @ LoadError::Library { .. }) => println!("{error}"),
//!     Err(error) => panic!("a broken libibverbs: {error}"),
//! }
//! ```

#[macro_use]
mod macros;
pub mod dispatch;
#[doc(hidden)]
pub mod layout;
pub mod ops;
pub mod rules;
mod types;
mod verbs;

pub use types::*;
pub use verbs::{DlError, Functions, LoadError, Verbs};
