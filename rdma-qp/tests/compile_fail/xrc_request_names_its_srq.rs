#![allow(dead_code, unused)]
use rdma_qp::xrc::{SrqNum, XrcSend};
use rdma_qp::{MrSlice, PostFlags, Qp, op};

fn send(qp: &mut Qp<XrcSend>, local: MrSlice<'_>, srq: SrqNum) {
    let _ = qp.post(op::Send, local, PostFlags::empty());
}

fn main() {}
