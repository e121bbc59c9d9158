#![allow(dead_code, unused)]
use rdma_qp::xrc::Xrc;
use rdma_qp::{Cq, Pd, Srq};

fn create(pd: &Pd, cq: &Cq, basic: &Srq, xrc: &Srq<Xrc>) {
    let _ = pd.rc(cq).srq(xrc).create();
}

fn main() {}
