//! Programs in trouble, and programs that are well. Each has both ends in one process but where its name says otherwise.
//!
//! Beside what `qp doctor --` records of it, a program leaves what a user would have without that: the dump of each end and
//! the text of the error, in the directory that `LEAVE` names.

mod connection;
mod healthy;
mod modify;
mod refused;
mod requests;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use rdma_core_sys::*;
use rdma_qp::{
    Access, AckTimeout, Cq, Device, Dump, Memory, Mr, PathOptions, Pd, Peer, QKey, Qp, RetryCount,
    Timing, Ud, WaitError,
};

pub const LIMIT: Duration = Duration::from_secs(20);

/// The verbs that this process has: those of the preloaded library.
pub fn verbs() -> Verbs {
    Verbs::open().unwrap()
}

pub fn device() -> Device {
    Device::open_index(&verbs(), 0).unwrap()
}

/// One end: a QP, its CQ, a region, and where they came from.
pub struct End {
    pub qp: Qp,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
}

pub const ALL: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// `memory`: what peers may do with the region, `queue`: with the QP.
pub fn end_of(device: &Device, memory: Access, queue: Access) -> End {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd.register(Memory::zeroed(8192), memory).unwrap();
    let qp = pd
        .rc(&cq)
        .send_depth(16)
        .recv_depth(16)
        .access(queue)
        .create()
        .unwrap();
    End { qp, cq, mr, pd }
}

pub fn end(device: &Device) -> End {
    end_of(device, ALL, ALL)
}

pub fn describe(device: &Device, end: &mut End) -> Peer {
    let gid = device.port(1).unwrap().best_gid().unwrap();
    Peer {
        endpoint: end.qp.endpoint(gid).unwrap(),
        regions: vec![end.mr.remote()],
    }
}

/// A dead peer is an error soon.
pub fn impatient() -> Timing {
    Timing {
        timeout: AckTimeout::from_code(12).unwrap(),
        retry_cnt: RetryCount::new(1).unwrap(),
        ..Timing::default()
    }
}

/// Both ends to RTR, then both to RTS, with what each was told of the other.
pub fn connect(a: &mut End, of_b: &Peer, b: &mut End, of_a: &Peer, timing: Timing) {
    let (x, y) = (
        a.qp.connect_begin(of_b, timing).unwrap(),
        b.qp.connect_begin(of_a, timing).unwrap(),
    );
    a.qp.connect_finish(x, timing).unwrap();
    b.qp.connect_finish(y, timing).unwrap();
}

/// Two ends that are connected after `spoil` changed what a is told of b, and b of a.
pub fn pair_of(
    mut a: End,
    mut b: End,
    device: &Device,
    timing: Timing,
    spoil: impl FnOnce(&mut Peer, &mut Peer),
) -> (End, End, Peer) {
    let (mut of_a, mut of_b) = (describe(device, &mut a), describe(device, &mut b));
    spoil(&mut of_b, &mut of_a);
    connect(&mut a, &of_b, &mut b, &of_a, timing);
    (a, b, of_b)
}

/// Such a pair with everything as usual but for that.
pub fn spoiled(spoil: impl FnOnce(&mut Peer, &mut Peer)) -> (End, End, Peer) {
    let device = device();
    pair_of(end(&device), end(&device), &device, impatient(), spoil)
}

pub fn pair() -> (End, End, Peer) {
    spoiled(|_, _| {})
}

/// Leaves the dumps of both ends, or of the one that there is, and the text of the error.
pub fn leave(ends: &[Dump], error: &dyn Display) {
    if let Some(dir) = std::env::var_os("LEAVE").map(PathBuf::from) {
        leave_in(&dir, ends, error);
    }
}

pub fn leave_in(dir: &std::path::Path, ends: &[Dump], error: &dyn Display) {
    for (place, end) in ends.iter().enumerate() {
        std::fs::write(dir.join(format!("{place}.json")), end.to_json()).unwrap();
    }
    std::fs::write(dir.join("error.txt"), error.to_string()).unwrap();
}

/// Waits for the request of the first end; asserts that it fails with this status, and leaves what there is.
pub fn fails(a: &End, b: &End, ticket: rdma_qp::Ticket, status: ibv_wc_status) {
    match a.cq.wait(&ticket, LIMIT) {
        Err(WaitError::Failed(report)) => {
            assert_eq!(report.status, status, "{report}");
            leave(&[a.qp.dump(), b.qp.dump()], &report);
        }
        other => panic!("{other:?}"),
    }
}

/// As programs do after perror: out.
pub fn give_up() -> ! {
    std::process::exit(1)
}

/// A modify as a program in C makes it.
pub fn modify(qp: &Qp, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> i32 {
    // SAFETY: the QP is live, the attributes are whole.
    unsafe { verbs().modify_qp(qp.as_ptr(), attr, mask.bits() as _) }
}

/// A UD QP that is ready.
pub struct Member {
    pub qp: Qp<Ud>,
    pub cq: Cq,
    pub mr: Mr,
    pub here: rdma_qp::Endpoint,
}

pub fn member(key: u32) -> Member {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(512).unwrap());
    let mr = pd
        .register(Memory::zeroed(4096), Access::LOCAL_WRITE)
        .unwrap();
    let mut qp = pd.ud(&cq).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let here = qp
        .activate(gid, QKey::new(key).unwrap(), PathOptions::default())
        .unwrap();
    Member { qp, cq, mr, here }
}

macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident => $body:block)*) => { $(
        $(#[$doc])*
        #[test]
        #[ignore = "run by another test, under `qp doctor --`"]
        fn $name() $body
    )* };
}
use programs;
