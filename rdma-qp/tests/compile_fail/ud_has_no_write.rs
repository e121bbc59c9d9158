#![allow(dead_code, unused)]
use rdma_qp::{MrSlice, PostFlags, Qp, RemoteAddr, Uc, Ud, op};

fn write(uc: &mut Qp<Uc>, ud: &mut Qp<Ud>, local: MrSlice<'_>, remote: RemoteAddr) {
    let _ = ud.post(op::Write { remote }, local, PostFlags::empty());
}

fn main() {}
