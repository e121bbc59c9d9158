//! rdma-qp
