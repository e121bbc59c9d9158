//! A region could not be deregistered right after its window was invalidated, and nobody said why.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const BINDABLE: u32 = ALL_ACCESS | IBV_ACCESS_MW_BIND.bits();
const REMOTE: ibv_access_flags = IBV_ACCESS_REMOTE_WRITE.union(IBV_ACCESS_REMOTE_READ);

/// A pair whose QPs let windows be bound, and a region of the second end.
struct Scene {
    local: Buf,
    region: Buf,
    x: End,
    y: End,
    _a: Device,
    _b: Device,
}

fn scene() -> Scene {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (local, region) = (Buf::new(&x, 64), Buf::with_access(&y, 64, BINDABLE));
    Scene {
        local,
        region,
        x,
        y,
        _a: a,
        _b: b,
    }
}

impl Scene {
    /// The peer writes 8 bytes through `rkey` at `offset` of the region; gives the status.
    fn write(&self, rkey: u32, offset: usize, value: u64) -> ibv_wc_status {
        self.local.set_word(0, value);
        let mut sges = [self.local.sge(0, 8)];
        let mut request = wr(IBV_WR_RDMA_WRITE, 1, &mut sges);
        request.wr.rdma = ibv_send_wr_rdma {
            remote_addr: self.region.at(offset),
            rkey,
        };
        assert_eq!(self.x.send(&mut request), 0);
        self.x.sent().status
    }
}

/// Deregisters, which must be refused for a window with this key.
#[track_caller]
fn busy(buf: &Buf, rkey: u32) {
    // SAFETY: the region is live; the call is refused, so it stays so.
    assert_eq!(unsafe { verbs().dereg_mr(buf.mr) }, EBUSY);
    says(&["memory window", &format!("{rkey:#x}")]);
}

/// A type-2 bind of the whole region, completed; gives the window and its key.
fn bound(s: &Scene, access: ibv_access_flags) -> (Mw, u32) {
    let window = Mw::new(&s.y, IBV_MW_TYPE_2);
    let rkey = next_key(window.rkey());
    let info = Mw::info(&s.region, 0, 64, access);
    assert_eq!(s.y.send(&mut window.bind(1, rkey, info)), 0, "{}", why());
    let wc = ok(s.y.sent());
    assert_eq!((wc.wr_id, wc.opcode), (1, IBV_WC_BIND_MW));
    assert_eq!(window.rkey(), rkey, "the window reports its key");
    (window, rkey)
}

/// Bound: busy, with the window's key. Invalidated but not polled: still busy. Polled: free.
#[test]
fn is_busy_until_the_invalidation_was_polled() {
    let s = scene();
    let (_window, rkey) = bound(&s, REMOTE);
    busy(&s.region, rkey);
    assert_eq!(s.y.send(&mut invalidate(2, rkey)), 0, "{}", why());
    // Executed by now, but nobody has looked.
    std::thread::sleep(Duration::from_millis(20));
    busy(&s.region, rkey);
    let wc = ok(s.y.sent());
    assert_eq!((wc.wr_id, wc.opcode), (2, IBV_WC_LOCAL_INV));
    // Dropping it asserts that it can go, while the window still exists.
    drop(s.region);
}

/// An unsignaled invalidation is over when a later request's completion was polled.
#[test]
fn is_free_after_a_later_completion() {
    let s = scene();
    let (_window, rkey) = bound(&s, REMOTE);
    assert_eq!(
        s.y.send(&mut unsignaled(invalidate(2, rkey))),
        0,
        "{}",
        why()
    );
    let mut sges = [s.region.sge(0, 8)];
    let mut request = rdma(IBV_WR_RDMA_WRITE, 3, &mut sges, &s.local, 0);
    assert_eq!(s.y.send(&mut request), 0);
    std::thread::sleep(Duration::from_millis(20));
    busy(&s.region, rkey);
    assert_eq!(ok(s.y.sent()).wr_id, 3);
    drop(s.region);
}

/// Freeing the window frees the region as well, whatever its type.
#[test]
fn is_free_when_the_window_is() {
    let s = scene();
    let (window, rkey) = bound(&s, REMOTE);
    busy(&s.region, rkey);
    drop(window);
    let window = Mw::new(&s.y, IBV_MW_TYPE_1);
    let info = Mw::info(&s.region, 0, 64, REMOTE);
    assert_eq!(window.bind_type_1(s.y.qp, 4, info), 0, "{}", why());
    assert_eq!(ok(s.y.sent()).wr_id, 4);
    busy(&s.region, window.rkey());
    drop(window);
    drop(s.region);
}

/// After a bind the new key opens the window, within its bounds and rights, and the old key nothing.
#[test]
fn only_the_new_key_opens_the_window() {
    let s = scene();
    let window = Mw::new(&s.y, IBV_MW_TYPE_2);
    let old = window.rkey();
    let rkey = next_key(old);
    let info = Mw::info(&s.region, 8, 16, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(s.y.send(&mut window.bind(1, rkey, info)), 0, "{}", why());
    ok(s.y.sent());
    assert_eq!(s.write(rkey, 8, 1), IBV_WC_SUCCESS);
    assert_eq!(s.write(rkey, 16, 2), IBV_WC_SUCCESS);
    assert_eq!((s.region.word(8), s.region.word(16)), (1, 2));
    assert_eq!(s.write(old, 8, 3), IBV_WC_REM_ACCESS_ERR);
    assert_eq!(s.region.word(8), 1);
    for (key, offset) in [(rkey, 17), (rkey, 0), (next_key(rkey), 8)] {
        let s = scene();
        let window = Mw::new(&s.y, IBV_MW_TYPE_2);
        let shift = |key: u32| window.rkey() & !0xff | key & 0xff;
        let info = Mw::info(&s.region, 8, 16, IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(
            s.y.send(&mut window.bind(1, shift(rkey), info)),
            0,
            "{}",
            why()
        );
        ok(s.y.sent());
        assert_eq!(
            s.write(shift(key), offset, 3),
            IBV_WC_REM_ACCESS_ERR,
            "{offset}"
        );
        assert!(s.region.read(0, 64).iter().all(|&byte| byte == 0));
    }
}

/// Once invalidated, the key opens nothing.
#[test]
fn an_invalidated_key_opens_nothing() {
    let s = scene();
    let (_window, rkey) = bound(&s, REMOTE);
    assert_eq!(s.write(rkey, 0, 1), IBV_WC_SUCCESS);
    assert_eq!(s.y.send(&mut invalidate(2, rkey)), 0, "{}", why());
    ok(s.y.sent());
    assert_eq!(s.write(rkey, 0, 2), IBV_WC_REM_ACCESS_ERR);
    assert_eq!(s.region.word(0), 1);
}

/// Regions without the right to be bound, of another domain, or too short for the window: the bind ends in
/// a bind error, or is refused with its reason when posted; the region stays free.
#[test]
fn binds_that_cannot_be() {
    let attempt = |make: &dyn Fn(&Scene, &End) -> (Buf, usize, ibv_access_flags)| {
        let s = scene();
        let stranger = End::bare(&s._b, Options::default());
        let window = Mw::new(&s.y, IBV_MW_TYPE_2);
        let (buf, len, access) = make(&s, &stranger);
        let info = Mw::info(&buf, 0, len, access);
        let result = s.y.send(&mut window.bind(1, next_key(window.rkey()), info));
        if result == 0 {
            assert_eq!(s.y.sent().status, IBV_WC_MW_BIND_ERR);
            assert_eq!(s.y.state(), IBV_QPS_ERR);
        } else {
            assert_eq!(result, EINVAL);
            assert!(!why().is_empty());
        }
        // Dropping the region asserts that nothing is bound to it.
        drop(buf);
    };
    attempt(&|s, _| (Buf::new(&s.y, 64), 64, REMOTE));
    attempt(&|_, stranger| (Buf::with_access(stranger, 64, BINDABLE), 64, REMOTE));
    attempt(&|s, _| (Buf::with_access(&s.y, 64, BINDABLE), 65, REMOTE));
    let read_only = (IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ).bits();
    attempt(&|s, _| (Buf::with_access(&s.y, 64, read_only), 64, REMOTE));
}
