//! The software device as a C program uses it: through the verbs table and the inline operations.

mod common;
mod events;
mod faults;
mod objects;
mod operations;
mod ports;
mod process;
mod queues;
mod retries;
