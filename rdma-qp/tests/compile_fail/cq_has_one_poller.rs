#![allow(dead_code, unused)]
use rdma_qp::Cq;

fn poll(cq: Cq) {
    std::thread::scope(|s| {
        s.spawn(|| cq.poll().unwrap());
    });
}

fn main() {}
