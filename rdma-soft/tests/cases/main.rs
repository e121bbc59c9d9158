//! Troubles that others had with RDMA, and what this device does about each: one file per trouble.
//!
//! What `qp doctor` says about them is tried by its own tests; what waits for the safe layer stands in `pending`.

#[path = "../abi/capture.rs"]
mod capture;
#[path = "../abi/common.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod common;
#[path = "../abi/kinds.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod kinds;
mod pending;

mod address_of_a_unicast_host_as_a_group;
mod completion_between_poll_and_arm;
mod completions_of_a_former_life;
mod cq_smaller_than_what_completes;
mod destroying_what_others_use;
mod empty_messages;
mod enomem_means_a_full_queue_only;
mod fence_on_the_wrong_request;
mod is_the_qp_empty;
mod last_wqe_reached;
mod message_over_the_limit;
mod min_rnr_timer_zero_is_the_longest;
mod mtu_above_the_port;
mod opcode_of_a_failed_completion;
mod packets_of_a_recycled_number;
mod payload_starts_at_byte_40;
mod pkey_index_zero_assumed;
mod port_one_assumed;
mod qkey_with_the_high_bit;
mod region_under_a_window;
mod resetting_a_fresh_qp;
mod rights_for_atomics;
mod rnr_retry_zero_is_none;
mod sixty_four_kilobytes_of_locked_memory;
mod srq_on_an_xrc_initiator;
mod write_with_immediate_takes_a_receive;
mod xrc_ends_have_one_queue;
