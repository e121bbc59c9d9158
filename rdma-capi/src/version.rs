//! The version, from Cargo.toml.

use std::ffi::{CStr, c_char};

use crate::export::export;

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version with a zero byte"),
    };

export! {
    /// Gives the version of the library that runs, such as "0.1.0"; QP_VERSION is that of the header. Both come from one
    /// source. The string is static.
    fn qp_version() -> *const c_char, else c"".as_ptr(); {
        VERSION.as_ptr()
    }
}
