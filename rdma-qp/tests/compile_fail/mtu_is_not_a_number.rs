#![allow(dead_code, unused)]
use rdma_qp::{PathMtu, ToRtr};

fn set(mut to: ToRtr) -> ToRtr {
    to.path_mtu = 4096;
    to
}

fn main() {}
