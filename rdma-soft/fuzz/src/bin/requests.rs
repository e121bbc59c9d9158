//! See [`rdma_fuzz::requests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma_fuzz::requests::run(data));
