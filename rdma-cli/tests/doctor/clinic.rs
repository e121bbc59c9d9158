//! Troubles that need what no program under observation has: a provider that refuses, or a GID table that changes meanwhile.
//! Each leaves dumps and the text of the error, as the programs do.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use rdma_core_sys::*;
use rdma_qp::{Device, NOTHING, Peer, ToReset, WaitError};
use rdma_soft::core::config::{GidEntry, GidKind};
use rdma_soft::{Profile, set_gid};

use crate::fake::{self, Fake};
use crate::programs::*;

fn soft(profile: Profile) -> Device {
    let name = rdma_soft::add_device(profile).unwrap();
    Device::open(rdma_soft::verbs(), &name).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse::<Ipv4Addr>().unwrap().into()
}

/// RESET -> INIT is right, and the provider says EINVAL.
pub fn a_provider_that_refuses(dir: &Path) {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let mut end = end(&device);
    end.qp.to(ToReset).unwrap();
    fake.fail("modify_qp", 22);
    let init = rdma_qp::ToInit {
        port: 1,
        pkey_index: 0,
        access: ALL,
    };
    let error = end.qp.to(init).unwrap_err();
    leave_in(dir, &[end.qp.dump()], &error);
}

/// The kernel's resolver finds nobody at the peer's GID and ends with ETIMEDOUT.
pub fn a_peer_without_a_neighbour(dir: &Path) {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let mut a = end(&device);
    let here = describe(&device, &mut a);
    a.qp.init().unwrap();
    let mut there = here;
    there.endpoint.gid = address("10.0.0.99").into();
    fake.fail("modify_qp", 110);
    let error = a.qp.connect_begin(&there, impatient()).unwrap_err();
    leave_in(dir, &[a.qp.dump()], &error);
}

/// The entry that the QP sends from became one of RoCE v1 after it had been taken.
pub fn a_gid_of_roce_v1(dir: &Path) {
    let mut profile = Profile::default();
    let own = GidEntry::v2(address("10.1.0.5"));
    profile.ports[0].gids = Some(vec![own; 2]);
    let device = soft(profile);
    let mut a = end(&device);
    let gid = device.port(1).unwrap().gid(0).unwrap();
    let mut there = Peer {
        endpoint: a.qp.endpoint(gid).unwrap(),
        regions: vec![],
    };
    there.endpoint.gid = address("10.1.0.7").into();
    let agreed = a.qp.connect_begin(&there, impatient()).unwrap();
    a.qp.connect_finish(agreed, impatient()).unwrap();
    let v1 = GidEntry {
        kind: GidKind::RoceV1,
        ..own
    };
    set_gid(device.name(), 1, 0, Some(v1)).unwrap();
    let ticket = a.qp.send(NOTHING).unwrap();
    let Err(error @ WaitError::Failed(_)) = a.cq.wait(&ticket, LIMIT) else {
        panic!("somebody answered");
    };
    leave_in(dir, &[a.qp.dump()], &error);
}

/// The interface behind the GID carries 1500 bytes, the path MTU is 4096. The software device's addresses are of no interface,
/// so this one number is put into the dump.
pub fn an_interface_below_the_path_mtu(dir: &Path) {
    let device = soft(Profile::default());
    let (a, b, _) = pair_of(end(&device), end(&device), &device, impatient(), |_, _| {});
    let mut dump = a.qp.dump();
    dump.gids[0].netdev_mtu = Some(1500);
    leave_in(dir, &[dump, b.qp.dump()], &"");
}

/// soft-RoCE, by its vendor number, tells a local error as a flush.
pub fn a_flush_without_a_cause(dir: &Path) {
    let fake = Fake::new();
    fake.state().device.vendor_id = 0xff_ffff;
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (a, b) = (end(&device), end(&device));
    let (mut a, _b, _) = pair_of(a, b, &device, impatient(), |_, _| {});
    let ticket = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
    fake.set_state(a.qp.qp_num(), IBV_QPS_ERR);
    let wc = fake::wc(fake.send_id(a.qp.qp_num(), 0), IBV_WC_WR_FLUSH_ERR);
    let mut wc = wc;
    wc.qp_num = a.qp.qp_num();
    fake.complete(0, wc);
    let Err(error) = a.cq.wait(&ticket, LIMIT) else {
        panic!("it succeeded");
    };
    leave_in(dir, &[a.qp.dump()], &error);
}
