//! Sequences of calls of libqp with any arguments: handles that live, that were destroyed, of other types, and that are none.
//! The driver is `rdma-capi/tests/fuzz.c`: it draws all that from the input, and checks what each call says of itself.
#![no_main]

use std::ffi::c_int;

use rdma_fuzz::{Recent, Tally};
// What the driver calls.
use qp as _;

static TALLY: Tally = Tally::new();
static RECENT: Recent = Recent::new();

unsafe extern "C" {
    fn fuzz_one(data: *const u8, size: usize) -> c_int;
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    RECENT.keep(data);
    // SAFETY: as many bytes are readable, and libFuzzer gives its inputs in one thread, one after another.
    let calls = unsafe { fuzz_one(data.as_ptr(), data.len()) };
    let calls = u64::try_from(calls).expect("what a call said is not as documented");
    TALLY.add([("calls", calls)]);
});
