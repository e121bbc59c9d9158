#![allow(dead_code, unused)]
use rdma_qp::{Mr, Qp};

fn post(qp: &mut Qp, mr: Mr) {
    let all = mr.all();
    drop(mr);
    qp.send(all).unwrap();
}

fn main() {}
