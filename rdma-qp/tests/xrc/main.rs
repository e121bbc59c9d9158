//! XRC over a provider that refuses, loses and mixes up; and what is wrong with a call, said before it is made.

#[path = "../fake/mod.rs"]
mod fake;
mod lives;
mod refused;

use rdma_qp::xrc::{Xrc, XrcDomain, XrcSend, XrcTarget};
use rdma_qp::{Access, Cq, Device, Memory, Mr, Pd, Qp, Srq};

const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// A device with everything that XRC needs.
struct Scene {
    target: XrcTarget,
    srq: Srq<Xrc>,
    initiator: Qp<XrcSend>,
    domain: XrcDomain,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    device: Device,
}

fn device() -> Device {
    Device::open(&fake::verbs(), "fake0").unwrap()
}

fn scene() -> Scene {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let domain = XrcDomain::anonymous(&device).unwrap();
    Scene {
        target: domain.create_target().unwrap(),
        srq: pd.xrc_srq(&domain, &cq).depth(8).create().unwrap(),
        initiator: pd.xrc(&cq).create().unwrap(),
        mr: pd
            .register(Memory::zeroed(64), Access::LOCAL_WRITE)
            .unwrap(),
        domain,
        cq,
        pd,
        device,
    }
}
