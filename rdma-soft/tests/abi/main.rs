//! The software device as a C program uses it: through the verbs table and the inline operations.

mod arguments;
#[allow(dead_code, reason = "the tests of cases read the frames")]
mod capture;
mod common;
mod cq_ex;
mod datagram;
mod device_memory;
mod events;
mod faults;
mod import;
#[allow(dead_code, reason = "the tests of cases use the rest")]
mod kinds;
mod objects;
mod operations;
mod ports;
mod process;
mod qp_ex;
mod queues;
mod retries;
mod runtime;
mod srq;
mod states;
mod windows;
mod words;
mod xrc;
