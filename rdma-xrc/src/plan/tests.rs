//! Plans against a job that is counted pair by pair, and against figures worked out by hand.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn usual(nodes: u32, per_node: u32, intra: IntraNode) -> Plan {
    plan(nodes, per_node, Depths::default(), intra).unwrap()
}

/// Counts by going through all pairs: ends of RC connections, and (process, node) ways of XRC.
fn counted(nodes: u32, per_node: u32, intra: IntraNode) -> (u64, u64) {
    let processes: Vec<(u32, u32)> = (0..nodes)
        .flat_map(|node| (0..per_node).map(move |at| (node, at)))
        .collect();
    let (mut ends, mut ways) = (0, BTreeSet::new());
    for from in &processes {
        for to in &processes {
            if from == to || (intra == IntraNode::Shm && from.0 == to.0) {
                continue;
            }
            ends += 1;
            ways.insert((*from, to.0));
        }
    }
    (ends, ways.len() as u64)
}

proptest! {
    #[test]
    fn formulas_are_what_counting_gives(nodes in 1u32..8, per_node in 1u32..8, shm: bool) {
        let intra = if shm { IntraNode::Shm } else { IntraNode::Fabric };
        let plan = usual(nodes, per_node, intra);
        let (ends, ways) = counted(nodes, per_node, intra);
        prop_assert_eq!(plan.rc.job.qps, ends);
        prop_assert_eq!(plan.rc_srq.job.qps, ends);
        prop_assert_eq!(plan.xrc.job.initiators, Some(ways));
        prop_assert_eq!(plan.xrc.job.targets, Some(ways));
        prop_assert_eq!(plan.ud.job.qps, u64::from(nodes * per_node));
    }

    #[test]
    fn nothing_overflows_silently(
        nodes in 1u32..1_000_000,
        per_node in 1u32..1_000,
        send in 1u32..1_000,
        recv in 1u32..1_000,
        srq in 1u32..100_000,
        buffer: u32,
    ) {
        let depths = Depths { send, recv, srq, buffer };
        if let Ok(plan) = plan(nodes, per_node, depths, IntraNode::Fabric) {
            let (m, p) = (u128::from(nodes), u128::from(per_node));
            prop_assert_eq!(u128::from(plan.rc.job.qps), m * p * (m * p - 1));
            prop_assert_eq!(
                u128::from(plan.rc.job.receive_bytes),
                m * p * (m * p - 1) * u128::from(recv) * u128::from(buffer)
            );
        }
    }
}

/// The figures of the reference that corrects the article, per node and with shared memory inside.
#[test]
fn shared_memory_inside_a_node() {
    let four = usual(4, 4, IntraNode::Shm);
    assert_eq!(four.rc.per_node.qps, 48);
    assert_eq!(four.xrc.per_node.qps, 24);
    let ten = usual(10, 10, IntraNode::Shm);
    assert_eq!((ten.rc.per_node.qps, ten.xrc.per_node.qps), (900, 180));
    let ones = usual(7, 1, IntraNode::Shm);
    assert_eq!(ones.xrc.job.qps, 2 * ones.rc.job.qps);
    let twos = usual(7, 2, IntraNode::Shm);
    assert_eq!(twos.xrc.job.qps, twos.rc.job.qps);
}

/// 2 nodes of 2, worked out by hand: 3 peers on 2 nodes.
#[test]
fn memory_is_the_sum_of_what_the_table_lists() {
    let depths = Depths {
        send: 16,
        recv: 8,
        srq: 32,
        buffer: 100,
    };
    let plan = plan(2, 2, depths, IntraNode::Fabric).unwrap();
    // A QP: 16 x 256 + 8 x 16 = 4224 in 2 pages, + 1024. CQ: 3 x 24 x 64 = 4608 in 2 pages, + 1024.
    let rc = 3 * (8192 + 1024) + (8192 + 1024) + 3 * 8 * 100;
    assert_eq!(plan.rc.per_process.memory_bytes, rc);
    // A QP: 1 page. SRQ: 32 x 32 in 1 page. CQ: (3 x 16 + 32) x 64 = 5120 in 2 pages.
    let rc_srq = 3 * (4096 + 1024) + (4096 + 1024) + (8192 + 1024) + 32 * 100;
    assert_eq!(plan.rc_srq.per_process.memory_bytes, rc_srq);
    // 2 initiators, 2 targets. CQ: (2 x 16 + 32) x 64 = 1 page.
    let xrc = 2 * (4096 + 1024) + 2 * 1024 + (4096 + 1024) + (4096 + 1024) + 32 * 100;
    assert_eq!(plan.xrc.per_process.memory_bytes, xrc);
    // A QP: 32 x 128 + 32 x 16 = 4608 in 2 pages. CQ: 64 x 64 = 1 page.
    let ud = (8192 + 1024) + (4096 + 1024) + 3 * 64 + 32 * 140;
    assert_eq!(plan.ud.per_process.memory_bytes, ud);
    assert_eq!(plan.ud.job.memory_bytes, 4 * ud);
    assert_eq!(plan.ud.per_node.memory_bytes, 2 * ud);
    // A QP: 128 x 128 + 32 x 16 = 16896 in 5 pages. CQ: 160 x 64 = 10240 in 3 pages. 37 buffers, and 160 packets to be sent.
    let datagrams = (5 * 4096 + 1024) + (3 * 4096 + 1024) + 3 * 64 + 37 * 140 + 160 * 100;
    assert_eq!(plan.datagrams.per_process.memory_bytes, datagrams);
}

#[test]
fn break_even_by_nodes() {
    let at = |nodes, intra| {
        let found = usual(nodes, 1, intra).break_even();
        (found.xrc_as_many_qps_at, found.xrc_fewer_qps_from)
    };
    assert_eq!(at(10, IntraNode::Shm), (Some(2), Some(3)));
    // P - 1 against 2.
    assert_eq!(at(1, IntraNode::Fabric), (Some(3), Some(4)));
    // 2 P - 1 against 4, and 10 P - 1 against 20: never equal.
    assert_eq!(at(2, IntraNode::Fabric), (None, Some(3)));
    assert_eq!(at(10, IntraNode::Fabric), (None, Some(3)));
    // All in one node, and shared memory there: no QPs at all.
    assert_eq!(at(1, IntraNode::Shm), (None, None));
}

#[test]
fn a_hundred_thousand_processes() {
    let large = usual(1_000, 100, IntraNode::Fabric);
    assert_eq!(large.rc.job.qps, 9_999_900_000);
    assert_eq!(large.xrc.job.qps, 200_000_000);
    assert_eq!(large.ud.job.qps, 100_000);
}

#[test]
fn what_cannot_be_planned_is_explained() {
    let refused = plan(0, 4, Depths::default(), IntraNode::Fabric).unwrap_err();
    assert_eq!(refused.to_string(), "nodes is 0: give at least 1");
    let most = u32::MAX;
    let refused = plan(most, most, Depths::default(), IntraNode::Fabric).unwrap_err();
    let (nodes, per_node) = (most, most);
    assert_eq!(refused, PlanError::TooLarge { nodes, per_node });
}
