#![allow(dead_code, unused)]
use rdma_qp::{Mr, Qp};

fn close(mut qp: Qp, mut other: Qp, mr: &Mr) {
    qp.close().unwrap();
    qp.send(mr.all()).unwrap();
}

fn main() {}
