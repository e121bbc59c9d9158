#![allow(dead_code, unused)]
use rdma_qp::xrc::XrcSend;
use rdma_qp::{MrSlice, Qp, Rc};

fn recv(rc: &mut Qp<Rc>, initiator: &mut Qp<XrcSend>, local: MrSlice<'_>) {
    let _ = initiator.recv(local);
}

fn main() {}
