//! Memory behind a dma-buf is passed through where a device has it, and refused with a reason where it has not.

mod common;
mod fake;

use std::os::fd::AsFd;

use fake::Fake;
use rdma_qp::{Access, Device, Errno, PostError, PostFlags, op};

#[test]
fn a_device_without_it_says_so() {
    let device = common::device(rdma_soft::Profile::default());
    let pd = device.alloc_pd().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = pd
        .register_dmabuf(file.as_fd(), 0, 4096, 0, Access::REMOTE_READ)
        .unwrap_err();
    assert_eq!(error.source, Errno::EOPNOTSUPP);
    assert!(error.to_string().contains("has no such regions"), "{error}");
}

#[test]
fn its_range_and_rights_reach_the_library_and_its_requests_hold_it() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let file = std::fs::File::open("/dev/null").unwrap();
    let access = Access::REMOTE_WRITE;
    let mr = pd
        .register_dmabuf(file.as_fd(), 4096, 8192, 0x7000_1000, access)
        .unwrap();
    assert_eq!(fake.state().dmabufs, [(4096, 8192, 0x7000_1000, 1 | 2)]);
    assert_eq!((mr.remote().addr, mr.remote().len), (0x7000_1000, 8192));
    assert!(mr.slice(8000, 200).is_err());

    let mut qp = pd.rc(&cq).inline_data(64).create().unwrap();
    // The library would read them at that address of the process.
    let slices = [mr.slice(0, 0).unwrap(), mr.slice(16, 32).unwrap()];
    let refused = qp.post(op::Send, &slices[1..], PostFlags::INLINE);
    assert_eq!(refused, Err(PostError::InlineOfDevice { entry: 0 }));
    assert!(qp.post(op::Send, slices[1], PostFlags::INLINE).is_err());
    assert!(fake.state().qps[&qp.qp_num()].sends.is_empty());
    qp.send(mr.slice(16, 32).unwrap()).unwrap();
    let sent = fake.state().qps[&qp.qp_num()].sends[0].clone();
    assert_eq!(sent.entries, [(0x7000_1010, 32)]);
    let error = mr.close().unwrap_err();
    assert!(error.to_string().contains("still held by SQ"), "{error}");
    drop(error);
    assert_eq!(pd.retired_regions(), 1);
    qp.close().unwrap();
    assert_eq!(pd.retired_regions(), 0);
}

#[test]
fn as_any_other_region_it_has_no_bytes_to_be_read() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let file = std::fs::File::open("/dev/null").unwrap();
    let mr = pd.register_dmabuf(file.as_fd(), 0, 8192, 0x7000_0000, Access::REMOTE_WRITE);
    let mr = mr.unwrap().into_mr();
    assert_eq!((mr.addr(), mr.len()), (0x7000_0000, 8192));
    let mut byte = [7];
    let error = mr.read_at(0, &mut byte).unwrap_err();
    assert!(error.to_string().contains("a region of 0 bytes"), "{error}");
    assert!(mr.write_at(8191, &byte).is_err());
    let error = mr.atomic(8184).unwrap_err();
    assert_eq!((error.offset, error.region), (8184, 0));
    assert_eq!((byte, mr.read_at(0, &mut [])), ([7], Ok(())));

    let mut qp = pd.rc(&cq).create().unwrap();
    qp.send(mr.slice(16, 32).unwrap()).unwrap();
    let sent = fake.state().qps[&qp.qp_num()].sends[0].clone();
    assert_eq!(sent.entries, [(0x7000_0010, 32)]);
    qp.close().unwrap();
    assert!(mr.close().unwrap().is_empty());
}
