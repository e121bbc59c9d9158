//! See [`rdma_fuzz::packets`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma_fuzz::packets::run(data));
