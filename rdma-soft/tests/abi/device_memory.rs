//! Device memory: copies, limits, registration, and requests that reach it.

use std::ptr::{null, null_mut};

use crate::common::*;
use crate::import::import;
use rdma_core_sys::*;
use rdma_soft::{Profile, verbs};

const EFAULT: i32 = libc::EFAULT;
const ZERO_BASED: u32 = IBV_ACCESS_ZERO_BASED.bits();

/// Allocates `length` bytes.
fn alloc(device: &Device, length: usize, log_align_req: u32) -> Result<*mut ibv_dm, i32> {
    let mut attr = ibv_alloc_dm_attr::zeroed();
    attr.length = length;
    attr.log_align_req = log_align_req;
    // SAFETY: the context is open, the attributes are whole.
    let dm = unsafe { ops::ibv_alloc_dm(device.ctx, &mut attr) };
    if dm.is_null() { Err(errno()) } else { Ok(dm) }
}

fn free(dm: *mut ibv_dm) -> i32 {
    // SAFETY: the callers' device memory is live and not used after it was freed.
    unsafe { ops::ibv_free_dm(dm) }
}

/// Copies into device memory, as `ibv_memcpy_to_dm` of the header does.
fn store(dm: *mut ibv_dm, offset: u64, data: &[u8]) -> i32 {
    // SAFETY: the callers' device memory is live.
    unsafe { (*dm).memcpy_to_dm.expect("a function")(dm, offset, data.as_ptr().cast(), data.len()) }
}

/// Copies out of device memory, as `ibv_memcpy_from_dm` of the header does.
fn load(dm: *mut ibv_dm, offset: u64, data: &mut [u8]) -> i32 {
    let to = data.as_mut_ptr().cast();
    // SAFETY: the callers' device memory is live.
    unsafe { (*dm).memcpy_from_dm.expect("a function")(to, dm, offset, data.len()) }
}

/// A device with `max` bytes of device memory.
fn device(max: u64) -> Device {
    let mut profile = Profile::default();
    profile.caps.max_dm_size = max;
    Device::new(profile)
}

/// There is as much as the device says, in all buffers together.
#[test]
fn the_limit_is_exact() {
    let a = device(256);
    let mut attr = ibv_device_attr_ex::zeroed();
    // SAFETY: the context is open, the struct is whole.
    let asked = unsafe { ops::ibv_query_device_ex(verbs(), a.ctx, null(), &mut attr) };
    assert_eq!((asked, attr.max_dm_size), (0, 256));
    assert_eq!(alloc(&a, 257, 0), Err(ENOMEM));
    assert_eq!(alloc(&a, usize::MAX, 0), Err(ENOMEM));
    assert_eq!(alloc(&a, 0, 0), Err(EINVAL));
    assert_eq!(alloc(&a, 8, 13), Err(EINVAL), "coarser than a page");
    let first = alloc(&a, 200, 0).expect("memory");
    let second = alloc(&a, 56, 12).expect("memory");
    assert_eq!(alloc(&a, 1, 0), Err(ENOMEM));
    assert_eq!(free(first), 0);
    assert_eq!(alloc(&a, 200, 6).map(free), Ok(0));
    assert_eq!(free(second), 0);
    let mut wrong = ibv_alloc_dm_attr::zeroed();
    (wrong.length, wrong.comp_mask) = (8, 1);
    // SAFETY: the context is open, the attributes are whole.
    assert!(unsafe { ops::ibv_alloc_dm(a.ctx, &mut wrong) }.is_null());
    assert_eq!(errno(), EINVAL);
}

/// Copies stay inside, by whole words of 32 bits as adapters have it (mlx5_access_dm).
#[test]
fn copies_are_of_words_inside() {
    let a = Device::plain();
    let dm = alloc(&a, 100, 0).expect("memory");
    let data = pattern(1, 100);
    let mut back = vec![0xff; 100];
    assert_eq!(load(dm, 0, &mut back), 0);
    assert_eq!(back, [0; 100], "it begins empty");
    assert_eq!(store(dm, 0, &data), 0);
    assert_eq!(store(dm, 40, &[7; 8]), 0);
    assert_eq!(load(dm, 0, &mut back), 0);
    assert_eq!(back[..40], data[..40]);
    assert_eq!(back[40..48], [7; 8]);
    assert_eq!(back[48..], data[48..]);
    for (offset, length, errno) in [
        (3, 4, EINVAL),
        (4, 3, EINVAL),
        (100, 4, EFAULT),
        (0, 104, EFAULT),
        (u64::MAX - 3, 4, EFAULT),
    ] {
        assert_eq!(store(dm, offset, &vec![1; length]), errno);
        assert_eq!(load(dm, offset, &mut vec![1; length]), errno);
    }
    assert_eq!(free(dm), 0);
}

/// A region of device memory begins at address 0, is reached by requests and atomics, and keeps the memory.
#[test]
fn requests_reach_registered_device_memory() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let dm = alloc(&a, 256, 6).expect("memory");
    let reg = |offset, length, access| {
        // SAFETY: PD and device memory are live.
        let mr = unsafe { ops::ibv_reg_dm_mr(x.pd, dm, offset, length, access) };
        if mr.is_null() { Err(errno()) } else { Ok(mr) }
    };
    assert_eq!(reg(0, 256, ALL_ACCESS), Err(EINVAL), "zero-based only");
    for (offset, length) in [(0, 257), (250, 8), (u64::MAX, 8)] {
        assert_eq!(reg(offset, length, ALL_ACCESS | ZERO_BASED), Err(EINVAL));
    }
    let empty = reg(256, 0, ZERO_BASED).expect("a region");
    // SAFETY: nobody uses it.
    assert_eq!(unsafe { verbs().dereg_mr(empty) }, 0);
    let mr = reg(64, 128, ALL_ACCESS | ZERO_BASED).expect("a region");
    assert_eq!(free(dm), EBUSY);
    // SAFETY: live regions.
    let rkey = unsafe {
        assert_eq!(((*mr).addr, (*mr).length), (null_mut(), 128));
        let access = ALL_ACCESS as i32;
        let changed = verbs().rereg_mr(mr, 4, null_mut(), null_mut(), 0, access);
        assert_eq!((changed, errno()), (-1, EOPNOTSUPP));
        (*mr).rkey
    };

    let from = Buf::new(&y, 256);
    let data = from.fill(5);
    let write = |at: u64, length: usize| {
        let mut sges = [from.sge(0, length)];
        let mut request = wr(IBV_WR_RDMA_WRITE, 1, &mut sges);
        request.wr.rdma = ibv_send_wr_rdma {
            remote_addr: at,
            rkey,
        };
        assert_eq!(y.send(&mut request), 0);
        y.sent().status
    };
    assert_eq!(write(8, 120), IBV_WC_SUCCESS);
    let mut request = wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, &mut []);
    let mut sges = [from.sge(0, 8)];
    (request.sg_list, request.num_sge) = (sges.as_mut_ptr(), 1);
    request.wr.atomic = ibv_send_wr_atomic {
        remote_addr: 0,
        compare_add: 41,
        swap: 0,
        rkey,
    };
    assert_eq!(y.send(&mut request), 0);
    ok(y.sent());
    let mut back = [0xff; 256];
    assert_eq!(load(dm, 0, &mut back), 0);
    assert_eq!(back[..64], [0; 64]);
    assert_eq!(back[64..72], 41u64.to_ne_bytes());
    assert_eq!(back[72..192], data[..120]);
    assert_eq!(back[192..], [0; 64]);
    assert_eq!(write(9, 120), IBV_WC_REM_ACCESS_ERR, "one byte too many");

    // SAFETY: nothing uses the region any more.
    assert_eq!(unsafe { verbs().dereg_mr(mr) }, 0);
    assert_eq!(free(dm), 0);
}

/// Imported device memory is the same memory.
#[test]
fn it_can_be_imported() {
    let a = device(64);
    let dm = alloc(&a, 64, 0).expect("memory");
    let imported = import(&a);
    // SAFETY: the context is open, the device memory is live.
    let same = unsafe { verbs().import_dm(imported.ctx, (*dm).handle) };
    assert!(!same.is_null());
    assert_eq!(store(dm, 8, &[1, 2, 3, 4]), 0);
    let mut back = [0; 4];
    assert_eq!(load(same, 8, &mut back), 0);
    assert_eq!(back, [1, 2, 3, 4]);
    // SAFETY: it is not used any more.
    unsafe { verbs().unimport_dm(same) };
    assert_eq!(load(dm, 8, &mut back), 0);
    // SAFETY: as above.
    let same = unsafe { verbs().import_dm(imported.ctx, (*dm).handle) };
    assert_eq!(free(dm), 0);
    assert_eq!(free(same), EINVAL, "it is gone");
    // SAFETY: it is not used any more.
    unsafe { verbs().unimport_dm(same) };
    assert_eq!(alloc(&a, 64, 0).map(free), Ok(0));
}

/// Device memory takes no node: a child allocates some of its own in its parent's context, but cannot use the parent's.
#[test]
fn a_child_has_device_memory_of_its_own() {
    let a = Device::plain();
    let dm = alloc(&a, 64, 0).expect("memory");
    // SAFETY: the child makes a few calls and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let parents = store(dm, 0, &[1; 4]) == libc::EIO;
        let own = alloc(&a, 64, 0).is_ok_and(|own| {
            let mut back = [0; 4];
            store(own, 0, &[1; 4]) == 0
                && load(own, 0, &mut back) == 0
                && back == [1; 4]
                && free(own) == 0
        });
        // SAFETY: ends the child without running what the parent registered.
        unsafe { libc::_exit(if parents && own { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child above, `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(free(dm), 0);
}
