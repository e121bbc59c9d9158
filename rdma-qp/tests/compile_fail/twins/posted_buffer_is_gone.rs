#![allow(dead_code, unused)]
use rdma_qp::{Buffer, Qp};

fn receive(qp: &mut Qp, mut buffer: Buffer, other: Buffer) -> u8 {
    qp.recv_buffer(buffer).unwrap();
    other[0]
}

fn main() {}
