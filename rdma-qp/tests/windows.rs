//! Memory windows: rights for a peer, given and taken by requests.

mod common;

use common::{LIMIT, device, pair};
use rdma_core_sys::{IBV_WC_MW_BIND_ERR, IBV_WC_REM_ACCESS_ERR};
use rdma_qp::{Access, ClosePdError, Memory, PostError, PostFlags, WaitError};
use rdma_soft::Profile;

fn bindable(pd: &rdma_qp::Pd) -> rdma_qp::Mr {
    pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE | Access::MW_BIND)
        .unwrap()
}

#[test]
fn a_peer_reaches_what_a_window_shows_and_nothing_after_it_is_taken_away() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 64);
    let mr = bindable(&a.pd);
    let mut window = a.pd.window().unwrap();
    let rights = Access::REMOTE_WRITE;
    let part = mr.slice(100, 16).unwrap();
    let (bound, offered) =
        a.qp.bind(&mut window, part, rights, PostFlags::empty())
            .unwrap();
    a.cq.wait(&bound, LIMIT).unwrap();
    assert_eq!((offered.len, offered.rkey), (16, window.rkey()));

    b.mr.write_at(0, b"sixteen bytes ..").unwrap();
    let all = b.mr.slice(0, 16).unwrap();
    let wrote = b.qp.write(all, offered.at(0)).unwrap();
    b.cq.wait(&wrote, LIMIT).unwrap();
    let mut seen = [0; 16];
    mr.read_at(100, &mut seen).unwrap();
    assert_eq!(&seen, b"sixteen bytes ..");

    let taken = a.qp.unbind(&window, PostFlags::empty()).unwrap();
    a.cq.wait(&taken, LIMIT).unwrap();
    let late = b.qp.write(all, offered.at(0)).unwrap();
    let error = b.cq.wait(&late, LIMIT).unwrap_err();
    assert!(
        matches!(&error, WaitError::Failed(report) if report.status == IBV_WC_REM_ACCESS_ERR),
        "{error}"
    );
    mr.close().expect("no window is bound to it");
}

/// Each bind gives another key; the former one is void.
#[test]
fn a_window_is_bound_again_with_another_key() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 64);
    let mr = bindable(&a.pd);
    let mut window = a.pd.window().unwrap();
    let mut keys = Vec::new();
    for at in [0, 512] {
        if at != 0 {
            let taken = a.qp.unbind(&window, PostFlags::empty()).unwrap();
            a.cq.wait(&taken, LIMIT).unwrap();
        }
        let part = mr.slice(at, 8).unwrap();
        let rights = Access::REMOTE_WRITE;
        let (bound, offered) =
            a.qp.bind(&mut window, part, rights, PostFlags::empty())
                .unwrap();
        a.cq.wait(&bound, LIMIT).unwrap();
        keys.push(offered);
    }
    assert_ne!(keys[0].rkey, keys[1].rkey);
    let local = b.mr.slice(0, 8).unwrap();
    let wrote = b.qp.write(local, keys[1].at(0)).unwrap();
    b.cq.wait(&wrote, LIMIT).unwrap();
    let stale = b.qp.write(local, keys[0].at(0)).unwrap();
    assert!(b.cq.wait(&stale, LIMIT).is_err());
}

#[test]
fn a_region_that_was_not_registered_for_windows_fails_the_bind() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 64);
    let mr =
        a.pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)
            .unwrap();
    let mut window = a.pd.window().unwrap();
    let rights = Access::REMOTE_READ;
    match a.qp.bind(&mut window, mr.all(), rights, PostFlags::empty()) {
        // Devices refuse it either when it is posted, or when it is executed.
        Err(PostError::Refused { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok((ticket, _)) => {
            let error = a.cq.wait(&ticket, LIMIT).unwrap_err();
            assert!(
                matches!(&error, WaitError::Failed(report) if report.status == IBV_WC_MW_BIND_ERR),
                "{error}"
            );
        }
    }
}

/// The region waits for the window, and the domain knows of it until then.
#[test]
fn a_region_dropped_under_a_window_is_freed_after_it() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 64);
    let mr = bindable(&a.pd);
    let mut window = a.pd.window().unwrap();
    let rights = Access::REMOTE_READ;
    let (bound, _) =
        a.qp.bind(&mut window, mr.all(), rights, PostFlags::empty())
            .unwrap();
    a.cq.wait(&bound, LIMIT).unwrap();
    drop(mr);
    assert_eq!(a.pd.retired_regions(), 1);
    drop(window);
    assert_eq!(a.pd.retired_regions(), 0);
}

#[test]
fn a_domain_with_a_window_says_so_when_it_is_closed() {
    let device = device(Profile::default());
    let pd = device.alloc_pd().unwrap();
    let window = pd.window().unwrap();
    let error = pd.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the protection domain still has no QP and 0 region(s), and 1 memory window"
    );
    let ClosePdError::Busy { pd, windows, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(windows, 1);
    drop(window);
    pd.close().unwrap();
}

#[test]
fn a_window_of_another_domain_is_refused() {
    let device = device(Profile::default());
    let ((mut a, _), (b, _)) = pair(&device, 64);
    let (mr, of_b) = (bindable(&a.pd), bindable(&b.pd));
    let mut window = b.pd.window().unwrap();
    for region in [&mr, &of_b] {
        let error =
            a.qp.bind(
                &mut window,
                region.all(),
                Access::REMOTE_READ,
                PostFlags::empty(),
            )
            .unwrap_err();
        assert_eq!(error, PostError::OtherPdWindow);
    }
    assert_eq!(a.qp.send_account().accepted, 0);
}
