//! Every move between two states, asked of a QP of a provider that allows everything: what reaches the provider is what
//! the kernel's table allows.

mod fake;

use fake::Fake;
use rdma_core_sys::*;
use rdma_qp::{Device, Problem};

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

/// Required and optional attributes of a move of an RC QP; `None`: not allowed.
fn oracle(from: &str, to: &str) -> Option<(ibv_qp_attr_mask, ibv_qp_attr_mask)> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    let mut cells = rows.map(|line| line.split('\t').collect::<Vec<_>>());
    let row = cells.find(|c| c[0] == "RC" && c[1] == from && c[2] == to)?;
    Some((mask(row[3]), mask(row[4])))
}

#[test]
fn the_provider_is_called_exactly_when_the_table_allows_it() {
    const STATES: [(&str, ibv_qp_state); 7] = [
        ("RESET", IBV_QPS_RESET),
        ("INIT", IBV_QPS_INIT),
        ("RTR", IBV_QPS_RTR),
        ("RTS", IBV_QPS_RTS),
        ("SQD", IBV_QPS_SQD),
        ("SQE", IBV_QPS_SQE),
        ("ERR", IBV_QPS_ERR),
    ];
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
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
            let known = oracle(from_name, to_name);
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
                    masks.push((required | bit, known.is_some() && optional.contains(bit)));
                }
            }
            for (mask, expected) in masks {
                fake.state()
                    .qps
                    .get_mut(&qp.qp_num())
                    .unwrap()
                    .attr
                    .port_num = 1;
                fake.set_state(qp.qp_num(), from);
                let before = fake.count("modify_qp");
                let result = qp.modify(&attr, mask | IBV_QP_STATE);
                let called = fake.count("modify_qp") - before;
                assert_eq!(
                    result.is_ok(),
                    expected,
                    "{from_name} -> {to_name} with {mask:?}: {result:?}"
                );
                assert_eq!(
                    called,
                    usize::from(expected),
                    "{from_name} -> {to_name} with {mask:?}"
                );
                if let Err(error) = result {
                    assert!(
                        matches!(error.problems[..], [Problem::Mask(_), ..]),
                        "{error}"
                    );
                    assert_eq!(fake.state().qps[&qp.qp_num()].attr.qp_state, from);
                }
                asked += 1;
                allowed += usize::from(expected);
            }
        }
    }
    assert!(
        asked > 49 * 20 && allowed > 50,
        "{asked} asked, {allowed} allowed"
    );
}
