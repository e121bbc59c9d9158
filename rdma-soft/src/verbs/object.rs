//! C objects of this device: the ABI's struct first, our part behind it.

use std::ptr::null_mut;

use rdma_core_sys::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_dm, ibv_mr, ibv_mw, ibv_pd,
    ibv_qp, ibv_qp_ex, ibv_srq, ibv_td, ibv_xrcd,
};
use rustix::io::Errno;

use super::ah::AhObject;
use super::channel::Channel;
use super::context::Context;
use super::cq::CqObject;
use super::dm::DmObject;
use super::mr::MrObject;
use super::mw::MwObject;
use super::pd::{Member, PdObject};
use super::qp::QpObject;
use super::srq::SrqObject;
use super::td::TdObject;
use super::xrcd::XrcdObject;
use crate::core::CallError;

/// A pointer that names no object of this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotOurs {
    /// It is null or misaligned.
    Nothing(&'static str),
    /// The object is of another verbs provider.
    Foreign(&'static str),
    /// A child uses what its parent opened: the node's thread is not in the child, and its sockets are
    /// the parent's.
    Inherited,
}

impl From<NotOurs> for Errno {
    fn from(wrong: NotOurs) -> Errno {
        match wrong {
            NotOurs::Nothing(_) | NotOurs::Foreign(_) => Errno::INVAL,
            NotOurs::Inherited => Errno::IO,
        }
    }
}

impl From<NotOurs> for CallError {
    fn from(wrong: NotOurs) -> CallError {
        let why = match wrong {
            NotOurs::Nothing(kind) => format!("the {kind} is null or misaligned"),
            NotOurs::Foreign(kind) => format!("the {kind} is of another verbs provider"),
            NotOurs::Inherited => {
                "the device was opened by a parent of this process: open it again".to_owned()
            }
        };
        CallError::new(wrong.into(), why)
    }
}

/// A C struct that a verbs call hands out a pointer to.
pub(super) trait Abi: Sized {
    /// What is allocated for it: the newest struct that starts with it.
    type Block;
    /// Our part.
    type Soft: 'static;
    /// Its name.
    const NAME: &'static str;
    /// Its `context` field.
    ///
    /// # Safety
    /// `this` points to a live object.
    unsafe fn context(this: *mut Self) -> *mut ibv_context;
    /// The protection domain that it is made in; null for none.
    fn pd(_block: &Self::Block) -> *mut ibv_pd {
        null_mut()
    }
}

macro_rules! abi {
    ($($abi:ty: $block:ty, $soft:ty $(, in $($pd:ident).+)?;)*) => { $(
        impl Abi for $abi {
            type Block = $block;
            type Soft = $soft;
            const NAME: &'static str = stringify!($abi);

            unsafe fn context(this: *mut Self) -> *mut ibv_context {
                // SAFETY: the caller vouches that `this` points to a live object, whose first field
                // was set when it was created.
                unsafe { (*this).context }
            }

            $(fn pd(block: &$block) -> *mut ibv_pd {
                block.$($pd).+
            })?
        }
    )* };
}

abi! {
    ibv_pd: ibv_pd, PdObject;
    ibv_mr: ibv_mr, MrObject, in pd;
    ibv_comp_channel: ibv_comp_channel, Channel;
    ibv_cq: ibv_cq_ex, CqObject;
    ibv_qp: ibv_qp_ex, QpObject, in qp_base.pd;
    ibv_srq: ibv_srq, SrqObject, in pd;
    ibv_ah: ibv_ah, AhObject, in pd;
    ibv_mw: ibv_mw, MwObject, in pd;
    ibv_xrcd: ibv_xrcd, XrcdObject;
    ibv_td: ibv_td, TdObject;
    ibv_dm: ibv_dm, DmObject;
}

/// One allocation: the ABI's struct, which C reads and writes, then our part.
#[repr(C)]
struct Object<A: Abi> {
    block: A::Block,
    soft: A::Soft,
    /// Counts it as made in a parent domain.
    member: Option<Member>,
}

/// Allocates an object. Its protection domain, if it has one, is live: the caller has used it.
pub(super) fn create<A: Abi>(block: A::Block, soft: A::Soft) -> *mut A {
    let member = member_of(A::pd(&block));
    Box::into_raw(Box::new(Object::<A> {
        block,
        soft,
        member,
    }))
    .cast()
}

/// Counts one object more as made in `pd`, if that is a parent domain.
fn member_of(pd: *mut ibv_pd) -> Option<Member> {
    // SAFETY: null, or a PD that the creating call was passed and found live.
    unsafe { self::soft(pd) }.ok().and_then(PdObject::member)
}

/// Follows an object that was moved to another protection domain.
///
/// # Safety
/// `this` came from [`create`] and is live, `pd` is a live PD, and no other call works on `this`.
pub(super) unsafe fn moved<A: Abi>(this: *mut A, pd: *mut ibv_pd) {
    // SAFETY: made by `create` by the caller's promise; nobody else uses the field meanwhile.
    unsafe { (*this.cast::<Object<A>>()).member = member_of(pd) };
}

/// Our part of an object.
///
/// # Errors
/// `EINVAL` for a null or misaligned pointer, and for an object of another device library; `EIO` in a
/// child of the process that made it.
///
/// # Safety
/// `this` is null or points to a live object of its kind, of this or another verbs provider; it
/// stays alive while the result is used (who destroys an object while using it breaks verbs).
pub(super) unsafe fn soft<'a, A: Abi>(this: *mut A) -> Result<&'a A::Soft, NotOurs> {
    // SAFETY: the caller's promise.
    let (context, soft) = unsafe { of_any_process(this)? };
    context.of_this_process()?;
    Ok(soft)
}

/// Our part of the context that an object belongs to.
///
/// # Errors
/// As [`soft`].
///
/// # Safety
/// As [`soft`].
pub(super) unsafe fn context<'a, A: Abi>(this: *mut A) -> Result<&'a Context, NotOurs> {
    // SAFETY: the caller's promise.
    let (context, _) = unsafe { of_any_process(this)? };
    context.of_this_process()
}

/// Our parts of an object and of the context that it belongs to; in a child those of the parent, too, which may use nothing that
/// a thread or a lock of the parent is needed for.
///
/// # Errors
/// `EINVAL` as [`soft`].
///
/// # Safety
/// As [`soft`].
pub(super) unsafe fn of_any_process<'a, A: Abi>(
    this: *mut A,
) -> Result<(&'a Context, &'a A::Soft), NotOurs> {
    if this.is_null() || !this.is_aligned() {
        return Err(NotOurs::Nothing(A::NAME));
    }
    // SAFETY: a live object by the caller's promise, so its context is live too; any provider's
    // context may be asked about.
    let context = unsafe { super::context::soft_of_any_process(A::context(this)) };
    let context = context.map_err(|_| NotOurs::Foreign(A::NAME))?;
    // SAFETY: the object's context is one of ours, so the object was made by `create`, and our part
    // lies behind the block. No reference to the block is made, which C may write.
    Ok((context, unsafe { &(*this.cast::<Object<A>>()).soft }))
}

/// The object that a field of an argument names; `None` for null.
///
/// # Errors
/// `EINVAL` for an object of another context.
///
/// # Safety
/// `this` is null or a live object of some verbs provider.
pub(super) unsafe fn named<'a, A: Abi>(
    ctx: *mut ibv_context,
    field: &str,
    this: *mut A,
) -> Result<Option<&'a A::Soft>, CallError> {
    if this.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let (found, of) = unsafe { (soft(this)?, A::context(this)) };
    if of != ctx {
        return Err(CallError::invalid(format!(
            "{field} belongs to another context: what works together is made in one"
        )));
    }
    Ok(Some(found))
}

/// Frees an object.
///
/// # Safety
/// `this` came from [`create`], and nobody uses it any more.
pub(super) unsafe fn free<A: Abi>(this: *mut A) {
    // SAFETY: made by `Box::into_raw` in `create` with this very type, and not used any more, by
    // the caller's promise.
    drop(unsafe { Box::from_raw(this.cast::<Object<A>>()) });
}
