#![allow(dead_code, unused)]
use rdma_qp::{Mr, Qp};

fn post(qp: &Qp, owned: &mut Qp, mr: &Mr) {
    let _ = qp.qp_num();
    qp.send(mr.all()).unwrap();
}

fn main() {}
