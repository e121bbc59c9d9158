//! What the declarations of this crate claim about C, as data: for the test that asks a C compiler the same questions.

/// Size, alignment and field offsets of one type of `infiniband/verbs.h`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name of the Rust type, which is the C tag too unless `within` is set.
    pub name: &'static str,
    /// `struct` or `union`.
    pub kind: &'static str,
    /// For a type without a tag in C: the C type that holds it and the member path to it.
    pub within: Option<(&'static str, &'static str)>,
    /// `sizeof`.
    pub size: usize,
    /// `_Alignof`.
    pub align: usize,
    /// C field name and `offsetof`, in order.
    pub fields: &'static [(&'static str, usize)],
}

/// C names of constants and their values.
pub type Values = &'static [(&'static str, i64)];

/// Implemented by every struct and union that this crate declares.
pub trait HasLayout {
    /// What this crate takes the C layout to be.
    const LAYOUT: Layout;
}

/// Implemented by every enum and bit mask that this crate declares.
pub trait HasValues {
    /// The named constants and what this crate takes their values to be.
    const VALUES: Values;
}
