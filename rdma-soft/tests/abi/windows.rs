//! Memory windows, and regions that change in place.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Instant;

use rdma_core_sys::*;
use rdma_soft::verbs;

use crate::common::*;
use crate::kinds::*;
use crate::srq::on_both_links;

const BINDABLE: u32 = ALL_ACCESS | IBV_ACCESS_MW_BIND.bits();

/// Reads or writes 8 bytes at `addr` of the peer by `rkey`; gives the status. A refusal ends both QPs.
fn access(x: &End, local: &Buf, opcode: ibv_wr_opcode, addr: u64, rkey: u32) -> ibv_wc_status {
    let mut sges = [local.sge(0, 8)];
    let mut request = wr(opcode, 5, &mut sges);
    request.wr.rdma = ibv_send_wr_rdma {
        remote_addr: addr,
        rkey,
    };
    assert_eq!(x.send(&mut request), 0, "{}", why());
    x.sent().status
}

/// A window of type 1 opens its part of a region with rights of its own, by a key that each bind
/// changes.
#[test]
fn type_1_opens_a_part() {
    on_both_links(|a, b| {
        let (x, y) = pair(a, b, Options::default());
        let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 4096, BINDABLE));
        local.fill(3);
        let window = Mw::new(&y, IBV_MW_TYPE_1);
        let first = window.rkey();
        let write = IBV_ACCESS_REMOTE_WRITE;
        let info = Mw::info(&remote, 256, 64, write);
        assert_eq!(window.bind_type_1(y.qp, 1, info), 0, "{}", why());
        let bound = ok(y.sent());
        assert_eq!((bound.wr_id, bound.opcode), (1, IBV_WC_BIND_MW));
        let second = window.rkey();
        assert_ne!(first, second);
        assert_eq!(first & !0xff, second & !0xff);
        let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(256), second);
        assert_eq!(status, IBV_WC_SUCCESS);
        assert_eq!(remote.read(256, 8), local.read(0, 8));
        assert_eq!(remote.read(264, 8), [0; 8]);

        let again = Mw::info(&remote, 512, 8, write | IBV_ACCESS_REMOTE_READ);
        assert_eq!(window.bind_type_1(y.qp, 2, again), 0);
        ok(y.sent());
        let status = access(&x, &local, IBV_WR_RDMA_READ, remote.at(512), window.rkey());
        assert_eq!(status, IBV_WC_SUCCESS);
        assert_eq!(local.read(0, 8), [0; 8]);
        // The key before the bind opens nothing.
        let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(256), second);
        assert_eq!(status, IBV_WC_REM_ACCESS_ERR);
    });
}

/// Whoever polls the bind finds the window with its new key, though another thread posts: then it is the poller's to free, too.
#[test]
fn a_bind_that_completes_has_its_key() {
    const BINDS: u64 = 20_000;
    let a = Device::plain();
    let (_x, y) = pair(&a, &a, Options::default());
    let remote = Buf::with_access(&y, 4096, BINDABLE);
    let window = Mw::new(&y, IBV_MW_TYPE_1);
    // The poller has no use for what is not to leave its thread.
    let (cq, mw) = (y.scq as usize, window.mw as usize);
    let (seen, looked) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(move || {
            let mw = mw as *mut ibv_mw;
            for id in 0..BINDS {
                assert_eq!(ok(wait(cq as *mut ibv_cq)).wr_id, id);
                // SAFETY: the window lives until the poller is done; nobody writes to it between a completion and the next bind.
                seen.send(unsafe { (*mw).rkey }).expect("somebody compares");
            }
        });
        for id in 0..BINDS {
            let info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
            assert_eq!(window.bind_type_1(y.qp, id, info), 0, "{}", why());
            // Without sleeping: the next bind is to be made while the poller polls.
            let end = Instant::now() + PATIENCE;
            let seen = loop {
                match looked.try_recv() {
                    Ok(seen) => break seen,
                    Err(_) => assert!(Instant::now() < end, "no completion within {PATIENCE:?}"),
                }
            };
            assert_eq!(seen, window.rkey(), "bind {id}");
        }
    });
}

/// What lies beyond a window, or what it gives no right for, is refused.
#[test]
fn rights_and_bounds_are_the_windows_own() {
    let wrong: [(usize, usize, ibv_wr_opcode); 3] = [
        (248, 64, IBV_WR_RDMA_WRITE),
        (316, 64, IBV_WR_RDMA_WRITE),
        (256, 64, IBV_WR_RDMA_READ),
    ];
    for (at, len, opcode) in wrong {
        let (a, b) = (Device::plain(), Device::plain());
        let (x, y) = pair(&a, &b, Options::default());
        let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 4096, BINDABLE));
        let window = Mw::new(&y, IBV_MW_TYPE_1);
        let info = Mw::info(&remote, 256, len, IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(window.bind_type_1(y.qp, 1, info), 0);
        ok(y.sent());
        let status = access(&x, &local, opcode, remote.at(at), window.rkey());
        assert_eq!(status, IBV_WC_REM_ACCESS_ERR, "{at} {opcode:?}");
    }
}

/// A bind of no region closes a window of type 1; then the region can go.
#[test]
fn type_1_is_closed_by_a_bind_of_nothing() {
    let a = Device::plain();
    let (x, y) = pair(&a, &a, Options::default());
    let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 64, BINDABLE));
    let window = Mw::new(&y, IBV_MW_TYPE_1);
    let info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(window.bind_type_1(y.qp, 1, info), 0);
    ok(y.sent());
    let old = window.rkey();
    // SAFETY: the region is live.
    assert_eq!(unsafe { verbs().dereg_mr(remote.mr) }, EBUSY);
    says(&[&format!("{old:#x}")]);
    let nothing = ibv_mw_bind_info::zeroed();
    assert_eq!(window.bind_type_1(y.qp, 2, nothing), 0, "{}", why());
    ok(y.sent());
    let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(0), old);
    assert_eq!(status, IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn binds_that_make_no_sense() {
    let a = Device::plain();
    let (x, y) = pair(&a, &a, Options::default());
    let remote = Buf::with_access(&y, 4096, BINDABLE);
    let elsewhere = Buf::with_access(&x, 4096, BINDABLE);
    let (one, two) = (Mw::new(&y, IBV_MW_TYPE_1), Mw::new(&y, IBV_MW_TYPE_2));
    let info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(
        two.bind_type_1(y.qp, 1, info),
        EINVAL,
        "type 2 by ibv_bind_mw"
    );
    let other_pd = Mw::info(&elsewhere, 0, 64, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(one.bind_type_1(y.qp, 1, other_pd), EPERM);
    let key = one.rkey();
    let mut no_window = two.bind(1, next_key(two.rkey()), info);
    no_window.ext.bind_mw.mw = null_mut();
    assert_eq!(y.send(&mut no_window), EINVAL);
    assert_eq!(one.rkey(), key, "nothing was bound");
    // SAFETY: the PD is live.
    let unknown = unsafe { ops::ibv_alloc_mw(y.pd, ibv_mw_type(3)) };
    assert!(unknown.is_null());
    assert_eq!(errno(), EINVAL);
    // The PD stays as long as its windows.
    // SAFETY: the PD is live.
    assert_eq!(unsafe { verbs().dealloc_pd(y.pd) }, EBUSY);
}

/// A window cannot open what its region does not allow, or what is not in it.
#[test]
fn a_bind_that_fails_ends_in_a_completion() {
    let cases: [(u32, u64); 2] = [(ALL_ACCESS, 64), (BINDABLE, 4097)];
    for (rights, len) in cases {
        let a = Device::plain();
        let (_x, y) = pair(&a, &a, Options::default());
        let remote = Buf::with_access(&y, 4096, rights);
        let window = Mw::new(&y, IBV_MW_TYPE_2);
        let mut info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
        info.length = len;
        let mut bind = window.bind(3, next_key(window.rkey()), info);
        assert_eq!(y.send(&mut bind), 0);
        let wc = y.sent();
        assert_eq!((wc.wr_id, wc.status), (3, IBV_WC_MW_BIND_ERR));
    }
}

/// A window of type 2 is bound by a request, reports the key that the request gave it, and ends with
/// an invalidate of its owner.
#[test]
fn type_2_until_it_is_invalidated() {
    on_both_links(|a, b| {
        let (x, y) = pair(a, b, Options::default());
        let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 4096, BINDABLE));
        local.fill(9);
        let window = Mw::new(&y, IBV_MW_TYPE_2);
        let (old, key) = (window.rkey(), next_key(window.rkey()));
        let info = Mw::info(&remote, 8, 64, IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(y.send(&mut window.bind(1, key, info)), 0, "{}", why());
        assert_eq!(ok(y.sent()).opcode, IBV_WC_BIND_MW);
        assert_eq!(window.rkey(), key);
        assert_ne!(old, key);
        let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(8), key);
        assert_eq!(status, IBV_WC_SUCCESS);
        assert_eq!(remote.read(8, 8), local.read(0, 8));
        assert_eq!(y.send(&mut invalidate(2, key)), 0);
        assert_eq!(ok(y.sent()).opcode, IBV_WC_LOCAL_INV);
        let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(8), key);
        assert_eq!(status, IBV_WC_REM_ACCESS_ERR);
    });
}

/// A message can end a window of the peer: its receive names the key, and the window is closed when
/// it completes.
#[test]
fn the_peer_ends_a_window_with_a_message() {
    on_both_links(|a, b| {
        let (x, y) = pair(a, b, Options::default());
        let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 4096, BINDABLE));
        let data = local.fill(4);
        let window = Mw::new(&y, IBV_MW_TYPE_2);
        let key = next_key(window.rkey());
        let info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(y.send(&mut window.bind(1, key, info)), 0);
        ok(y.sent());
        assert_eq!(y.recv(7, &mut [remote.sge(1024, 64)]), 0);
        let mut sges = [local.sge(0, 64)];
        let mut send = wr(IBV_WR_SEND_WITH_INV, 2, &mut sges);
        send.imm.invalidate_rkey = key;
        assert_eq!(x.send(&mut send), 0, "{}", why());
        assert_eq!(ok(x.sent()).opcode, IBV_WC_SEND);
        let got = ok(y.received());
        assert_eq!((got.wr_id, got.byte_len), (7, 64));
        assert_eq!(got.wc_flags, IBV_WC_WITH_INV.bits());
        // SAFETY: the flag says that the field holds a key.
        assert_eq!(unsafe { got.imm.invalidated_rkey }, key);
        assert_eq!(remote.read(1024, 64), data);
        let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(0), key);
        assert_eq!(status, IBV_WC_REM_ACCESS_ERR);
    });
}

/// A window of type 2 belongs to the QP that bound it: it opens nothing to others, and ends with it.
#[test]
fn type_2_belongs_to_a_queue_pair() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (other, there) = (Qp::new(&a, &x, IBV_QPT_RC), Qp::new(&b, &y, IBV_QPT_RC));
    join(&a, &other, &b, &there);
    let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 4096, BINDABLE));
    let window = Mw::new(&y, IBV_MW_TYPE_2);
    let key = next_key(window.rkey());
    let info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(there.send(&mut window.bind(1, key, info)), 0);
    ok(y.sent());
    let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(0), key);
    assert_eq!(status, IBV_WC_REM_ACCESS_ERR, "another QP of the same PD");
    // SAFETY: the region is live.
    assert_eq!(unsafe { verbs().dereg_mr(remote.mr) }, EBUSY);
    drop(there);
    drop(remote);
}

/// Rights of the application's own to a region: `rereg` with code and errno.
fn rereg(
    mr: *mut ibv_mr,
    flags: ibv_rereg_mr_flags,
    pd: *mut ibv_pd,
    addr: *mut u8,
    len: usize,
    access: u32,
) -> Result<(), (c_int, c_int)> {
    let addr: *mut c_void = addr.cast();
    // SAFETY: the callers' regions are live, their memory stays until the region is deregistered.
    match unsafe { verbs().rereg_mr(mr, flags.bits() as c_int, pd, addr, len, access as c_int) } {
        0 => Ok(()),
        code => Err((code, errno())),
    }
}

/// Memory, domain and rights of a region change in place; its keys stay, and what is refused changes
/// nothing.
#[test]
fn regions_change_in_place() {
    on_both_links(|a, b| {
        let (x, y) = pair(a, b, Options::default());
        let (local, remote) = (Buf::new(&x, 4096), Buf::with_access(&y, 4096, 1));
        let second = Buf::new(&y, 8192);
        let (lkey, rkey) = (remote.lkey(), remote.rkey());
        let data = local.fill(5);
        let input = IBV_REREG_MR_ERR_INPUT.0;
        let none = ibv_rereg_mr_flags::empty();
        let all_flags =
            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        for (flags, pd, addr, len, access) in [
            (none, null_mut(), null_mut(), 0, 0),
            (all_flags, y.pd, second.addr, 0, ALL_ACCESS),
            (all_flags, y.pd, null_mut(), 8, ALL_ACCESS),
            (all_flags, null_mut(), second.addr, 8, ALL_ACCESS),
            (IBV_REREG_MR_CHANGE_ACCESS, null_mut(), null_mut(), 0, 2),
            (IBV_REREG_MR_CHANGE_PD, y.pd, null_mut(), 0, ALL_ACCESS),
            (
                all_flags | ibv_rereg_mr_flags::from_bits_retain(8),
                y.pd,
                second.addr,
                8,
                1,
            ),
        ] {
            let result = rereg(remote.mr, flags, pd, addr, len, access);
            assert_eq!(result, Err((input, EINVAL)), "{flags:?} {len}");
        }
        let rights = IBV_REREG_MR_CHANGE_ACCESS;
        assert_eq!(
            rereg(remote.mr, rights, null_mut(), null_mut(), 0, ALL_ACCESS),
            Ok(())
        );
        let mut sges = [local.sge(0, 4096)];
        let mut write = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &remote, 0);
        assert_eq!(x.send(&mut write), 0);
        ok(x.sent());
        assert_eq!(remote.read(0, 4096), data);

        let moves = IBV_REREG_MR_CHANGE_TRANSLATION;
        assert_eq!(
            rereg(remote.mr, moves, null_mut(), second.addr, 8192, 0),
            Ok(())
        );
        // SAFETY: the region is live.
        unsafe {
            assert_eq!((*remote.mr).addr, second.addr.cast());
            assert_eq!((*remote.mr).length, 8192);
            assert_eq!(((*remote.mr).lkey, (*remote.mr).rkey), (lkey, rkey));
        }
        write.wr.rdma.remote_addr = second.at(4000);
        assert_eq!(x.send(&mut write), 0);
        ok(x.sent());
        assert_eq!(second.read(4000, 4096), data);
        // What it was opens nothing any more.
        write.wr.rdma.remote_addr = remote.at(0);
        assert_eq!(x.send(&mut write), 0);
        assert_eq!(x.sent().status, IBV_WC_REM_ACCESS_ERR);
    });
}

/// A region that moves to another domain serves that one only, and keeps it busy.
#[test]
fn a_region_changes_its_domain() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let other = End::bare(&b, Options::default());
    let (local, remote) = (Buf::new(&x, 64), Buf::with_access(&y, 64, BINDABLE));
    let change = IBV_REREG_MR_CHANGE_PD;
    let window = Mw::new(&y, IBV_MW_TYPE_1);
    let info = Mw::info(&remote, 0, 64, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(window.bind_type_1(y.qp, 1, info), 0);
    ok(y.sent());
    let busy = rereg(remote.mr, change, other.pd, null_mut(), 0, 0);
    assert_eq!(busy, Err((IBV_REREG_MR_ERR_INPUT.0, EBUSY)));
    drop(window);
    assert_eq!(rereg(remote.mr, change, other.pd, null_mut(), 0, 0), Ok(()));
    // SAFETY: region and PD are live.
    unsafe {
        assert_eq!((*remote.mr).pd, other.pd);
        assert_eq!(verbs().dealloc_pd(other.pd), EBUSY);
    }
    let status = access(&x, &local, IBV_WR_RDMA_WRITE, remote.at(0), remote.rkey());
    assert_eq!(status, IBV_WC_REM_ACCESS_ERR);
}
