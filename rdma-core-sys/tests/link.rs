//! With the feature `link`: our types against those that bindgen makes of the installed headers (crate rdma-sys), and the
//! functions that the linker bound.

use rdma_core_sys as ours;
use rdma_core_sys::Verbs;
use rdma_sys as theirs;
use std::mem::{align_of, size_of};

/// The three types that grew at an end where C looks at a size first: (name, bytes that we have more).
const GREW: &[(&str, &[usize])] = &[
    ("ibv_port_attr", &[4]),
    ("ibv_qp_ex", &[8, 16]),
    ("verbs_context", &[8, 16, 24, 32, 40, 48]),
];

macro_rules! same {
    ($($name:ident),* $(,)?) => { [$( (
        stringify!($name),
        (size_of::<ours::$name>(), align_of::<ours::$name>()),
        (size_of::<theirs::$name>(), align_of::<theirs::$name>()),
    ) ),*] };
}

#[test]
fn every_type_is_as_long_and_as_aligned_as_bindgens() {
    let all = same![
        ibv_gid,
        ibv_gid_entry,
        ibv_device,
        ibv_device_attr,
        ibv_device_attr_ex,
        ibv_query_device_ex_input,
        ibv_odp_caps,
        ibv_tso_caps,
        ibv_rss_caps,
        ibv_packet_pacing_caps,
        ibv_tm_caps,
        ibv_cq_moderation_caps,
        ibv_pci_atomic_caps,
        ibv_alloc_dm_attr,
        ibv_dm,
        ibv_port_attr,
        ibv_async_event,
        ibv_wc,
        ibv_mw_bind_info,
        ibv_pd,
        ibv_td_init_attr,
        ibv_td,
        ibv_xrcd_init_attr,
        ibv_xrcd,
        ibv_mr,
        ibv_mw,
        ibv_global_route,
        ibv_grh,
        ibv_ah_attr,
        ibv_srq_attr,
        ibv_srq_init_attr,
        ibv_tm_cap,
        ibv_srq_init_attr_ex,
        ibv_wq_init_attr,
        ibv_wq_attr,
        ibv_qp_cap,
        ibv_qp_init_attr,
        ibv_rx_hash_conf,
        ibv_qp_init_attr_ex,
        ibv_qp_open_attr,
        ibv_qp_attr,
        ibv_qp_rate_limit_attr,
        ibv_data_buf,
        ibv_sge,
        ibv_send_wr,
        ibv_recv_wr,
        ibv_ops_wr,
        ibv_mw_bind,
        ibv_srq,
        ibv_wq,
        ibv_qp,
        ibv_qp_ex,
        ibv_ece,
        ibv_comp_channel,
        ibv_cq,
        ibv_poll_cq_attr,
        ibv_wc_tm_info,
        ibv_cq_ex,
        ibv_moderate_cq,
        ibv_modify_cq_attr,
        ibv_ah,
        ibv_context_ops,
        ibv_context,
        ibv_cq_init_attr_ex,
        ibv_parent_domain_init_attr,
        ibv_values_ex,
        verbs_context,
    ];
    let mut differing = Vec::new();
    for (name, ours, theirs) in all {
        let grew = GREW
            .iter()
            .any(|(grown, by)| *grown == name && by.contains(&ours.0.wrapping_sub(theirs.0)));
        if ours != theirs && !(grew && ours.1 == theirs.1) {
            differing.push(format!("{name}: ours {ours:?}, theirs {theirs:?}"));
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

/// The linker, the dynamic linker and bindgen's declarations mean the same functions.
#[test]
fn the_linker_bound_the_functions_of_the_library() {
    let linked = Verbs::linked().unwrap();
    assert_eq!(linked.source, "the linker");
    let found = Verbs::open().unwrap();
    assert_eq!(
        found.source, "this process",
        "what is linked in is found before any library is loaded"
    );
    macro_rules! same_function {
        ($($field:ident $symbol:ident),*) => { $(
            assert_eq!(linked.$field as *const (), theirs::$symbol as *const (), stringify!($symbol));
            assert_eq!(found.$field as *const (), theirs::$symbol as *const (), stringify!($symbol));
        )* };
    }
    same_function!(
        get_device_list ibv_get_device_list, open_device ibv_open_device, alloc_pd ibv_alloc_pd, reg_mr ibv_reg_mr,
        create_cq ibv_create_cq, create_comp_channel ibv_create_comp_channel, create_qp ibv_create_qp, modify_qp ibv_modify_qp,
        query_port_compat ibv_query_port, create_ah_from_wc ibv_create_ah_from_wc, wc_status_str ibv_wc_status_str
    );
    assert_eq!(
        linked.missing().collect::<Vec<_>>(),
        found.missing().collect::<Vec<_>>()
    );
    // SAFETY: the function takes a number and returns a static text.
    let text = unsafe { std::ffi::CStr::from_ptr(linked.wc_status_str(ours::IBV_WC_WR_FLUSH_ERR)) };
    assert_eq!(text.to_str().unwrap(), "Work Request Flushed Error");
}
