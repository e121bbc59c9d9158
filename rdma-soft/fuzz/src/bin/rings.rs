//! See [`rdma_fuzz::rings`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma_fuzz::rings::run(data));
