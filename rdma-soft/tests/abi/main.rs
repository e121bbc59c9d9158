//! The software device as a C program uses it: through the verbs table and the inline operations.

mod common;
mod operations;
