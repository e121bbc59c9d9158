#![allow(dead_code, unused)]
use rdma_qp::{Cq, Pd, Srq};

fn create(pd: &Pd, cq: &Cq, srq: &Srq) {
    let _ = pd.rc(cq).srq(srq).create();
}

fn main() {}
