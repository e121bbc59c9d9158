//! rdma-core-sys
