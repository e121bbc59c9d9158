//! A READ brought what a later WRITE had written: the fence belongs on the request that has to wait.

use crate::common::*;
use rdma_qp::{Access, Memory, PostFlags, Timing, op};
use rdma_soft::Profile;

#[test]
fn a_fenced_write_never_overtakes_a_read_also_where_packets_are_lost() {
    let profile = Profile {
        faults: "loss=1%,seed=55".parse().unwrap(),
        ..Profile::default()
    };
    let (here, there) = (device(profile.clone()), device(profile));
    let (mut a, mut b) = (End::new(&here, 64), End::new(&there, 64));
    let timing = Timing {
        timeout: rdma_qp::AckTimeout::from_code(12).unwrap(),
        ..Timing::default()
    };
    let (of_b, _) = connect((&mut a, &here), (&mut b, &there), timing);
    let new =
        a.pd.register(Memory::copy_of(&2u64.to_ne_bytes()), Access::empty());
    let new = new.unwrap();
    let remote = of_b.region(0).unwrap().at(0);
    for round in 0..2000 {
        b.mr.write_at(0, &1u64.to_ne_bytes()).unwrap();
        let into = a.mr.slice(0, 8).unwrap();
        a.qp.post(op::Read { remote }, into, PostFlags::UNSIGNALED)
            .unwrap();
        let write =
            a.qp.post(op::Write { remote }, new.all(), PostFlags::FENCE)
                .unwrap();
        a.cq.wait(&write, LIMIT).unwrap();
        assert_eq!(a.bytes(0, 8), 1u64.to_ne_bytes(), "round {round}");
        assert_eq!(b.bytes(0, 8), 2u64.to_ne_bytes(), "round {round}");
    }
}
