//! The libibverbs ABI in Rust.

#[macro_use]
mod macros;
#[doc(hidden)]
pub mod layout;
mod types;

pub use types::*;
