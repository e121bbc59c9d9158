//! `qp copy` as a user runs it: what arrives, what is refused, and what happens when one end dies.

mod arrives;
mod dies;
mod hostile;
mod refused;
mod resume;
mod run;
mod trees;
