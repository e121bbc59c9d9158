#![allow(dead_code, unused)]
use rdma_qp::{Cq, Pd};

fn create(pd: &Pd, cq: &Cq) {
    let _ = pd.xrc(cq).send_depth(8).recv_depth(8).create();
}

fn main() {}
