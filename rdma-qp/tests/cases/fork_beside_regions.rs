//! Fork protection split the process's mappings until registering failed; elsewhere a child crashed on data that shared a
//! page with a region.

use crate::common::*;
use rdma_qp::{Access, Errno, Memory, PostError};
use rdma_soft::Profile;

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

#[test]
fn registering_over_and_over_leaves_the_mappings_alone() {
    let device = device(Profile::default());
    let pd = device.alloc_pd().unwrap();
    let round = |odd: usize| {
        let memory = Memory::zeroed(odd);
        drop(pd.register(memory, Access::REMOTE_WRITE).unwrap());
    };
    (0..100).for_each(|n| round(n * 37 + 1));
    let before = mappings();
    (0..10_000).for_each(|n| round(n % 9000 + 1));
    // Threads of other tests come and go; a mapping for each region would be thousands.
    assert!(mappings() < before + 100, "{} to {}", before, mappings());
}

/// What a child does, told by its exit code: it reads and writes its copy of the region, and its posts are refused.
fn child(end: &mut End) -> i32 {
    let mut bytes = [0; 4];
    if end.mr.read_at(0, &mut bytes).is_err() || &bytes != b"kept" {
        return 1;
    }
    if end.mr.write_at(0, b"mine").is_err() {
        return 2;
    }
    match end.qp.send(end.mr.slice(0, 4).unwrap()) {
        Err(PostError::Refused { errno, .. } | PostError::WrongState { errno, .. })
            if errno != Errno::from_raw(0) =>
        {
            0
        }
        Err(_) => 3,
        Ok(_) => 4,
    }
}

#[test]
fn a_child_has_its_memory_and_no_device_and_the_parent_goes_on() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 4096);
    a.mr.write_at(0, b"kept").unwrap();
    // SAFETY: the child runs the few lines of `child`, which take no lock that another thread may hold but the allocator's,
    // which the C library makes whole in a child; it leaves without running anything else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = child(&mut a);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0);
    // The parent's traffic is not disturbed.
    let receive = b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
    let sent = a.qp.send(a.mr.slice(0, 4).unwrap()).unwrap();
    a.cq.wait(&sent, LIMIT).unwrap();
    b.cq.wait(&receive, LIMIT).unwrap();
    assert_eq!(b.bytes(0, 4), b"kept");
}
