//! Setup failed half-way, the destructors panicked over what was busy, and the first error was never seen.

use crate::common;
use crate::fake::{self, Fake};
use rdma_qp::{Access, Cq, Device, Errno, Memory, Mr, NOTHING, Pd, Peer, Qp, Timing, ToErr};
use rdma_soft::Profile;

/// How far a QP was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Reset,
    Init,
    Rtr,
    Rts,
    Err,
}

const STAGES: [Stage; 5] = [
    Stage::Reset,
    Stage::Init,
    Stage::Rtr,
    Stage::Rts,
    Stage::Err,
];

type Failed = Box<dyn std::error::Error>;
type Things = (Device, Pd, Cq, Mr, Qp);

/// What a program sets up, each step with `?`. The QP is connected to itself.
fn set_up(device: Device, stage: Stage) -> Result<Things, Failed> {
    let pd = device.alloc_pd()?;
    let cq = device.create_event_cq(64)?;
    let mr = pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)?;
    let mut qp = pd.rc(&cq).create()?;
    let gid = device.port(1)?.best_gid()?;
    let there = Peer {
        endpoint: qp.endpoint(gid)?,
        regions: Vec::new(),
    };
    if stage >= Stage::Init {
        qp.init()?;
        qp.recv(mr.all())?;
    }
    if stage >= Stage::Rtr {
        let agreed = qp.connect_begin(&there, Timing::default())?;
        if stage >= Stage::Rts {
            qp.connect_finish(agreed, Timing::default())?;
            qp.send(NOTHING)?;
        }
    }
    if stage == Stage::Err {
        qp.to(ToErr)?;
    }
    Ok((device, pd, cq, mr, qp))
}

/// Drops all five in each of the 120 orders.
fn in_every_order(mut make: impl FnMut() -> Things, mut after: impl FnMut()) {
    let mut orders = 0;
    for code in 0..5usize.pow(5) {
        let order: [usize; 5] = std::array::from_fn(|at| code / 5usize.pow(at as u32) % 5);
        if (0..5).any(|thing| !order.contains(&thing)) {
            continue;
        }
        orders += 1;
        let (device, pd, cq, mr, qp) = make();
        let (mut device, mut pd, mut cq) = (Some(device), Some(pd), Some(cq));
        let (mut mr, mut qp) = (Some(mr), Some(qp));
        for thing in order {
            match thing {
                0 => drop(device.take()),
                1 => drop(pd.take()),
                2 => drop(cq.take()),
                3 => drop(mr.take()),
                _ => drop(qp.take()),
            }
        }
        after();
    }
    assert_eq!(orders, 120);
}

#[test]
fn a_qp_of_any_stage_is_dropped_with_the_rest_in_any_order() {
    for stage in STAGES {
        let fake = Fake::new();
        let open = || Device::open(&fake::verbs(), "fake0").unwrap();
        in_every_order(
            || set_up(open(), stage).unwrap(),
            || assert_eq!(fake.live(), 0, "{stage:?}"),
        );
    }
}

/// The same with a device that works, in which everything is under way: after all that it is as good as new.
#[test]
fn a_device_is_none_the_worse_for_it() {
    let device = common::device(Profile::default());
    let mut stages = STAGES.into_iter().cycle();
    let mut next = || set_up(device.clone(), stages.next().unwrap()).unwrap();
    in_every_order(&mut next, || ());
    let ((mut a, of_b), _b) = common::pair(&device, 64);
    let written =
        a.qp.write(a.mr.slice(0, 8).unwrap(), of_b.region(0).unwrap().at(0))
            .unwrap();
    a.cq.wait(&written, common::LIMIT).unwrap();
}

/// Every call of the setup fails in turn: its errno reaches the caller, and nothing is left.
#[test]
fn the_first_error_is_the_one_that_is_seen() {
    for call in [
        "query_device",
        "alloc_pd",
        "create_cq",
        "reg_mr",
        "create_qp",
        "modify_qp",
        "post_recv",
        "post_send",
    ] {
        let fake = Fake::new();
        fake.fail(call, 12);
        let result = Device::open(&fake::verbs(), "fake0")
            .map_err(Failed::from)
            .and_then(|device| set_up(device, Stage::Rts));
        let Err(error) = result else {
            panic!("{call} was not made")
        };
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            text += &format!(": {inner}");
            source = inner.source();
        }
        assert!(text.contains(&Errno::ENOMEM.to_string()), "{call}: {text}");
        drop(error);
        assert_eq!(fake.live(), 0, "{call}");
    }
}

/// Explicit closing says who is in the way, and gives the object back.
#[test]
fn what_is_in_use_is_not_closed_and_says_by_whom() {
    let device = common::device(Profile::default());
    let (_device, pd, cq, mr, mut qp) = set_up(device, Stage::Reset).unwrap();
    qp.init().unwrap();
    qp.recv(mr.all()).unwrap();
    let number = format!("QP {:#x}", qp.qp_num());
    let error = cq.close().unwrap_err();
    assert!(error.to_string().contains(&number), "{error}");
    let rdma_qp::CloseCqError::Busy { cq, .. } = error else {
        panic!("{error}")
    };
    let error = mr.close().unwrap_err();
    assert!(error.to_string().contains(&number), "{error}");
    let error = pd.close().unwrap_err();
    assert!(error.to_string().contains(&number), "{error}");
    drop(error);
    qp.close().unwrap();
    cq.close().unwrap();
}
