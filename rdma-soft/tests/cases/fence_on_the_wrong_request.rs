//! A READ returned what a later WRITE had written: the fence belongs on the request that has to wait.

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// Which of the two requests has the fence.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fence {
    Nowhere,
    OnTheRead,
    OnTheWrite,
}

const OLD: u64 = 1;
const NEW: u64 = 2;

/// READ of a word that holds 1, then WRITE of 2 to it, posted together, many times: how often the READ
/// brought 2, and how many hazards the sender counted.
fn overtakings(faults: &str, rounds: u64, fence: Fence) -> (u64, u64) {
    let (a, b) = (Device::with_faults(faults), Device::with_faults(faults));
    let opt = Options {
        // Lost packets are sent again after 16.8 ms.
        timeout: 12,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (got, word, new) = (Buf::new(&x, 8), Buf::new(&y, 8), Buf::new(&x, 8));
    new.set_word(0, NEW);
    let mut overtaken = 0;
    for round in 0..rounds {
        word.set_word(0, OLD);
        got.set_word(0, 0);
        let (mut into, mut out) = ([got.sge(0, 8)], [new.sge(0, 8)]);
        let mut read = unsignaled(rdma(IBV_WR_RDMA_READ, 1, &mut into, &word, 0));
        let mut write = rdma(IBV_WR_RDMA_WRITE, 2, &mut out, &word, 0);
        match fence {
            Fence::Nowhere => {}
            Fence::OnTheRead => read = flagged(read, IBV_SEND_FENCE),
            Fence::OnTheWrite => write = flagged(write, IBV_SEND_FENCE),
        }
        assert_eq!(post_list(x.qp, &mut [read, write]), (0, None));
        assert_eq!(ok(x.sent()).wr_id, 2);
        assert_eq!(word.word(0), NEW, "round {round}");
        match got.word(0) {
            OLD => {}
            NEW => overtaken += 1,
            other => panic!("round {round}: {other}"),
        }
    }
    (overtaken, a.counter("tx_unfenced_hazards"))
}

const ROUNDS: u64 = 10_000;
const LOSSY: &str = "loss=0.5%,seed=55";

/// With the fence on the WRITE, the READ brings the old value, every time, also where packets are lost.
#[test]
fn on_the_later_request_it_protects() {
    assert_eq!(overtakings("", ROUNDS, Fence::OnTheWrite), (0, 0));
    assert_eq!(overtakings(LOSSY, ROUNDS, Fence::OnTheWrite), (0, 0));
}

/// Without one, or with it on the READ, a lost answer of the READ lets the WRITE overtake it; and every round
/// is counted as a hazard.
#[test]
fn on_the_earlier_request_it_does_not() {
    for fence in [Fence::Nowhere, Fence::OnTheRead] {
        let rounds = 300;
        let (overtaken, hazards) = overtakings("loss=10%,seed=55", rounds, fence);
        assert!(overtaken > 0, "{fence:?}: the hazard can be shown");
        assert_eq!(hazards, rounds, "{fence:?}");
    }
}

/// A local buffer that is used again while a READ fills it is a hazard too; other memory, and a completion in
/// between, are none.
#[test]
fn hazards_are_told_from_harmless_requests() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (here, there) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let hazards = || a.counter("tx_unfenced_hazards");
    let read = |from: usize, into: usize| {
        let mut sges = [here.sge(into, 8)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_READ, 1, &mut sges, &there, from)),
            0
        );
    };
    let write = |to: usize, from: usize| {
        let mut sges = [here.sge(from, 8)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_WRITE, 2, &mut sges, &there, to)),
            0
        );
    };
    let done = || {
        for _ in 0..2 {
            ok(x.sent());
        }
    };
    let mut expected = 0;
    for (to, from, hazard, what) in [
        (16, 16, false, "other memory at both ends"),
        (0, 16, true, "the range that is being read"),
        (4, 16, true, "a part of it"),
        (16, 8, true, "the buffer that is being filled"),
    ] {
        // Held back until both are posted.
        assert!(rdma_soft::partition(&a.name, address(&b), true));
        read(0, 8);
        write(to, from);
        assert!(rdma_soft::partition(&a.name, address(&b), false));
        done();
        expected += u64::from(hazard);
        assert_eq!(hazards(), expected, "{what}");
    }
    read(0, 8);
    ok(x.sent());
    write(0, 8);
    ok(x.sent());
    assert_eq!(hazards(), expected, "a completion in between");
}
