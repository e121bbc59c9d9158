use super::*;
use core::ptr::{from_ref, null_mut};

/// Two copies of a device: each finds an address of its own behind every name.
unsafe extern "C" fn find_a(_: *const c_char) -> *mut c_void {
    find_a as *mut c_void
}

unsafe extern "C" fn find_b(name: *const c_char) -> *mut c_void {
    // SAFETY: `ask` passes C strings.
    match unsafe { CStr::from_ptr(name) } {
        // As a copy that is older than the function.
        name if name == c"ibv_query_port_speed" => null_mut(),
        _ => find_b as *mut c_void,
    }
}

// SAFETY: no function that they give is called in these tests.
static A: Mark = unsafe { Mark::new(find_a) };
// SAFETY: as above.
static B: Mark = unsafe { Mark::new(find_b) };

/// What libibverbs has behind `priv`: a bitmap of operations, then more.
#[repr(C)]
struct RealPrivate {
    unsupported: [usize; 2],
    rest: [usize; 8],
}

fn extended(private: *mut verbs_ex_private) -> Box<verbs_context> {
    let mut context = Box::new(verbs_context::zeroed());
    context.sz = size_of::<verbs_context>();
    context.priv_ = private;
    context.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut c_void;
    context
}

/// The table of the context in an extended one.
fn of_context(context: &mut verbs_context) -> Option<&'static Verbs> {
    // The whole extended context may be reached from the pointer.
    let seen = (&raw mut *context)
        .cast::<ibv_context>()
        .wrapping_byte_add(offset_of!(verbs_context, context));
    // SAFETY: a live context, which lies inside an extended one where it says so.
    unsafe { table_of(seen) }
}

#[test]
fn marked_objects_lead_to_the_copy_that_made_them() {
    for (mark, own) in [(&A, find_a as Find), (&B, find_b as Find)] {
        let mut device = ibv_device::zeroed();
        device._ops = mark.device_ops();
        // SAFETY: a live device.
        let verbs = unsafe { table_of(&raw mut device) }.expect("marked");
        assert_eq!(verbs.get_device_list as *mut c_void, own as *mut c_void);
        let lacks: Vec<_> = verbs.missing().map(|(name, _)| name).collect();
        let older = own as *mut c_void == find_b as *mut c_void;
        assert_eq!(
            lacks,
            if older {
                &["ibv_query_port_speed"][..]
            } else {
                &[]
            }
        );

        let mut context = extended(mark.context_priv());
        let same = of_context(&mut context).expect("marked");
        assert!(core::ptr::eq(same, verbs), "one table for a copy");

        let mut qp = ibv_qp::zeroed();
        qp.context = (&raw mut *context)
            .cast::<ibv_context>()
            .wrapping_byte_add(offset_of!(verbs_context, context));
        // SAFETY: a live QP in a live context.
        let same = unsafe { table_of(&raw mut qp) }.expect("marked");
        assert!(core::ptr::eq(same, verbs));
    }
}

#[test]
fn what_libibverbs_makes_is_not_taken_for_marked() {
    let mut device = ibv_device::zeroed();
    device.name[0] = b'm' as c_char;
    // SAFETY: a live device.
    assert!(unsafe { table_of(&raw mut device) }.is_none());

    // Any provider with up to so many operations; the mark's own bits, as far as operations can have them.
    let within = (1 << (MOST_OPERATIONS - usize::BITS)) - 1;
    let find = find_a as *mut c_void as usize;
    for unsupported in [
        [0, 0],
        [usize::MAX, within],
        [find, MAGIC & within],
        [find, MAGIC | !within],
        [usize::MAX, usize::MAX],
    ] {
        let private = RealPrivate {
            unsupported,
            rest: [7; 8],
        };
        let mut context = extended(from_ref(&private).cast_mut().cast());
        assert!(of_context(&mut context).is_none(), "{unsupported:x?}");
    }
    assert!(of_context(&mut extended(null_mut())).is_none());

    // Nothing lies in front of a context that does not say so, and not everything in front of a short one.
    let mut plain = extended(A.context_priv());
    plain.context.abi_compat = null_mut();
    assert!(of_context(&mut plain).is_none());
    for since in [
        // rdma-core v19: its private part may be shorter than a mark.
        offset_of!(verbs_context, read_counters),
        offset_of!(verbs_context, query_device_ex),
    ] {
        let mut short = extended(A.context_priv());
        short.sz -= since;
        assert!(of_context(&mut short).is_none());
    }
    // rdma-core v20.
    let mut enough = extended(A.context_priv());
    enough.sz -= offset_of!(verbs_context, alloc_null_mr);
    assert!(of_context(&mut enough).is_some());

    let mut pd = ibv_pd::zeroed();
    // SAFETY: a live PD without a context, and null.
    unsafe {
        assert!(table_of(&raw mut pd).is_none());
        assert!(table_of(null_mut::<ibv_pd>()).is_none());
    }
}

#[test]
fn a_table_knows_its_functions_by_name() {
    let mut device = ibv_device::zeroed();
    device._ops = B.device_ops();
    // SAFETY: a live device.
    let verbs = unsafe { table_of(&raw mut device) }.expect("marked");
    assert_eq!(verbs.symbol(c"ibv_create_qp"), Some(find_b as *mut c_void));
    assert_eq!(verbs.symbol(c"ibv_query_port_speed"), None);
    assert_eq!(verbs.symbol(c"ibv_create_flow"), None, "not in the table");
}
