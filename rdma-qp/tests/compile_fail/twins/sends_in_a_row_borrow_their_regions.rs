#![allow(dead_code, unused)]
use rdma_qp::{Mr, Qp};

fn post(qp: &mut Qp, mr: Mr) {
    let mut sends = qp.sends();
    sends.send(mr.all()).unwrap();
    let _ = mr.len();
    sends.ring().unwrap();
}

fn main() {}
