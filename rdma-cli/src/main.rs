//! The command `qp`.
fn main() {}
