//! How many Queue Pairs, and how much memory, a job needs on each transport.
