#![allow(dead_code, unused)]
use rdma_qp::Mr;

fn change(mr: &mut Mr) {
    mr[0] = 1;
}

fn main() {}
