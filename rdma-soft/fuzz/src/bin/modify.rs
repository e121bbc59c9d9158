//! See [`rdma_fuzz::modify`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma_fuzz::modify::run(data));
