#![allow(dead_code, unused)]
use rdma_qp::{PathMtu, ToRtr};

fn set(mut to: ToRtr) -> ToRtr {
    to.path_mtu = PathMtu::from_bytes(4096).unwrap();
    to
}

fn main() {}
