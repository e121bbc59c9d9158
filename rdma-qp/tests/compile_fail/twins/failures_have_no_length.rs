#![allow(dead_code, unused)]
use rdma_qp::Completion;

fn look(done: Completion) -> u32 {
    match done.outcome {
        Ok(success) => success.byte_len,
        Err(failure) => failure.vendor_err,
    }
}

fn main() {}
