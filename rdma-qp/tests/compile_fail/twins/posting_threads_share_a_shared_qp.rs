#![allow(dead_code, unused)]
use rdma_qp::{NOTHING, PostFlags, Qp, SharedQp, op};

fn post(mut qp: Qp, shared: SharedQp) {
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| shared.post(op::Send, None, PostFlags::empty(), 0).is_ok());
        }
    });
}

fn main() {}
