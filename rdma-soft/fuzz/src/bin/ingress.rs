//! See [`rdma_fuzz::ingress`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdma_fuzz::ingress::run(data));
