#![allow(dead_code, unused)]
use rdma_qp::Mr;

fn change(mr: &mut Mr) {
    mr.write_at(0, &[1]).unwrap();
}

fn main() {}
