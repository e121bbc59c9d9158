//! Troubles that others had with RDMA, and what this library does about each: one file per trouble.
//!
//! What the doctor says about them is tried in `tests/doctor`, and by the tests of the command `qp doctor`.

#[path = "../../../rdma-soft/tests/abi/capture.rs"]
#[allow(dead_code, reason = "the device's own tests use the rest")]
mod capture;
#[path = "../common/mod.rs"]
mod common;
#[path = "../fake/mod.rs"]
mod fake;

mod acknowledged_one_by_one;
mod address_of_a_unicast_host_as_a_group;
mod asleep_over_a_completion;
mod bare_errno_22;
mod completions_of_a_former_life;
mod early_return_in_setup;
mod empty_gid_slots;
mod enomem_of_three_meanings;
mod failed_without_a_peer;
mod fence_on_the_later_request;
mod fork_beside_regions;
mod hop_limit_one;
mod is_the_qp_empty;
mod keys_in_the_wrong_byte_order;
mod lid_addressing_on_ethernet;
mod link_local_gid_goes_nowhere;
mod old_query_port;
mod payload_starts_at_byte_40;
mod port_that_is_down;
mod qkey_with_the_high_bit;
mod read_depth_of_the_peer;
mod retry_count_out_of_range;
mod rocev1_entry_first;
mod source_index_forgotten;
