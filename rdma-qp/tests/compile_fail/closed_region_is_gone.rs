#![allow(dead_code, unused)]
use rdma_qp::Mr;

fn close(mr: Mr) -> u8 {
    let memory = mr.close().unwrap();
    let first = mr.len() as u8;
    first.max(1)
}

fn main() {}
