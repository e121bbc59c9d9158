//! Contexts that are imported from an open one, and what is imported into them.

use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use crate::common::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

/// A duplicate of a context's command descriptor.
pub fn duplicate(device: &Device) -> i32 {
    // SAFETY: the context is open, so its descriptor is.
    let fd = unsafe { libc::fcntl((*device.ctx).cmd_fd, libc::F_DUPFD_CLOEXEC, 0) };
    assert!(fd >= 0);
    fd
}

/// One more context of the same open device.
pub fn import(device: &Device) -> Device {
    let fd = duplicate(device);
    // SAFETY: any descriptor may be passed; the context takes this one over.
    let ctx = unsafe { verbs().import_device(fd) };
    assert!(!ctx.is_null(), "import_device: errno {}", errno());
    // SAFETY: just made.
    assert_eq!(unsafe { (*ctx).cmd_fd }, fd);
    let name = device.name.clone();
    Device { name, ctx }
}

/// What importing a descriptor is refused with.
fn refused(fd: i32) -> i32 {
    // SAFETY: any descriptor may be passed.
    assert!(unsafe { verbs().import_device(fd) }.is_null());
    errno()
}

/// An imported region is the region: same keys, same memory, also for objects of its own context; and what was made in either context
/// lives as long as one of both does.
#[test]
fn objects_live_in_the_open_device() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 14,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (to, from) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let imported = import(&a);
    assert_eq!(imported.gid(), a.gid(), "one node");
    // SAFETY: the context is open, the handles are those of live objects.
    let (pd, mr) = unsafe {
        let pd = verbs().import_pd(imported.ctx, (*x.pd).handle);
        assert!(!pd.is_null());
        (pd, verbs().import_mr(pd, (*to.mr).handle))
    };
    assert!(!mr.is_null());
    // SAFETY: live objects.
    unsafe {
        assert_eq!(
            ((*pd).context, (*pd).handle),
            (imported.ctx, (*x.pd).handle)
        );
        assert_eq!(((*mr).context, (*mr).pd), (imported.ctx, pd));
        assert_eq!(((*mr).lkey, (*mr).rkey), (to.lkey(), to.rkey()));
        // ibv_import_mr(3): no address.
        assert_eq!(((*mr).addr, (*mr).length), (null_mut(), 64));
    }

    // A Queue Pair of the imported domain uses the imported region's key.
    let mut second = End::new(&imported, opt);
    // SAFETY: the Queue Pair and the domain of its own are used by nobody.
    unsafe {
        assert_eq!(verbs().destroy_qp(second.qp), 0);
        assert_eq!(verbs().dealloc_pd(second.pd), 0);
    }
    second.pd = pd;
    second.qp = second.create_qp().expect("a QP in the imported domain");
    let third = End::new(&b, opt);
    connect(&imported, &second, &b, &third);
    let into = Buf::new(&third, 64);
    let sent = to.fill(3);
    let mut sges = [to.sge(0, 64)];
    let mut request = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &into, 0);
    assert_eq!(second.send(&mut request), 0);
    ok(second.sent());
    assert_eq!(into.read(0, 64), sent);

    // The first context goes; what it made stays, under a Queue Pair of its own.
    let wanted = from.fill(9);
    let memory = std::mem::ManuallyDrop::new(to);
    std::mem::forget(x);
    drop(a);
    let mut sges = [from.sge(0, 64)];
    let mut request = rdma(IBV_WR_RDMA_WRITE, 2, &mut sges, &memory, 0);
    assert_eq!(y.send(&mut request), 0);
    ok(y.sent());
    assert_eq!(memory.read(0, 64), wanted);

    // With the last context all of it ends.
    std::mem::forget(second);
    drop(imported);
    assert_eq!(y.send(&mut request), 0);
    assert_eq!(y.sent().status, IBV_WC_RETRY_EXC_ERR);
}

/// Unimporting frees the handle alone; destroying through one handle destroys for all.
#[test]
fn unimporting_leaves_what_destroying_ends() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options::default();
    let (x, y) = pair(&a, &b, opt);
    let to = Buf::new(&x, 64);
    let imported = import(&a);
    // SAFETY: the contexts are open; each handle is freed once and not used after it.
    unsafe {
        let pd = verbs().import_pd(imported.ctx, (*x.pd).handle);
        let mr = verbs().import_mr(pd, (*to.mr).handle);
        verbs().unimport_mr(mr);
        assert_eq!(y.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0)), 0);
        ok(y.sent());

        let mut memory = vec![0u64; 8];
        let own = verbs().reg_mr(x.pd, memory.as_mut_ptr().cast(), 64, 1);
        let (handle, lkey) = ((*own).handle, (*own).lkey);
        let mr = verbs().import_mr(pd, handle);
        assert_eq!((*mr).lkey, lkey);
        assert_eq!(verbs().dereg_mr(mr), 0);
        assert_eq!(verbs().dereg_mr(own), EINVAL, "it is gone");
        verbs().unimport_mr(own);
        assert!(verbs().import_mr(pd, handle).is_null());
        assert_eq!(errno(), libc::ENOENT);

        // The domain is in use, whichever handle is asked.
        assert_eq!(verbs().dealloc_pd(pd), EBUSY);
        verbs().unimport_pd(pd);
        assert!(verbs().import_pd(imported.ctx, u32::MAX).is_null());
        assert_eq!(errno(), libc::ENOENT);
        // Handles are those of one open device.
        let other = Device::plain();
        assert!(verbs().import_pd(other.ctx, (*x.pd).handle).is_null());
    }
}

/// Only duplicates of the command descriptors of contexts that are open in this process can be imported.
#[test]
fn other_descriptors_are_refused() {
    let a = Device::plain();
    // SAFETY: the context is open.
    let own = unsafe { (*a.ctx).cmd_fd };
    assert_eq!(refused(own), EINVAL, "it would be closed twice");
    assert_eq!(refused(-1), libc::EBADF);
    let file = std::fs::File::open("/dev/null").expect("a file");
    assert_eq!(refused(file.as_raw_fd()), EOPNOTSUPP);
    let late = duplicate(&a);
    drop(a);
    assert_eq!(refused(late), EOPNOTSUPP, "its context is closed");
    // SAFETY: the test's own.
    assert_eq!(unsafe { libc::close(late) }, 0, "a refused one stays open");
}

/// Events of the device reach every context, imported or not.
#[test]
fn an_imported_context_has_events_of_its_own() {
    let a = Device::plain();
    let imported = import(&a);
    rdma_soft::set_port_up(&a.name, 1, false).expect("the device is open");
    for context in [&a, &imported] {
        let event = context.async_event();
        assert_eq!(event.event_type, IBV_EVENT_PORT_ERR);
    }
}
