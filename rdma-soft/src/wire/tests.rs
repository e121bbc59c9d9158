//! Tests of the wire formats against frames, numbers and decoders from elsewhere.

mod headers;
mod icrc;
mod opcodes;
mod packets;
mod psn;
mod vectors;
