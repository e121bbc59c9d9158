//! `libqp`: the safe core for C and MPI programs. The interface is `include/qp.h`.
