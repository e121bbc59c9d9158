//! The processes of a job, all connected with all.
