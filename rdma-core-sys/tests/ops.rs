//! The inline operations against made-up providers: which pointer is called, with what, and what happens when it is not there.

mod common;

use rdma_core_sys::ops::*;
use rdma_core_sys::*;
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::{null, null_mut};

/// A table of functions that answer as a test wants.
fn made(functions: Functions) -> Verbs {
    // SAFETY: the stub answers every call, and what the tests put in its place is called with what it expects.
    unsafe { Verbs::new(functions) }
}

/// A context as a provider of some age makes it: `sz` bytes long altogether and not one more, so that reading further in
/// front is reading out of bounds (valgrind, AddressSanitizer and miri see it).
struct Provider {
    memory: Box<[u64]>,
}

impl Provider {
    fn extended(sz: usize, fill: impl FnOnce(&mut verbs_context)) -> Self {
        let mut whole = verbs_context::zeroed();
        whole.sz = sz;
        whole.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        fill(&mut whole);
        let words = size_of::<verbs_context>() / 8;
        // SAFETY: the struct is a multiple of 8 bytes long, 8-aligned, and all zero before it was filled, so every byte is
        // initialised.
        let all = unsafe { std::slice::from_raw_parts((&raw const whole).cast::<u64>(), words) };
        Self {
            memory: all[words - sz / 8..].into(),
        }
    }

    /// A context from before there were extended ones.
    fn classic() -> Self {
        let mut provider = Self::extended(size_of::<ibv_context>(), |_| ());
        let context = provider.context();
        // SAFETY: the context is at the end of our memory.
        unsafe { (*context).abi_compat = null_mut() };
        provider
    }

    fn context(&mut self) -> *mut ibv_context {
        let words = size_of::<ibv_context>() / 8;
        let start = self.memory.len() - words;
        self.memory[start..].as_mut_ptr().cast()
    }
}

/// A table for the functions that fall back to one. Its functions return 0; tests put their own in.
fn table(test: &str) -> Option<Verbs> {
    let dir = common::scratch(&format!("ops-{test}"));
    let Some(path) = common::Stub::whole(0).build(&dir, "libops.so") else {
        common::skip(test, "no C compiler (cc)");
        return None;
    };
    // SAFETY: the stub has no initialisers; the tests call what they put in themselves.
    Some(unsafe { Verbs::load(path) }.unwrap())
}

thread_local! {
    /// What the made-up functions were called with.
    static CALLED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

fn called(name: &'static str) {
    assert_eq!(CALLED.replace(Some(name)), None, "called twice");
}

fn was_called() -> Option<&'static str> {
    CALLED.take()
}

const WRONG: c_int = 77;
const OBJECT: usize = 0x1000;

fn object<T>() -> *mut T {
    std::ptr::without_provenance_mut(OBJECT)
}

// --- ibv_query_port: the exported symbol writes 48 bytes only ------------------------------------------------------

unsafe extern "C" fn compat_query_port(
    _: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    called("compat");
    // SAFETY: the old struct has 48 bytes.
    unsafe { attr.cast::<u8>().write_bytes(port, 48) };
    0
}

unsafe extern "C" fn old_query_port(
    _: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    called("extended");
    assert_eq!(len, 56);
    // SAFETY: the caller's struct has 56 bytes; a provider of v44 knows 52 of them.
    unsafe { attr.cast::<u8>().write_bytes(port, 52) };
    0
}

#[test]
fn query_port_leaves_no_byte_unwritten() {
    let Some(stub) = table("ops_query_port") else {
        return;
    };
    let verbs = made(Functions {
        query_port_compat: compat_query_port,
        ..*stub
    });
    let set: fn(&mut verbs_context) = |v| v.query_port = Some(old_query_port);
    // (the provider, who answers, bytes that it writes)
    let reach = size_of::<ibv_context>() + 320;
    let cases = [
        (Provider::classic(), "compat", 48),
        (Provider::extended(reach - 8, |_| ()), "compat", 48),
        (
            Provider::extended(size_of::<verbs_context>(), |_| ()),
            "compat",
            48,
        ),
        (Provider::extended(reach, set), "extended", 52),
        (
            Provider::extended(size_of::<verbs_context>(), set),
            "extended",
            52,
        ),
    ];
    for (mut provider, who, written) in cases {
        let mut attr = [0xa5_u8; 56 + 8];
        let mut aligned = std::mem::MaybeUninit::<[ibv_port_attr; 2]>::uninit();
        // SAFETY: two port attributes have room for the bytes; they are integers throughout, padding included.
        unsafe {
            let place: *mut u8 = aligned.as_mut_ptr().cast();
            place.copy_from(attr.as_ptr(), attr.len());
            assert_eq!(
                ibv_query_port(&verbs, provider.context(), 7, place.cast()),
                0
            );
            place.copy_to(attr.as_mut_ptr(), attr.len());
        }
        assert_eq!(was_called(), Some(who));
        assert_eq!(attr[..written], vec![7; written]);
        // Bytes 50 and 51 are padding, which a write of the struct may skip; no field lies there.
        for (i, byte) in attr
            .iter()
            .enumerate()
            .take(56)
            .skip(written)
            .filter(|(i, _)| ![50, 51].contains(i))
        {
            assert_eq!(*byte, 0, "byte {i} after {who}");
        }
        assert_eq!(
            attr[56..],
            [0xa5; 8],
            "nothing behind the struct is touched"
        );
    }
}

// --- the guard of every extended operation ---------------------------------------------------------------------------

/// For one operation: the bytes from it to the context (counted in the header of v44), a provider's function for it, and a
/// call through `ops`, which says `true` for the provider's answer and `false` for `EOPNOTSUPP`.
macro_rules! guards {
    ($( $op:ident $before:literal ($($ty:ty),*) -> $ret:ident, |$context:ident| $call:expr; )*) => { $( {
        unsafe extern "C" fn function($(_: $ty),*) -> guards!(@type $ret) {
            called(stringify!($op));
            guards!(@answer $ret)
        }
        let set: fn(&mut verbs_context) = |v| v.$op = Some(function);
        let reach = size_of::<ibv_context>() + $before;
        let call = |mut provider: Provider| {
            let $context = provider.context();
            set_errno(0);
            // SAFETY: the objects live on this stack frame and have the provider's context; the function uses none of them.
            let answer = unsafe { $call };
            guards!(@supported $ret, answer)
        };
        for sz in [reach, reach + 8, size_of::<verbs_context>()] {
            assert!(call(Provider::extended(sz, set)), "{} with sz {sz}", stringify!($op));
            assert_eq!(was_called(), Some(stringify!($op)));
        }
        for sz in [reach - 8, size_of::<ibv_context>() + 8] {
            assert!(!call(Provider::extended(sz, set)), "{} with sz {sz}", stringify!($op));
        }
        assert!(!call(Provider::extended(size_of::<verbs_context>(), |_| ())), "{} not set", stringify!($op));
        assert!(!call(Provider::classic()), "{} of a classic context", stringify!($op));
        assert_eq!(was_called(), None);
    } )* };
    (@type errno) => { c_int };
    (@type $object:ident) => { *mut $object };
    (@answer errno) => { WRONG };
    (@answer $object:ident) => { object() };
    (@supported errno, $answer:ident) => {{
        assert!($answer == WRONG || $answer == libc::EOPNOTSUPP);
        $answer == WRONG
    }};
    (@supported $object:ident, $answer:ident) => {{
        assert!($answer.addr() == OBJECT || $answer.is_null() && errno() == libc::EOPNOTSUPP);
        $answer.addr() == OBJECT
    }};
}

/// An object of a context, zero but for it.
macro_rules! of {
    ($ty:ident, $context:expr) => {
        &mut {
            let mut object = $ty::zeroed();
            object.context = $context;
            object
        }
    };
}

#[test]
fn an_extended_operation_is_called_only_where_it_exists() {
    let Some(verbs) = table("ops_guards") else {
        return;
    };
    let verbs = &verbs;
    guards! {
        close_xrcd 24 (*mut ibv_xrcd) -> errno, |c| ibv_close_xrcd(of!(ibv_xrcd, c));
        open_xrcd 32 (*mut ibv_context, *mut ibv_xrcd_init_attr) -> ibv_xrcd, |c| ibv_open_xrcd(c, null_mut());
        create_srq_ex 40 (*mut ibv_context, *mut ibv_srq_init_attr_ex) -> ibv_srq, |c| {
            let mut attr = ibv_srq_init_attr_ex::zeroed();
            attr.comp_mask = (IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE).bits();
            attr.srq_type = IBV_SRQT_XRC;
            ibv_create_srq_ex(verbs, c, &mut attr)
        };
        get_srq_num 48 (*mut ibv_srq, *mut u32) -> errno, |c| ibv_get_srq_num(of!(ibv_srq, c), null_mut());
        create_qp_ex 56 (*mut ibv_context, *mut ibv_qp_init_attr_ex) -> ibv_qp, |c| {
            let mut attr = ibv_qp_init_attr_ex::zeroed();
            attr.comp_mask = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).bits();
            ibv_create_qp_ex(verbs, c, &mut attr)
        };
        open_qp 64 (*mut ibv_context, *mut ibv_qp_open_attr) -> ibv_qp, |c| ibv_open_qp(c, null_mut());
        create_cq_ex 120 (*mut ibv_context, *mut ibv_cq_init_attr_ex) -> ibv_cq_ex, |c| ibv_create_cq_ex(c, null_mut());
        query_rt_values 128 (*mut ibv_context, *mut ibv_values_ex) -> errno, |c| ibv_query_rt_values_ex(c, null_mut());
        post_srq_ops 176 (*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> errno, |c| {
            let mut bad = null_mut();
            let answer = ibv_post_srq_ops(of!(ibv_srq, c), object(), &mut bad);
            assert_eq!(bad.addr(), if answer == libc::EOPNOTSUPP { OBJECT } else { 0 });
            answer
        };
        modify_cq 184 (*mut ibv_cq, *mut ibv_modify_cq_attr) -> errno, |c| ibv_modify_cq(of!(ibv_cq, c), null_mut());
        alloc_td 192 (*mut ibv_context, *mut ibv_td_init_attr) -> ibv_td, |c| ibv_alloc_td(c, null_mut());
        dealloc_td 200 (*mut ibv_td) -> errno, |c| ibv_dealloc_td(of!(ibv_td, c));
        alloc_parent_domain 208 (*mut ibv_context, *mut ibv_parent_domain_init_attr) -> ibv_pd, |c| ibv_alloc_parent_domain(c, null_mut());
        modify_qp_rate_limit 216 (*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> errno, |c| ibv_modify_qp_rate_limit(of!(ibv_qp, c), null_mut());
        free_dm 248 (*mut ibv_dm) -> errno, |c| ibv_free_dm(of!(ibv_dm, c));
        alloc_dm 256 (*mut ibv_context, *mut ibv_alloc_dm_attr) -> ibv_dm, |c| ibv_alloc_dm(c, null_mut());
        reg_dm_mr 264 (*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> ibv_mr, |c| ibv_reg_dm_mr(of!(ibv_pd, c), null_mut(), 0, 0, 0);
        alloc_null_mr 304 (*mut ibv_pd) -> ibv_mr, |c| ibv_alloc_null_mr(of!(ibv_pd, c));
        advise_mr 312 (*mut ibv_pd, ibv_advise_mr_advice, u32, *mut ibv_sge, u32) -> errno, |c| {
            ibv_advise_mr(of!(ibv_pd, c), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, null_mut(), 0)
        };
    }
}

#[test]
fn the_extended_context_is_known_by_its_mark() {
    let mut extended = Provider::extended(size_of::<verbs_context>(), |v| v.priv_ = object());
    let context = extended.context();
    // SAFETY: the context is alive, and this one's extended part is whole.
    unsafe {
        let extended = verbs_get_ctx(context);
        assert_eq!(
            extended.addr() + offset_of!(verbs_context, context),
            context.addr()
        );
        assert_eq!((*extended).sz, size_of::<verbs_context>());
        assert_eq!(verbs_get_priv(context).addr(), OBJECT);
        let mut classic = Provider::classic();
        assert!(verbs_get_ctx(classic.context()).is_null());
        assert!(verbs_get_priv(classic.context()).is_null());
    }
}

// --- what falls back to the table ---------------------------------------------------------------------------------------

unsafe extern "C" fn classic_query_device(
    _: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    called("query_device");
    // SAFETY: the attributes are writable.
    unsafe { (*attr).max_qp = 5 };
    0
}

/// Answers as its context's `cmd_fd` says.
unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    assert_eq!(len, 400);
    // SAFETY: the attributes are writable; the context is alive.
    unsafe {
        (*attr).xrc_odp_caps = 9;
        (*context).cmd_fd
    }
}

#[test]
fn query_device_ex_falls_back_to_the_classic_query() {
    let Some(stub) = table("ops_query_device") else {
        return;
    };
    let verbs = made(Functions {
        query_device: classic_query_device,
        ..*stub
    });
    let query = |mut provider: Provider| {
        let mut attr = ibv_device_attr_ex::zeroed();
        attr.comp_mask = 0xa5a5_a5a5;
        // SAFETY: the context is alive and the attributes are writable.
        let answer = unsafe { ibv_query_device_ex(&verbs, provider.context(), null(), &mut attr) };
        assert_eq!(attr.comp_mask, 0);
        (
            answer,
            attr.orig_attr.max_qp,
            attr.xrc_odp_caps,
            was_called(),
        )
    };
    let whole = size_of::<verbs_context>();
    let with = |answer| {
        Provider::extended(whole, move |v| {
            v.query_device_ex = Some(query_device_ex);
            v.context.cmd_fd = answer;
        })
    };
    assert_eq!(query(with(0)), (0, 0, 9, None));
    assert_eq!(query(with(libc::EIO)), (libc::EIO, 0, 9, None));
    let classic = (0, 5, 0, Some("query_device"));
    assert_eq!(query(with(libc::EOPNOTSUPP)), classic);
    assert_eq!(query(with(libc::ENOSYS)), classic);
    assert_eq!(query(Provider::classic()), classic);
    assert_eq!(
        query(Provider::extended(size_of::<ibv_context>() + 96, |_| ())),
        classic
    );

    let input = ibv_query_device_ex_input { comp_mask: 1 };
    // SAFETY: the context is alive, the input readable; the attributes are not reached.
    let answer =
        unsafe { ibv_query_device_ex(&verbs, Provider::classic().context(), &input, null_mut()) };
    assert_eq!((answer, was_called()), (libc::EINVAL, None));
}

unsafe extern "C" fn classic_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    called("create_qp");
    assert_eq!(pd.addr(), OBJECT);
    // SAFETY: the head of the extended attributes is the classic struct.
    assert_eq!(unsafe { (*attr).cap.max_send_wr }, 3);
    object()
}

unsafe extern "C" fn classic_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    called("create_srq");
    assert_eq!(pd.addr(), OBJECT);
    // SAFETY: the head of the extended attributes is the classic struct.
    assert_eq!(unsafe { (*attr).attr.max_wr }, 3);
    object()
}

#[test]
fn plain_qps_and_srqs_are_made_by_the_exported_functions() {
    let Some(stub) = table("ops_create") else {
        return;
    };
    let verbs = made(Functions {
        create_qp: classic_create_qp,
        create_srq: classic_create_srq,
        ..*stub
    });
    let mut provider = Provider::classic();
    let mut qp = ibv_qp_init_attr_ex::zeroed();
    qp.cap.max_send_wr = 3;
    qp.pd = object();
    let mut srq = ibv_srq_init_attr_ex::zeroed();
    srq.attr.max_wr = 3;
    srq.pd = object();
    // SAFETY: the context is alive and the attributes are readable and writable.
    unsafe {
        qp.comp_mask = IBV_QP_INIT_ATTR_PD.bits();
        assert_eq!(
            ibv_create_qp_ex(&verbs, provider.context(), &mut qp).addr(),
            OBJECT
        );
        assert_eq!(was_called(), Some("create_qp"));
        for mask in [
            IBV_SRQ_INIT_ATTR_PD,
            IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
        ] {
            srq.comp_mask = mask.bits();
            assert_eq!(
                ibv_create_srq_ex(&verbs, provider.context(), &mut srq).addr(),
                OBJECT
            );
            assert_eq!(was_called(), Some("create_srq"));
        }
        // Anything more needs the extended operation, which this context does not have.
        for mask in [
            IBV_SRQ_INIT_ATTR_TYPE,
            IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ,
        ] {
            srq.comp_mask = mask.bits();
            assert!(ibv_create_srq_ex(&verbs, provider.context(), &mut srq).is_null());
            assert_eq!((errno(), was_called()), (libc::EOPNOTSUPP, None));
        }
    }
}

thread_local! {
    static REGISTERED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

unsafe extern "C" fn reg_mr(
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    access: c_int,
) -> *mut ibv_mr {
    called("reg_mr");
    REGISTERED.set((0, access as u64));
    object()
}

unsafe extern "C" fn reg_mr_iova2(
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    called("reg_mr_iova2");
    REGISTERED.set((iova, access.into()));
    object()
}

#[test]
fn optional_access_bits_are_passed_on_or_dropped_never_refused() {
    let Some(stub) = table("ops_reg_mr") else {
        return;
    };
    let new = made(Functions {
        reg_mr,
        reg_mr_iova2: Some(reg_mr_iova2),
        ..*stub
    });
    let old = made(Functions {
        reg_mr_iova2: None,
        ..*new
    });
    let write = IBV_ACCESS_LOCAL_WRITE.bits();
    // What perftest passes: LOCAL_WRITE and RELAXED_ORDERING.
    let relaxed = 0x10_0001;
    for (verbs, access, who, got) in [
        (&new, write, "reg_mr", (0, 1)),
        (&new, relaxed, "reg_mr_iova2", (0x2000, 0x10_0001)),
        (&old, write, "reg_mr", (0, 1)),
        (&old, relaxed, "reg_mr", (0, 1)),
    ] {
        // SAFETY: the made-up functions touch neither domain nor memory.
        let mr = unsafe {
            ibv_reg_mr(
                verbs,
                null_mut(),
                std::ptr::without_provenance_mut(0x2000),
                64,
                access,
            )
        };
        assert_eq!(
            (mr.addr(), was_called(), REGISTERED.get()),
            (OBJECT, Some(who), got)
        );
    }
}

// --- memory windows ------------------------------------------------------------------------------------------------------

unsafe extern "C" fn bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    called("bind_mw");
    WRONG
}

#[test]
fn bind_mw_refuses_what_the_header_refuses() {
    let mut provider = Provider::classic();
    let context = provider.context();
    let (mut pd, mut other_pd) = (ibv_pd::zeroed(), ibv_pd::zeroed());
    let mut mr = ibv_mr {
        pd: &mut pd,
        ..ibv_mr::zeroed()
    };
    let mut foreign = ibv_mr {
        pd: &mut other_pd,
        ..ibv_mr::zeroed()
    };
    let mut mw = ibv_mw {
        context,
        pd: &mut pd,
        type_: IBV_MW_TYPE_1,
        ..ibv_mw::zeroed()
    };
    let bind = |mw: &mut ibv_mw, mr: *mut ibv_mr, addr, length| {
        let mut bind = ibv_mw_bind::zeroed();
        bind.bind_info = ibv_mw_bind_info {
            mr,
            addr,
            length,
            ..ibv_mw_bind_info::zeroed()
        };
        // SAFETY: window, domains and regions live on this stack frame; no QP is used.
        unsafe { ibv_bind_mw(null_mut(), mw, &mut bind) }
    };
    assert_eq!(
        bind(&mut mw, &mut mr, 0, 8),
        libc::EOPNOTSUPP,
        "the context has no bind_mw yet"
    );
    // SAFETY: the context is alive.
    unsafe { (*context).ops.bind_mw = Some(bind_mw) };
    assert_eq!(
        (bind(&mut mw, &mut mr, 0, 8), was_called()),
        (WRONG, Some("bind_mw"))
    );
    assert_eq!(
        (bind(&mut mw, null_mut(), 0, 0), was_called()),
        (WRONG, Some("bind_mw"))
    );
    assert_eq!(bind(&mut mw, null_mut(), 1, 0), libc::EINVAL);
    assert_eq!(bind(&mut mw, null_mut(), 0, 1), libc::EINVAL);
    assert_eq!(bind(&mut mw, &mut foreign, 0, 8), libc::EPERM);
    mw.type_ = IBV_MW_TYPE_2;
    assert_eq!(bind(&mut mw, &mut mr, 0, 8), libc::EINVAL);
    assert_eq!(was_called(), None);

    pd.context = context;
    set_errno(0);
    // SAFETY: the domain is alive; the context has neither operation.
    unsafe {
        assert!(ibv_alloc_mw(&mut pd, IBV_MW_TYPE_1).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!(ibv_dealloc_mw(&mut mw), libc::EOPNOTSUPP);
    }
}

#[test]
fn the_next_key_keeps_the_index() {
    assert_eq!(ibv_inc_rkey(0x1234_5600), 0x1234_5601);
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
}

// --- the data path -----------------------------------------------------------------------------------------------------

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller gives a QP and a place for the bad request.
    unsafe {
        *bad = wr;
        (*qp).qp_num as c_int
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a QP and a place for the bad request.
    unsafe {
        *bad = wr;
        (*qp).qp_num as c_int + 1
    }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives an SRQ and a place for the bad request.
    unsafe {
        *bad = wr;
        (*srq).handle as c_int
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller gives a CQ and room for completions.
    unsafe {
        (*wc).wr_id = (*cq).handle.into();
        n - 1
    }
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller gives a CQ.
    unsafe { (*cq).handle as c_int + solicited_only }
}

#[test]
fn the_data_path_goes_through_the_context() {
    let mut provider = Provider::classic();
    let context = provider.context();
    let names = [
        "post_send",
        "post_recv",
        "post_srq_recv",
        "poll_cq",
        "req_notify_cq",
    ];
    let setters: [fn(&mut ibv_context_ops); 5] = [
        |ops| ops.post_send = Some(post_send),
        |ops| ops.post_recv = Some(post_recv),
        |ops| ops.post_srq_recv = Some(post_srq_recv),
        |ops| ops.poll_cq = Some(poll_cq),
        |ops| ops.req_notify_cq = Some(req_notify_cq),
    ];
    // SAFETY: the context is alive; QP, CQ and SRQ live on this stack frame and have all five operations when they are used.
    unsafe {
        for (name, set) in names.iter().zip(setters) {
            assert_eq!(missing_fast_op(context), Some(*name));
            set(&mut (*context).ops);
        }
        assert_eq!(missing_fast_op(context), None);

        let mut qp = ibv_qp {
            context,
            qp_num: 40,
            ..ibv_qp::zeroed()
        };
        let mut srq = ibv_srq {
            context,
            handle: 50,
            ..ibv_srq::zeroed()
        };
        let mut cq = ibv_cq {
            context,
            handle: 60,
            ..ibv_cq::zeroed()
        };
        let (mut send, mut recv) = (ibv_send_wr::zeroed(), ibv_recv_wr::zeroed());
        let (mut bad_send, mut bad_recv) = (null_mut(), null_mut());
        assert_eq!(ibv_post_send(&mut qp, &mut send, &mut bad_send), 40);
        assert_eq!(bad_send, &raw mut send);
        assert_eq!(ibv_post_recv(&mut qp, &mut recv, &mut bad_recv), 41);
        assert_eq!(bad_recv, &raw mut recv);
        bad_recv = null_mut();
        assert_eq!(ibv_post_srq_recv(&mut srq, &mut recv, &mut bad_recv), 50);
        assert_eq!(bad_recv, &raw mut recv);
        let mut wc = ibv_wc::zeroed();
        assert_eq!(ibv_poll_cq(&mut cq, 2, &mut wc), 1);
        assert_eq!(wc.wr_id, 60);
        assert_eq!(ibv_req_notify_cq(&mut cq, 1), 61);
    }
}

// --- extended QPs and CQs ---------------------------------------------------------------------------------------------

thread_local! {
    static ARGUMENTS: Cell<[u64; 5]> = const { Cell::new([0; 5]) };
}

/// An argument as a number to compare.
trait Number {
    fn number(self) -> u64;
}

macro_rules! number {
    ($($ty:ty),*) => { $( impl Number for $ty { fn number(self) -> u64 { self as u64 } } )* };
}
number!(u8, u16, u32, u64, usize);

impl<T> Number for *mut T {
    fn number(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Number for *const T {
    fn number(self) -> u64 {
        self.addr() as u64
    }
}

/// Functions that note their name and arguments, as a QP's or CQ's pointers.
macro_rules! note {
    ($object:ident, $type:ident, $( $op:ident ($($arg:ident: $ty:ty),*) $(-> $ret:ty, $value:expr)?; )*) => { $( {
        unsafe extern "C" fn function(_: *mut $type $(, $arg: $ty)*) $(-> $ret)? {
            called(stringify!($op));
            let mut all = [0; 5];
            let arguments: &[u64] = &[$( $arg.number() ),*];
            for (place, value) in all.iter_mut().zip(arguments) {
                *place = *value;
            }
            ARGUMENTS.set(all);
            $( $value )?
        }
        $object.$op = Some(function);
    } )* };
}

#[test]
fn each_wr_call_reaches_its_pointer_with_its_arguments_in_order() {
    let mut qp = ibv_qp_ex::zeroed();
    note! { qp, ibv_qp_ex,
        wr_start(); wr_complete() -> c_int, WRONG; wr_abort();
        wr_atomic_cmp_swp(a: u32, b: u64, c: u64, d: u64); wr_atomic_fetch_add(a: u32, b: u64, c: u64);
        wr_atomic_write(a: u32, b: u64, c: *const c_void);
        wr_bind_mw(a: *mut ibv_mw, b: u32, c: *const ibv_mw_bind_info);
        wr_flush(a: u32, b: u64, c: usize, d: u8, e: u8); wr_local_inv(a: u32);
        wr_rdma_read(a: u32, b: u64); wr_rdma_write(a: u32, b: u64); wr_rdma_write_imm(a: u32, b: u64, c: u32);
        wr_send(); wr_send_imm(a: u32); wr_send_inv(a: u32); wr_send_tso(a: *mut c_void, b: u16, c: u16);
        wr_set_ud_addr(a: *mut ibv_ah, b: u32, c: u32); wr_set_xrc_srqn(a: u32);
        wr_set_inline_data(a: *mut c_void, b: usize);
        wr_set_inline_data_list(a: usize, b: *const ibv_data_buf);
        wr_set_sge(a: u32, b: u64, c: u32); wr_set_sge_list(a: usize, b: *const ibv_sge);
    }
    let q = &raw mut qp;
    let check = |op, arguments: &[u64]| {
        let mut all = [0; 5];
        all[..arguments.len()].copy_from_slice(arguments);
        assert_eq!((was_called(), ARGUMENTS.get()), (Some(op), all));
    };
    // SAFETY: the QP lives on this stack frame and all its pointers are set; the functions read nothing that pointers name.
    unsafe {
        ibv_wr_start(q);
        check("wr_start", &[]);
        assert_eq!(ibv_wr_complete(q), WRONG);
        check("wr_complete", &[]);
        ibv_wr_abort(q);
        check("wr_abort", &[]);
        ibv_wr_atomic_cmp_swp(q, 1, 2, 3, 4);
        check("wr_atomic_cmp_swp", &[1, 2, 3, 4]);
        ibv_wr_atomic_fetch_add(q, 1, 2, 3);
        check("wr_atomic_fetch_add", &[1, 2, 3]);
        ibv_wr_atomic_write(q, 1, 2, object::<c_void>());
        check("wr_atomic_write", &[1, 2, OBJECT as u64]);
        ibv_wr_bind_mw(q, object(), 2, null());
        check("wr_bind_mw", &[OBJECT as u64, 2, 0]);
        ibv_wr_flush(q, 1, 2, 3, 4, 5);
        check("wr_flush", &[1, 2, 3, 4, 5]);
        ibv_wr_local_inv(q, 1);
        check("wr_local_inv", &[1]);
        ibv_wr_rdma_read(q, 1, 2);
        check("wr_rdma_read", &[1, 2]);
        ibv_wr_rdma_write(q, 1, 2);
        check("wr_rdma_write", &[1, 2]);
        ibv_wr_rdma_write_imm(q, 1, 2, 3);
        check("wr_rdma_write_imm", &[1, 2, 3]);
        ibv_wr_send(q);
        check("wr_send", &[]);
        ibv_wr_send_imm(q, 1);
        check("wr_send_imm", &[1]);
        ibv_wr_send_inv(q, 1);
        check("wr_send_inv", &[1]);
        ibv_wr_send_tso(q, object(), 2, 3);
        check("wr_send_tso", &[OBJECT as u64, 2, 3]);
        ibv_wr_set_ud_addr(q, object(), 2, 3);
        check("wr_set_ud_addr", &[OBJECT as u64, 2, 3]);
        ibv_wr_set_xrc_srqn(q, 1);
        check("wr_set_xrc_srqn", &[1]);
        ibv_wr_set_inline_data(q, object(), 2);
        check("wr_set_inline_data", &[OBJECT as u64, 2]);
        ibv_wr_set_inline_data_list(q, 1, null());
        check("wr_set_inline_data_list", &[1, 0]);
        ibv_wr_set_sge(q, 1, 2, 3);
        check("wr_set_sge", &[1, 2, 3]);
        ibv_wr_set_sge_list(q, 1, null());
        check("wr_set_sge_list", &[1, 0]);
    }
}

#[test]
fn each_reader_of_an_extended_cq_reaches_its_pointer() {
    let mut cq = ibv_cq_ex::zeroed();
    note! { cq, ibv_cq_ex,
        start_poll(a: *mut ibv_poll_cq_attr) -> c_int, libc::ENOENT; next_poll() -> c_int, 1; end_poll();
        read_opcode() -> ibv_wc_opcode, IBV_WC_RECV; read_vendor_err() -> u32, 2; read_byte_len() -> u32, 3;
        read_imm_data() -> u32, 4; read_qp_num() -> u32, 5; read_src_qp() -> u32, 6; read_wc_flags() -> c_uint, 7;
        read_slid() -> u32, 8; read_sl() -> u8, 9; read_dlid_path_bits() -> u8, 10; read_completion_ts() -> u64, 11;
        read_cvlan() -> u16, 12; read_flow_tag() -> u32, 13; read_tm_info(a: *mut ibv_wc_tm_info);
        read_completion_wallclock_ns() -> u64, 14;
    }
    let c = &raw mut cq;
    macro_rules! gives {
        ($call:expr, $value:expr, $op:literal) => {
            assert_eq!(($call, was_called()), ($value, Some($op)))
        };
    }
    // SAFETY: the CQ lives on this stack frame and all its pointers are set.
    unsafe {
        gives!(ibv_start_poll(c, object()), libc::ENOENT, "start_poll");
        assert_eq!(ARGUMENTS.get()[0], OBJECT as u64);
        gives!(ibv_next_poll(c), 1, "next_poll");
        gives!(ibv_end_poll(c), (), "end_poll");
        gives!(ibv_wc_read_opcode(c), IBV_WC_RECV, "read_opcode");
        gives!(ibv_wc_read_vendor_err(c), 2, "read_vendor_err");
        gives!(ibv_wc_read_byte_len(c), 3, "read_byte_len");
        gives!(ibv_wc_read_imm_data(c), 4, "read_imm_data");
        gives!(ibv_wc_read_invalidated_rkey(c), 4, "read_imm_data");
        gives!(ibv_wc_read_qp_num(c), 5, "read_qp_num");
        gives!(ibv_wc_read_src_qp(c), 6, "read_src_qp");
        gives!(ibv_wc_read_wc_flags(c), 7, "read_wc_flags");
        gives!(ibv_wc_read_slid(c), 8, "read_slid");
        gives!(ibv_wc_read_sl(c), 9, "read_sl");
        gives!(ibv_wc_read_dlid_path_bits(c), 10, "read_dlid_path_bits");
        gives!(ibv_wc_read_completion_ts(c), 11, "read_completion_ts");
        gives!(ibv_wc_read_cvlan(c), 12, "read_cvlan");
        gives!(ibv_wc_read_flow_tag(c), 13, "read_flow_tag");
        gives!(ibv_wc_read_tm_info(c, object()), (), "read_tm_info");
        gives!(
            ibv_wc_read_completion_wallclock_ns(c),
            14,
            "read_completion_wallclock_ns"
        );
    }
    assert_eq!(ibv_cq_ex_to_cq(c).addr(), c.addr());
}

/// The values that the header's own function gives (`ibv_flow_label_to_udp_sport`, compiled with cc).
#[test]
fn flow_labels_and_ports() {
    for (label, port) in [
        (0, 0xc000),
        (1, 0xc001),
        (0x3fff, 0xffff),
        (0x4000, 0xc001),
        (0xf_ffff, 0xffc0),
        (0x1_2345, 0xe341),
    ] {
        assert_eq!(ibv_flow_label_to_udp_sport(label), port, "{label:#x}");
    }
    assert!(ibv_is_qpt_supported(1 << 2, IBV_QPT_RC) && !ibv_is_qpt_supported(1 << 2, IBV_QPT_UC));
    assert!(!ibv_is_qpt_supported(u32::MAX, IBV_QPT_DRIVER));
}
