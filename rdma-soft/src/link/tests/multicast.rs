//! Groups: who gets a copy of what, on the loopback interface and in network namespaces.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::udp::{local, node};
use crate::link::interface_mtu;
use crate::link::udp::find_interface;
use crate::link::{IpFields, Sent, UdpLink};

#[path = "../../../tests/namespace/mod.rs"]
mod namespace;
use namespace::{VETH, in_namespace};

/// A group that no other test of this process uses. Other processes may: nodes hear what they send,
/// so tests look at their own senders only.
fn group() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, a, b, _] = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, a.wrapping_add(100), b, next).into()
}

const FIELDS: IpFields = IpFields {
    traffic_class: 0x20,
    hop_limit: 3,
    flow_label: 0,
};

fn send(link: &mut UdpLink, group: IpAddr, text: &str) -> Sent {
    let to = SocketAddr::new(group, 4791);
    link.send(0, 4791, to, FIELDS, text.as_bytes())
}

/// What comes from `senders` on any socket of a link, until it had as many datagrams as are
/// `expected`, and then a little longer.
fn heard(link: &UdpLink, senders: &[SocketAddr], expected: usize) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut buffer = [0; 64];
    let mut enough = None;
    let begin = Instant::now();
    while enough.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(30)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "only {all:?}");
        for at in 0..link.receivers() {
            while let Some(received) = link.recv(at, &mut buffer) {
                if senders.iter().any(|s| s.ip() == received.src.ip()) {
                    let text = String::from_utf8(buffer[..received.len].to_vec()).unwrap();
                    assert_eq!(received.ip.hop_limit, FIELDS.hop_limit);
                    assert_eq!(received.ip.traffic_class, FIELDS.traffic_class);
                    all.push((at, text));
                }
            }
        }
        if all.len() >= expected && enough.is_none() {
            enough = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    all
}

/// Each member gets each datagram once, also its own; who did not join, or left, gets none.
fn fans_out(nodes: &mut [UdpLink; 3], group: IpAddr) {
    let [a, b, c] = nodes;
    let senders = [local(a), local(b), local(c)];
    a.join_group(group, &[0]).unwrap();
    b.join_group(group, &[0]).unwrap();
    assert_eq!(a.receivers(), 2);
    let bound = a.bound(1);
    assert_eq!(
        (bound.at, bound.addr.ip(), bound.addr.port()),
        (0, group, 4791)
    );
    for (link, text) in [(&mut *a, "a"), (&mut *b, "b"), (&mut *c, "c")] {
        assert_eq!(send(link, group, text), Sent::Done);
    }
    let all = ["a", "b", "c"].map(|text| (1, text.to_owned()));
    assert_eq!(heard(a, &senders, 3), all);
    assert_eq!(heard(b, &senders, 3), all);
    assert_eq!(heard(c, &senders, 0), []);
    b.leave_group(group);
    assert_eq!(b.receivers(), 1);
    assert_eq!(send(c, group, "again"), Sent::Done);
    assert_eq!(heard(a, &senders, 1), [(1, "again".to_owned())]);
    assert_eq!(heard(b, &senders, 0), []);
    a.leave_group(group);
}

#[test]
fn a_group_on_the_loopback_interface_reaches_every_member() {
    fans_out(&mut [node(), node(), node()], group());
}

/// How many of a link's waiters are readable within that time.
fn readable(link: &UdpLink, wait: Duration) -> usize {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let waiters = link.waiters();
    let fds = waiters.iter().map(|fd| PollFd::new(&**fd, PollFlags::IN));
    let time = Timespec::try_from(wait).unwrap();
    poll(&mut fds.collect::<Vec<_>>(), Some(&time)).unwrap()
}

#[test]
fn what_waits_for_a_link_sees_groups_that_are_joined_later() {
    let (mut a, mut b) = (node(), node());
    let group = group();
    a.join_group(group, &[0]).unwrap();
    assert_eq!(readable(&a, Duration::ZERO), 0);
    assert_eq!(send(&mut b, group, "x"), Sent::Done);
    assert_eq!(readable(&a, Duration::from_secs(10)), 1);
    assert_eq!(heard(&a, &[local(&b)], 1).len(), 1);
    assert_eq!(readable(&a, Duration::ZERO), 0);
    a.leave_group(group);
    assert_eq!(send(&mut b, group, "x"), Sent::Done);
    assert_eq!(readable(&a, Duration::from_millis(20)), 0);
}

/// A child that was forked has the group's socket, too, and may keep it.
#[test]
fn a_group_that_was_left_wakes_nobody_whoever_has_its_socket() {
    let (mut a, mut b) = (node(), node());
    let group = group();
    a.join_group(group, &[0]).unwrap();
    let _childs = a.group_fd().try_clone_to_owned().unwrap();
    assert_eq!(send(&mut b, group, "x"), Sent::Done);
    assert_eq!(readable(&a, Duration::from_secs(10)), 1);
    a.leave_group(group);
    assert_eq!(readable(&a, Duration::from_millis(20)), 0);
}

#[test]
fn addresses_that_join_together_get_one_copy_and_sets_of_them_one_each() {
    let mut sender = node();
    let from = [local(&sender)];
    let three = || {
        let mut link = node();
        link.join(node());
        link.join(node());
        link
    };
    let (mut together, mut apart) = (three(), three());
    let group = group();
    together.join_group(group, &[0, 1, 2]).unwrap();
    apart.join_group(group, &[0]).unwrap();
    apart.join_group(group, &[1, 2]).unwrap();
    assert_eq!(send(&mut sender, group, "x"), Sent::Done);
    assert_eq!(heard(&together, &from, 1), [(3, "x".to_owned())]);
    let copies = [(3, "x".to_owned()), (4, "x".to_owned())];
    assert_eq!(heard(&apart, &from, 2), copies);
    assert_eq!((apart.bound(3).at, apart.bound(4).at), (0, 1));
}

#[test]
fn a_group_of_another_family_is_nothing_to_join() {
    let mut link = node();
    link.join_group("ff0e::7".parse().unwrap(), &[0]).unwrap();
    assert_eq!(link.receivers(), 1);
}

#[test]
fn a_group_that_is_none_is_refused_with_its_address() {
    let mut link = node();
    let error = link
        .join_group("192.0.2.7".parse().unwrap(), &[0])
        .unwrap_err();
    assert!(error.to_string().contains("192.0.2.7"), "{error}");
    assert_eq!(link.receivers(), 1);
}

#[test]
fn the_kernels_list_of_addresses_names_interfaces() {
    let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                fe8000000000000000fc00fffe000001 0c 40 20 80     eth0\n";
    let find = |text: &str| find_interface(list, text.parse().unwrap());
    assert_eq!(find("::1"), Some(1));
    assert_eq!(find("fe80::fc:ff:fe00:1"), Some(12));
    assert_eq!(find("::2"), None);
    assert_eq!(
        find_interface("garbage\n\nzz 01", "::1".parse().unwrap()),
        None
    );
}

fn bind(addresses: [&str; 3]) -> [UdpLink; 3] {
    addresses.map(|address| UdpLink::bind(&[address.parse().unwrap()]).unwrap())
}

/// The loopback interface with three more addresses and a route for groups.
const LOOPBACK: &str = "
ip link set lo up
for i in 1 2 3; do ip addr add fd00:77::$i/128 dev lo nodad; done
ip -6 route add local ff00::/8 dev lo table local";

#[test]
#[ignore = "run by several_nodes_of_one_interface_share_a_group, in a network namespace"]
fn on_a_wire() {
    fans_out(&mut bind(["10.9.0.1", "10.9.0.2", "10.9.0.3"]), group());
    for group in ["ff02::1:7", "ff05::1:7", "ff0e::1:7"] {
        let mut nodes = bind(["fd00:9::1", "fd00:9::2", "fd00:9::3"]);
        fans_out(&mut nodes, group.parse().unwrap());
    }
}

#[test]
fn several_nodes_of_one_interface_share_a_group() {
    in_namespace("link::tests::multicast::on_a_wire", VETH);
}

#[test]
#[ignore = "run by ipv6_groups_on_the_loopback_interface_need_a_route, in a network namespace"]
fn on_loopback_with_a_route() {
    for group in ["ff02::1:7", "ff05::1:7", "ff0e::1:7"] {
        let mut nodes = bind(["fd00:77::1", "fd00:77::2", "fd00:77::3"]);
        fans_out(&mut nodes, group.parse().unwrap());
    }
}

#[test]
#[ignore = "run by ipv6_groups_on_the_loopback_interface_need_a_route, in a network namespace"]
fn on_loopback_without_a_route() {
    let mut link = UdpLink::bind(&["fd00:77::1".parse().unwrap()]).unwrap();
    let group = "ff05::1:7".parse().unwrap();
    link.join_group(group, &[0]).unwrap();
    let outcome = send(&mut link, group, "x");
    assert_eq!(outcome, Sent::Dropped(rustix::io::Errno::NETUNREACH));
}

#[test]
fn ipv6_groups_on_the_loopback_interface_need_a_route() {
    if in_namespace("link::tests::multicast::on_loopback_with_a_route", LOOPBACK) {
        let (addresses, _route) = LOOPBACK.rsplit_once('\n').unwrap();
        in_namespace(
            "link::tests::multicast::on_loopback_without_a_route",
            addresses,
        );
    }
}

#[test]
fn groups_of_one_link_are_apart() {
    let (mut a, mut b) = (node(), node());
    let (one, two) = (group(), group());
    a.join_group(one, &[0]).unwrap();
    a.join_group(two, &[0]).unwrap();
    assert_eq!(send(&mut b, two, "two"), Sent::Done);
    assert_eq!(send(&mut b, one, "one"), Sent::Done);
    let heard: BTreeSet<_> = heard(&a, &[local(&b)], 2).into_iter().collect();
    let expected = BTreeSet::from([(1, "one".to_owned()), (2, "two".to_owned())]);
    assert_eq!(heard, expected);
}

#[test]
fn what_an_interface_carries_is_what_the_kernel_says() {
    // An IP packet has a length of 16 bits; the interface's own figure may be one more.
    let all = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
    let all = all.trim().parse::<u32>().unwrap();
    for address in ["127.0.0.1", "127.201.3.4"] {
        let mtu = interface_mtu(address.parse().unwrap());
        assert_eq!(mtu, Some(all.min(65535)), "{address}");
    }
    // An address of no interface.
    for address in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(interface_mtu(address.parse().unwrap()), None, "{address}");
    }
}
