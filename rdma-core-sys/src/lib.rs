//! The libibverbs ABI in Rust.

#[macro_use]
mod macros;
#[doc(hidden)]
pub mod layout;
pub mod rules;
mod types;

pub use types::*;
