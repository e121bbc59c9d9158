//! Every move between two states, asked of QPs of a provider that allows everything: what reaches the provider is what
//! the kernel's table allows.

mod fake;

use std::ptr;

use fake::Fake;
use rdma_core_sys::*;
use rdma_qp::xrc::XrcDomain;
use rdma_qp::{Device, Modified, ModifyError, Problem, QpRef};

/// The kernel's table, as rdma-core-sys keeps it for its own tests.
const TABLE: &str = include_str!("../../rdma-core-sys/tests/fixtures/qp_state_table.tsv");

fn mask(names: &str) -> ibv_qp_attr_mask {
    if names == "-" {
        return ibv_qp_attr_mask::empty();
    }
    names
        .split('|')
        .map(|name| ibv_qp_attr_mask::from_name(&format!("IBV_QP_{name}")).expect(name))
        .collect()
}

/// Required and optional attributes of a move of a QP of that transport; `None`: not allowed.
fn oracle(transport: &str, from: &str, to: &str) -> Option<(ibv_qp_attr_mask, ibv_qp_attr_mask)> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    let mut cells = rows.map(|line| line.split('\t').collect::<Vec<_>>());
    let row = cells.find(|c| c[0] == transport && c[1] == from && c[2] == to)?;
    Some((mask(row[3]), mask(row[4])))
}

/// What uverbs takes out of a mask before anybody looks at it (uverbs_cmd.c, `modify_qp`, `modify_qp_mask`).
fn ignored(transport: &str) -> ibv_qp_attr_mask {
    match transport {
        "XRC_INI" => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        "XRC_TGT" => IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY,
        _ => ibv_qp_attr_mask::empty(),
    }
}

/// Asks for every move with every mask that is one bit away from the right one.
fn ask_for_everything(
    fake: &Fake,
    transport: &str,
    qp_num: u32,
    mut modify: impl FnMut(&ibv_qp_attr, ibv_qp_attr_mask) -> Result<Modified, ModifyError>,
) {
    const STATES: [(&str, ibv_qp_state); 7] = [
        ("RESET", IBV_QPS_RESET),
        ("INIT", IBV_QPS_INIT),
        ("RTR", IBV_QPS_RTR),
        ("RTS", IBV_QPS_RTS),
        ("SQD", IBV_QPS_SQD),
        ("SQE", IBV_QPS_SQE),
        ("ERR", IBV_QPS_ERR),
    ];
    // Values that are right for every attribute.
    let mut attr = ibv_qp_attr::zeroed();
    (attr.port_num, attr.path_mtu, attr.dest_qp_num, attr.timeout) = (1, IBV_MTU_1024, 9, 14);
    (attr.ah_attr.port_num, attr.ah_attr.is_global) = (1, 1);
    attr.ah_attr.grh.sgid_index = 3;
    attr.ah_attr.grh.dgid =
        ibv_gid::from_raw([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7]);
    let (mut allowed, mut asked) = (0, 0);
    for (from_name, from) in STATES {
        for (to_name, to) in STATES {
            let known = oracle(transport, from_name, to_name);
            let (required, optional) =
                known.unwrap_or((ibv_qp_attr_mask::empty(), ibv_qp_attr_mask::empty()));
            (attr.qp_state, attr.cur_qp_state) = (to, from);
            // The required ones alone, one missing, and one more, for each attribute there is.
            let mut masks = vec![(required, known.is_some())];
            for bit in ibv_qp_attr_mask::all()
                .iter()
                .filter(|bit| *bit != IBV_QP_STATE)
            {
                if required.contains(bit) {
                    masks.push((required - bit, false));
                } else if bit != IBV_QP_ALT_PATH {
                    // An alternate path is refused on Ethernet, whatever the table says.
                    let may = (optional | ignored(transport)).contains(bit);
                    masks.push((required | bit, known.is_some() && may));
                }
            }
            for (mask, expected) in masks {
                fake.state().qps.get_mut(&qp_num).unwrap().attr.port_num = 1;
                fake.set_state(qp_num, from);
                let before = fake.count("modify_qp");
                let result = modify(&attr, mask | IBV_QP_STATE);
                let called = fake.count("modify_qp") - before;
                assert_eq!(
                    result.is_ok(),
                    expected,
                    "{transport} {from_name} -> {to_name} with {mask:?}: {result:?}"
                );
                assert_eq!(
                    called,
                    usize::from(expected),
                    "{transport} {from_name} -> {to_name} with {mask:?}"
                );
                if let Ok(modified) = result {
                    assert_eq!(modified.ignored, mask & ignored(transport));
                }
                if let Err(error) = result {
                    assert!(
                        matches!(error.problems[..], [Problem::Mask(_), ..]),
                        "{error}"
                    );
                    assert_eq!(fake.state().qps[&qp_num].attr.qp_state, from);
                }
                asked += 1;
                allowed += usize::from(expected);
            }
        }
    }
    // The table has 22 moves for each transport, and each was asked for with what it needs.
    assert!(
        asked > 49 * 20 && allowed >= 22,
        "{transport}: {asked} asked, {allowed} allowed"
    );
}

#[test]
fn the_provider_is_called_exactly_when_the_table_allows_it() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    let qp_num = qp.qp_num();
    ask_for_everything(&fake, "RC", qp_num, |attr, mask| qp.modify(attr, mask));
}

#[test]
fn so_it_is_for_the_two_ends_of_xrc() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut initiator = pd.xrc(&cq).create().unwrap();
    let qp_num = initiator.qp_num();
    ask_for_everything(&fake, "XRC_INI", qp_num, |attr, mask| {
        initiator.modify(attr, mask)
    });
    let domain = XrcDomain::anonymous(&device).unwrap();
    let mut target = domain.create_target().unwrap();
    let qp_num = target.qp_num();
    ask_for_everything(&fake, "XRC_TGT", qp_num, |attr, mask| {
        target.modify(attr, mask)
    });
}

/// The same of QPs that the program owns, of every transport that a program can create.
#[test]
fn so_it_is_for_the_qps_of_others() {
    let fake = Fake::new();
    let verbs = fake::verbs();
    // SAFETY: each object is made of live ones, and destroyed below, children first.
    let (context, pd, cq) = unsafe {
        let list = verbs.get_device_list(&mut 0);
        let context = verbs.open_device(*list);
        verbs.free_device_list(list);
        let pd = verbs.alloc_pd(context);
        let cq = verbs.create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        (context, pd, cq)
    };
    for (transport, qp_type) in [
        ("RC", IBV_QPT_RC),
        ("UC", IBV_QPT_UC),
        ("UD", IBV_QPT_UD),
        ("RAW_PACKET", IBV_QPT_RAW_PACKET),
        ("XRC_INI", IBV_QPT_XRC_SEND),
        ("XRC_TGT", IBV_QPT_XRC_RECV),
    ] {
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, qp_type);
        // SAFETY: PD and CQ are live.
        let raw = unsafe { verbs.create_qp(pd, &mut init) };
        // SAFETY: the QP lives until it is destroyed below, and nobody else uses it.
        let mut qp = unsafe { QpRef::from_raw(&verbs, raw) }.unwrap();
        let qp_num = qp.qp_num();
        ask_for_everything(&fake, transport, qp_num, |attr, mask| qp.modify(attr, mask));
        drop(qp);
        // SAFETY: it is live, and destroyed once.
        assert_eq!(unsafe { verbs.destroy_qp(raw) }, 0);
    }
    // SAFETY: nothing uses them any more, and each is destroyed once.
    unsafe {
        assert_eq!(verbs.destroy_cq(cq), 0);
        assert_eq!(verbs.dealloc_pd(pd), 0);
        assert_eq!(verbs.close_device(context), 0);
    }
}
