//! What the declarations of this crate claim about C, as data: for the tests that ask a C compiler the same questions.

use crate::types::{ALL_LAYOUTS, ALL_VALUES};

/// Size, alignment and field offsets of one type of `infiniband/verbs.h`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name of the Rust type, which is the C tag too unless `within` is set.
    pub name: &'static str,
    /// `struct` or `union`.
    pub kind: &'static str,
    /// For a type without a tag in C: the C type that holds it and the member path to it, empty for an anonymous member.
    pub within: Option<(&'static str, &'static str)>,
    /// `sizeof`.
    pub size: usize,
    /// `_Alignof`.
    pub align: usize,
    /// C field name and `offsetof`, in order.
    pub fields: &'static [(&'static str, usize)],
}

/// The C name of a constant and its value.
pub type Value = (&'static str, i64);

/// The layout of every type that this crate declares.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    ALL_LAYOUTS.iter().copied().flatten()
}

/// The value of every constant of an enum or a mask that this crate declares.
pub fn values() -> impl Iterator<Item = &'static Value> {
    ALL_VALUES.iter().copied().flatten()
}
