//! WRITEs worked and fetch-and-add was refused: several rights have to come together.

use std::ffi::c_int;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const WITHOUT_ATOMIC: u32 = 7;
const FETCH_ADD: ibv_wr_opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;

/// One fetch-and-add of 1 to a word that holds 41: its status, what it fetched, what the word holds then.
fn attempt(opt: Options, region: u32, offset: usize) -> (u32, u64, u64) {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, opt);
    let (old, word) = (Buf::new(&x, 8), Buf::with_access(&y, 64, region));
    word.set_word(0, 41);
    let mut sges = [old.sge(0, 8)];
    assert_eq!(
        x.send(&mut atomic(FETCH_ADD, 1, &mut sges, &word, offset, 1, 0)),
        0
    );
    (x.sent().status.0, old.word(0), word.word(0))
}

/// One thing wrong at a time, each with its own status; then all of it right.
#[test]
fn each_mistake_has_its_status() {
    let good = Options::default();
    assert_eq!(
        attempt(good, WITHOUT_ATOMIC, 0),
        (10, 0, 41),
        "the region allows none"
    );
    let qp = Options {
        access: WITHOUT_ATOMIC,
        ..good
    };
    assert_eq!(attempt(qp, ALL_ACCESS, 0), (9, 0, 41), "the QP allows none");
    let depth = Options {
        dest_rd_atomic: 0,
        ..good
    };
    assert_eq!(
        attempt(depth, ALL_ACCESS, 0),
        (9, 0, 41),
        "the responder has no depth"
    );
    for offset in [1, 4, 7] {
        assert_eq!(
            attempt(good, ALL_ACCESS, offset),
            (9, 0, 41),
            "not a multiple of 8"
        );
    }
    // The old value in the host's byte order, the sum in memory.
    assert_eq!(attempt(good, ALL_ACCESS, 0), (0, 41, 42));
}

/// An entry that is not 8 bytes long is refused when posted.
#[test]
fn the_local_entry_is_eight_bytes() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (old, word) = (Buf::new(&x, 64), Buf::new(&y, 64));
    word.set_word(0, 41);
    for op in [FETCH_ADD, IBV_WR_ATOMIC_CMP_AND_SWP] {
        for len in [0, 4, 7, 9, 16] {
            let mut sges = [old.sge(0, len)];
            assert_eq!(
                x.send(&mut atomic(op, 0, &mut sges, &word, 0, 41, 1)),
                EINVAL,
                "{len}"
            );
            says(&[&format!("{len} bytes"), "8"]);
        }
    }
    assert_eq!(word.word(0), 41);
    // Two halves are eight bytes too.
    let mut halves = [old.sge(0, 4), old.sge(32, 4)];
    assert_eq!(
        x.send(&mut atomic(
            FETCH_ADD,
            1,
            &mut halves,
            &word,
            0,
            u64::MAX,
            0
        )),
        0
    );
    ok(x.sent());
    assert_eq!(
        [old.read(0, 4), old.read(32, 4)].concat(),
        41u64.to_ne_bytes()
    );
    assert_eq!(word.word(0), 40, "it wraps around");
}

/// Compare and swap needs the same, and swaps only what it expects.
#[test]
fn compare_and_swap() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (old, word) = (Buf::new(&x, 8), Buf::new(&y, 8));
    word.set_word(0, 41);
    for (expected, swap, after) in [(40, 7, 41), (41, 42, 42)] {
        let mut sges = [old.sge(0, 8)];
        let op = IBV_WR_ATOMIC_CMP_AND_SWP;
        assert_eq!(
            x.send(&mut atomic(op, 1, &mut sges, &word, 0, expected, swap)),
            0
        );
        assert_eq!(ok(x.sent()).opcode, IBV_WC_COMP_SWAP);
        assert_eq!((old.word(0), word.word(0)), (41, after));
    }
}

/// Rights of peers to write need the local right to write (ibv_reg_mr(3)).
#[test]
fn registering_without_the_local_right() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let memory = [0u8; 64];
    for access in [IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC] {
        let addr = memory.as_ptr().cast_mut().cast();
        // SAFETY: the PD is live; the call is refused.
        let mr = unsafe { verbs().reg_mr(end.pd, addr, 64, access.bits() as c_int) };
        assert!(mr.is_null());
        assert_eq!(errno(), EINVAL);
        says(&["IBV_ACCESS_LOCAL_WRITE"]);
    }
}
