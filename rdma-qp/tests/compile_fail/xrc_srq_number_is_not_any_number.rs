#![allow(dead_code, unused)]
use rdma_qp::xrc::{BadSrqNum, SrqNum, XrcSend};
use rdma_qp::{MrSlice, Qp};

fn send(qp: &mut Qp<XrcSend>, local: MrSlice<'_>) -> Result<(), BadSrqNum> {
    let _ = qp.send_to(local, 7);
    Ok(())
}

fn main() {}
