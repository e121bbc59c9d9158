//! Which regions a record has, whatever the order in which threads tell of them.

#[allow(dead_code)]
#[path = "../src/record/regions.rs"]
mod list;

use list::Regions;
use rdma_qp::dump::RegionDump;

fn region(rkey: u32) -> RegionDump {
    RegionDump {
        rkey,
        ..RegionDump::default()
    }
}

/// The keys of those that are registered.
fn there(regions: &Regions) -> Vec<u32> {
    let all = regions.all();
    let there = all.iter().filter(|region| !region.gone);
    there.map(|region| region.rkey).collect()
}

/// A deregisters; B registers, is given the address that became free, and is heard of first.
#[test]
fn an_address_that_is_taken_again_at_once() {
    let mut regions = Regions::default();
    regions.add(0x1000, region(1));
    let first = regions.at(0x1000).expect("it was noted");
    regions.add(0x1000, region(2));
    regions.forget(first);
    assert_eq!(there(&regions), [2]);
    assert_eq!(regions.all().len(), 2, "the first one is known to be gone");
    let second = regions.at(0x1000).expect("it is there");
    assert_ne!(first, second);
    regions.forget(second);
    assert_eq!((there(&regions), regions.at(0x1000)), (vec![], None));
}

/// What is registered stays; what is gone makes room, oldest first, and that something is missing is told.
#[test]
fn where_there_are_many() {
    let mut regions = Regions::default();
    regions.add(1, region(1));
    for address in 2..=256 {
        regions.add(address, region(address as u32));
        regions.forget(regions.at(address).expect("it was noted"));
    }
    assert!(!regions.left_out());
    regions.add(300, region(300));
    assert!(regions.left_out());
    assert_eq!(there(&regions), [1, 300]);
    let keys: Vec<_> = regions.all().iter().map(|region| region.rkey).collect();
    assert_eq!((keys.len(), keys[..2].to_vec()), (256, vec![1, 3]));
    for address in 301..600 {
        regions.add(address, region(address as u32));
    }
    assert_eq!(there(&regions).len(), 256, "none that is there has to go");
    assert!(regions.at(1).is_some() && regions.at(599).is_none());
}
