#![allow(dead_code, unused)]
use rdma_qp::{Mr, Qp};

fn post(qp: &mut Qp, mr: Mr) {
    let mut sends = qp.sends();
    sends.send(mr.all()).unwrap();
    drop(sends); // `sends` enters its requests when it ends.
}

fn main() {}
