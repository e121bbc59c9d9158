//! `libqp`: the safe core for C and MPI programs. The interface is `include/qp.h`, which `header.sh` makes from this.
//!
//! * `export`: the border. The one macro that exports functions is the panic boundary, the NULL check and the look-up of
//!   handles.
//! * `slots`: handles, which are numbers of one table.
//! * `fault`: errno, code and sentence.
//!
//! Everything else is one file per area, and calls the safe layer.
// An object that cannot be destroyed now comes back with the reason; nothing of it is on a hot path.
#![allow(clippy::result_large_err)]

mod export;
mod slots;

// What the header has, in its order.
mod version;

mod fault;

mod log;

mod values;

mod endpoint;

mod exchange;

// Stage a.
mod modify;

// Stage b.
mod connect;

mod adopted;

// Stage c.
mod device;

mod memory;

mod cq;

mod srq;

mod pair;

mod xrc;

mod join;

mod dest;

mod post;

mod shared;

mod supervised;

mod window;

mod plan;

mod doctor;

mod mesh;

mod datagrams;

// What is in none of it.
mod errors;
mod verbs;
