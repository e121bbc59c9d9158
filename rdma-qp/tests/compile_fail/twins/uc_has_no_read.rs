#![allow(dead_code, unused)]
use rdma_qp::{MrSlice, PostFlags, Qp, Rc, RemoteAddr, Uc, op};

fn read(rc: &mut Qp<Rc>, uc: &mut Qp<Uc>, local: MrSlice<'_>, remote: RemoteAddr) {
    let _ = rc.post(op::Read { remote }, local, PostFlags::empty());
}

fn main() {}
