//! What must not compile. Each program has a twin in `twins` that differs in one line and does compile, so that none of
//! them fails for another reason than the one it is there for.

use std::fs;
use std::path::Path;

/// The twins, compiled with this test.
#[path = "compile_fail/twins"]
mod twins {
    #[path = "closed_qp_is_gone.rs"]
    mod closed_qp_is_gone;
    #[path = "closed_region_is_gone.rs"]
    mod closed_region_is_gone;
    #[path = "cq_has_one_poller.rs"]
    mod cq_has_one_poller;
    #[path = "failures_have_no_length.rs"]
    mod failures_have_no_length;
    #[path = "mtu_is_not_a_number.rs"]
    mod mtu_is_not_a_number;
    #[path = "posted_buffer_is_gone.rs"]
    mod posted_buffer_is_gone;
    #[path = "posting_threads_share_a_shared_qp.rs"]
    mod posting_threads_share_a_shared_qp;
    #[path = "qp_has_one_poster.rs"]
    mod qp_has_one_poster;
    #[path = "region_is_not_a_slice.rs"]
    mod region_is_not_a_slice;
    #[path = "region_is_not_indexed.rs"]
    mod region_is_not_indexed;
    #[path = "registered_memory_is_gone.rs"]
    mod registered_memory_is_gone;
    #[path = "sends_in_a_row_borrow_their_regions.rs"]
    mod sends_in_a_row_borrow_their_regions;
    #[path = "sends_that_wait_borrow_their_regions.rs"]
    mod sends_that_wait_borrow_their_regions;
    #[path = "slice_does_not_outlive_its_region.rs"]
    mod slice_does_not_outlive_its_region;
    #[path = "uc_has_no_read.rs"]
    mod uc_has_no_read;
    #[path = "ud_has_no_write.rs"]
    mod ud_has_no_write;
    #[path = "xrc_initiator_has_no_receive_queue.rs"]
    mod xrc_initiator_has_no_receive_queue;
    #[path = "xrc_initiator_has_no_srq.rs"]
    mod xrc_initiator_has_no_srq;
    #[path = "xrc_initiator_takes_no_receives.rs"]
    mod xrc_initiator_takes_no_receives;
    #[path = "xrc_request_names_its_srq.rs"]
    mod xrc_request_names_its_srq;
    #[path = "xrc_srq_is_not_for_rc.rs"]
    mod xrc_srq_is_not_for_rc;
    #[path = "xrc_srq_number_is_not_any_number.rs"]
    mod xrc_srq_number_is_not_any_number;
    #[path = "xrc_target_posts_nothing.rs"]
    mod xrc_target_posts_nothing;

    /// Their names, to be compared with the programs.
    pub const NAMES: [&str; 23] = [
        "closed_qp_is_gone",
        "closed_region_is_gone",
        "cq_has_one_poller",
        "failures_have_no_length",
        "mtu_is_not_a_number",
        "posted_buffer_is_gone",
        "posting_threads_share_a_shared_qp",
        "qp_has_one_poster",
        "region_is_not_a_slice",
        "region_is_not_indexed",
        "registered_memory_is_gone",
        "sends_in_a_row_borrow_their_regions",
        "sends_that_wait_borrow_their_regions",
        "slice_does_not_outlive_its_region",
        "uc_has_no_read",
        "ud_has_no_write",
        "xrc_initiator_has_no_receive_queue",
        "xrc_initiator_has_no_srq",
        "xrc_initiator_takes_no_receives",
        "xrc_request_names_its_srq",
        "xrc_srq_is_not_for_rc",
        "xrc_srq_number_is_not_any_number",
        "xrc_target_posts_nothing",
    ];
}

#[test]
fn what_must_not_compile_does_not() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}

#[test]
fn every_program_has_a_twin_one_line_apart() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let bad = fs::read_to_string(&path).unwrap();
        let good =
            fs::read_to_string(folder.join("twins").join(path.file_name().unwrap())).unwrap();
        assert_eq!(bad.lines().count(), good.lines().count(), "{path:?}");
        let differing = bad
            .lines()
            .zip(good.lines())
            .filter(|(a, b)| a != b)
            .count();
        assert_eq!(differing, 1, "{path:?}");
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, twins::NAMES);
}
