//! The three declaration macros of this crate: C structs, C enums and C bit masks.
//!
//! Each declares the Rust type, asserts at compile time what C says of it, and records the same facts as data, so that
//! the tests which ask a C compiler derive their questions from the declarations and not from a second list.

/// Types for which all-zero bytes are a valid value: what `zeroed()` of a C struct rests on.
///
/// # Safety
/// Implement it only for types whose all-zero bit pattern is a valid value.
pub(crate) unsafe trait Zeroable {}

macro_rules! zeroable {
    ($($t:ty),*) => { $(
        // SAFETY: an integer or pthread object (plain bytes, all-zero = the static initialiser of glibc) of zero bytes is valid.
        unsafe impl Zeroable for $t {}
    )* };
}
zeroable!(
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    u64,
    i64,
    usize,
    isize,
    libc::pthread_mutex_t,
    libc::pthread_cond_t,
    libc::timespec
);

// SAFETY: the null pointer is a valid raw pointer.
unsafe impl<T> Zeroable for *mut T {}
// SAFETY: the null pointer is a valid raw pointer.
unsafe impl<T> Zeroable for *const T {}
// SAFETY: each element is valid when zero, so the array is.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

macro_rules! zeroable_fn {
    ($($a:ident)*) => {
        // SAFETY: `None` of an optional function pointer is guaranteed to be the null pointer, hence all zero bytes.
        unsafe impl<$($a,)* R> Zeroable for Option<unsafe extern "C" fn($($a),*) -> R> {}
    };
}
zeroable_fn!();
zeroable_fn!(A);
zeroable_fn!(A B);
zeroable_fn!(A B C);
zeroable_fn!(A B C D);
zeroable_fn!(A B C D E);
zeroable_fn!(A B C D E F);

/// Declares C structs (or unions) with the layout that x86-64 C gives them.
///
/// `pub struct name [size, align]`, each field `name: type = offset`. `(c "base" "path.")` names a type that is
/// anonymous in C: the struct that holds it and the member path to it (empty for an anonymous member). A field may say `as c_name` where C spells it
/// differently (anonymous unions).
macro_rules! c_struct {
    ($(
        $(#[$meta:meta])*
        pub $kind:ident $name:ident $(($c:ident $base:literal $path:literal))? [$size:literal, $align:literal] {
            $( $(#[$fmeta:meta])* pub $field:ident : $ty:ty = $off:literal $(as $cname:literal)? ),* $(,)?
        }
    )*) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub $kind $name { $( $(#[$fmeta])* pub $field: $ty, )* }

        impl $name {
            /// A value of all zero bytes, which is what `memset(&x, 0, sizeof x)` gives in C.
            #[must_use]
            pub const fn zeroed() -> Self {
                // SAFETY: every field type implements `Zeroable` (asserted below at compile time), and padding may hold anything.
                unsafe { core::mem::zeroed() }
            }
        }

        impl Default for $name {
            /// The same as `zeroed()`.
            fn default() -> Self { Self::zeroed() }
        }

        // SAFETY: every field type is `Zeroable`, asserted right below.
        unsafe impl $crate::macros::Zeroable for $name {}

        const _: () = {
            const fn zeroable<T: $crate::macros::Zeroable>() {}
            $( zeroable::<$ty>(); )*
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            {
                assert!(core::mem::size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
                assert!(core::mem::align_of::<$name>() == $align, concat!("alignment of ", stringify!($name)));
                $( assert!(core::mem::offset_of!($name, $field) == $off, concat!("offset of ", stringify!($name), ".", stringify!($field))); )*
            }
        };

        c_struct!(@debug $kind $name { $($field)* });
    )*
        /// The layouts of this file's types.
        pub(super) const LAYOUTS: &[$crate::layout::Layout] = &[$(
            $crate::layout::Layout {
                name: stringify!($name),
                kind: stringify!($kind),
                within: c_struct!(@within $($base, $path)?),
                size: core::mem::size_of::<$name>(),
                align: core::mem::align_of::<$name>(),
                fields: &[ $( (c_struct!(@cname $field $($cname)?), core::mem::offset_of!($name, $field)) ),* ],
            }
        ),*];
    };
    (@within) => { None };
    (@within $base:literal, $path:literal) => { Some(($base, $path)) };
    (@cname $field:ident) => { stringify!($field) };
    (@cname $field:ident $cname:literal) => { $cname };
    (@debug struct $name:ident { $($field:ident)* }) => {
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)) $( .field(stringify!($field), &self.$field) )* .finish()
            }
        }
    };
    (@debug union $name:ident { $($field:ident)* }) => {
        impl core::fmt::Debug for $name {
            /// Names the union only: which member is valid is known to whoever filled it.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

/// Declares a C enum as a transparent integer with named constants; an unknown value is data, never undefined behaviour.
macro_rules! c_enum {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident : $repr:ty {
            $( $(#[$vmeta:meta])* $v:ident = $val:expr ),* $(,)?
        }
    )*) => { $(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $repr);

        impl $name {
            $( $(#[$vmeta])* pub const $v: Self = Self($val); )*

            /// Every named value, in the order of the header.
            pub const ALL: &'static [Self] = &[ $( Self::$v ),* ];

            /// The C name of the value, `None` when this crate does not know it.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$v => Some(stringify!($v)), )*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $name {
            /// The C name, or `type(number)` for an unknown value.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }

        // SAFETY: an integer in a transparent wrapper: zero is a valid value.
        unsafe impl $crate::macros::Zeroable for $name {}

        $( $(#[$vmeta])* pub const $v: $name = $name::$v; )*

    )*
        /// The values of this file's enums.
        pub(super) const ENUM_VALUES: &[$crate::layout::Value] = &[$( $( (stringify!($v), $name::$v.0 as i64) ),* ),*];
    };
}

/// Declares a C bit mask as a `bitflags` type (bits this crate does not name are kept by `from_bits_retain`).
macro_rules! c_flags {
    ($(
        $(#[$meta:meta])*
        pub flags $name:ident : $repr:ty {
            $( $(#[$($vmeta:tt)*])* $v:ident = $val:expr ),* $(,)?
        }
    )*) => { $(
        bitflags::bitflags! {
            $(#[$meta])*
            #[repr(transparent)]
            #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
            pub struct $name: $repr {
                $( $(#[$($vmeta)*])* const $v = $val; )*
            }
        }

        // SAFETY: an integer in a transparent wrapper: zero is a valid value.
        unsafe impl $crate::macros::Zeroable for $name {}

        $( $(#[$($vmeta)*])* pub const $v: $name = $name::$v; )*

    )*
        /// The values of this file's masks.
        pub(super) const FLAG_VALUES: &[$crate::layout::Value] = &[$( $( (stringify!($v), $name::$v.bits() as i64) ),* ),*];
    };
}
