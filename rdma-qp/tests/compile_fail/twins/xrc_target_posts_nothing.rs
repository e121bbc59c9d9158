#![allow(dead_code, unused)]
use rdma_qp::xrc::{SrqNum, XrcSend, XrcTarget};
use rdma_qp::{MrSlice, Qp};

fn send(initiator: &mut Qp<XrcSend>, target: &mut XrcTarget, local: MrSlice<'_>, srq: SrqNum) {
    let _ = initiator.send_to(local, srq);
}

fn main() {}
