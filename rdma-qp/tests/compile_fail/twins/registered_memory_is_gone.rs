#![allow(dead_code, unused)]
use rdma_qp::{Access, Memory, Mr, Pd};

fn register(pd: &Pd, memory: Memory) -> (Mr, Memory) {
    let spare = Memory::copy_of(&memory);
    let mr = pd.register(memory, Access::LOCAL_WRITE).unwrap();
    (mr, spare)
}

fn main() {}
