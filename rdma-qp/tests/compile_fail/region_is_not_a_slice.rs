#![allow(dead_code, unused)]
use rdma_qp::{Mr, MrSlice};

fn look(mr: &Mr) -> u8 {
    let part: MrSlice<'_> = mr.slice(0, 8).unwrap();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&part);
    bytes[0]
}

fn main() {}
