//! rdma-soft
