use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::core::rng::Rng;
use crate::link::udp::random_loopback;
use crate::link::{IpFields, LinkError, Received, Sent, UdpLink};
use crate::verbs::sys::{self, SocketOption};

/// A generator that no other process shares.
fn rng() -> Rng {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).unwrap();
    Rng::new(u64::from_ne_bytes(seed))
}

pub(super) fn node() -> UdpLink {
    UdpLink::bind_loopback(&mut rng()).unwrap()
}

pub(super) fn local(link: &UdpLink) -> SocketAddr {
    link.locals().next().unwrap()
}

/// The next datagram, which loopback delivers at once.
pub(super) fn receive(link: &UdpLink, buffer: &mut [u8]) -> Received {
    let begin = Instant::now();
    loop {
        if let Some(received) = link.recv(0, buffer) {
            return received;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends from the link's first address, with nothing special.
fn send(link: &mut UdpLink, to: SocketAddr, datagram: &[u8]) -> Sent {
    link.send(0, 4791, to, IpFields::default(), datagram)
}

fn exchange(a: &mut UdpLink, b: &UdpLink) {
    let mut buffer = vec![0; 8192];
    assert_eq!(b.recv(0, &mut buffer), None);
    for len in [16, 17, 4096 + 64] {
        let datagram: Vec<_> = (0..len).map(|i| (i * 31) as u8).collect();
        assert_eq!(send(a, local(b), &datagram), Sent::Done);
        let received = receive(b, &mut buffer);
        assert_eq!(received.src, local(a));
        assert_eq!(buffer[..received.len], datagram);
        assert!(!received.truncated);
    }
    assert_eq!(b.recv(0, &mut buffer), None);
}

#[test]
fn datagrams_travel_over_ipv4() {
    let (mut a, mut b) = (node(), node());
    assert_ne!(local(&a), local(&b));
    assert_eq!(local(&a).port(), 4791);
    assert!(local(&a).ip().is_loopback());
    exchange(&mut a, &b);
    exchange(&mut b, &a);
}

/// The machine's one IPv6 address that everybody may have; a reason to skip `test` if it has none.
pub(super) fn localhost(test: &str) -> Option<UdpLink> {
    // Another test on this machine may have the address for a moment.
    let begin = Instant::now();
    loop {
        match UdpLink::bind(&[Ipv6Addr::LOCALHOST.into()]) {
            Ok(link) => return Some(link),
            Err(LinkError::InUse { .. }) if begin.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(LinkError::NotLocal { .. }) => {
                println!("SKIP {test}: this machine has no ::1");
                return None;
            }
            Err(LinkError::System { source, .. })
                if source.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) =>
            {
                println!("SKIP {test}: this machine has no IPv6");
                return None;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// A link sends to itself.
fn to_itself(link: &mut UdpLink) {
    let mut buffer = vec![0; 8192];
    let datagram = vec![7; 4096 + 64];
    let to = local(link);
    assert_eq!(send(link, to, &datagram), Sent::Done);
    let received = receive(link, &mut buffer);
    assert_eq!(received.src, local(link));
    assert_eq!(buffer[..received.len], datagram);
}

#[test]
fn datagrams_travel_over_ipv6() {
    let Some(mut link) = localhost("datagrams_travel_over_ipv6") else {
        return;
    };
    to_itself(&mut link);

    // rxe sends its frames without a UDP checksum, as this socket does.
    let sender = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    sys::set_socket_option(sender.as_fd(), SocketOption::UDP_NO_CHECK6_TX, 1).unwrap();
    sender.send_to(b"no checksum", local(&link)).unwrap();
    assert_eq!(
        receive(&link, &mut [0; 64]).src,
        sender.local_addr().unwrap()
    );
}

#[test]
fn a_datagram_that_is_too_long_for_the_buffer_is_told_from_a_whole_one() {
    let mut link = node();
    let mut buffer = [0; 64];
    for shown in [false, true] {
        if shown {
            link.show_headers();
        }
        for (len, kept, truncated) in [(64, 64, false), (65, 64, true), (9000, 64, true)] {
            let to = local(&link);
            assert_eq!(send(&mut link, to, &vec![7; len]), Sent::Done);
            let received = receive(&link, &mut buffer);
            let outcome = (received.len, received.truncated);
            assert_eq!(outcome, (kept, truncated), "{len}");
        }
    }
}

#[test]
fn what_the_system_refuses_is_a_drop() {
    let mut link = node();
    let to = local(&link);
    let outcome = send(&mut link, to, &vec![0; 70_000]);
    assert_eq!(outcome, Sent::Dropped(Errno::MSGSIZE));
    exchange(&mut link, &node());
}

#[test]
fn an_address_in_use_is_named_with_its_cure() {
    let link = node();
    let address = local(&link).ip();
    let error = UdpLink::bind(&[address]).unwrap_err();
    assert!(matches!(&error, LinkError::InUse { address: a, source }
        if *a == address && source.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error())));
    assert_eq!(
        error.to_string(),
        format!(
            "UDP port 4791 of {address} is in use: choose another address, or end the process that has it (`ss -lunp sport = :4791` names it)"
        )
    );
    drop(link);
    UdpLink::bind(&[address]).unwrap();
}

#[test]
fn addresses_that_cannot_be() {
    // 192.0.2.0/24 is for documentation: no machine has it.
    let foreign: IpAddr = "192.0.2.1".parse().unwrap();
    let error = UdpLink::bind(&[foreign]).unwrap_err();
    assert!(matches!(&error, LinkError::NotLocal { address, .. } if *address == foreign));
    assert!(
        error
            .to_string()
            .starts_with("192.0.2.1 is not an address of this machine")
    );
    for text in [
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "::",
        "ff02::1",
        "::ffff:0.0.0.0",
    ] {
        let error = UdpLink::bind(&[text.parse().unwrap()]).unwrap_err();
        assert!(
            matches!(error, LinkError::NotUnicast { .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn a_taken_draw_leads_to_the_next() {
    let mut rng = rng();
    let first = UdpLink::bind_loopback(&mut rng.clone()).unwrap();
    let second = UdpLink::bind_loopback(&mut rng).unwrap();
    assert_ne!(local(&first), local(&second));
}

#[test]
fn links_join() {
    let mut link = node();
    let other = node();
    let locals = [local(&link), local(&other)];
    link.join(other);
    assert!(link.locals().eq(locals));
    assert_eq!(link.fds().len(), 2);
    let usual = IpFields::default();
    let outcome = link.send(1, 4791, locals[0], usual, b"from the second");
    assert_eq!(outcome, Sent::Done);
    assert_eq!(receive(&link, &mut [0; 64]).src, locals[1]);
}

#[test]
fn a_mapped_address_is_an_ipv4_one() {
    let IpAddr::V4(free) = local(&node()).ip() else {
        panic!("loopback addresses are IPv4")
    };
    let link = UdpLink::bind(&[free.to_ipv6_mapped().into()]).unwrap();
    assert_eq!(local(&link).ip(), IpAddr::V4(free));
}

#[test]
fn sockets_neither_block_nor_fragment() {
    let link = node();
    let fd = link.fds().next().unwrap();
    let discover = sockopt::ip_mtu_discover(fd).unwrap();
    assert_eq!(discover, sockopt::Ipv4PathMtuDiscovery::DO);
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    let flags = rustix::io::fcntl_getfd(fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn random_addresses_are_ordinary_ones() {
    let mut rng = Rng::new(1);
    let drawn: Vec<_> = (0..100_000).map(|_| random_loopback(&mut rng)).collect();
    for address in &drawn {
        assert!(address.is_loopback() && address.octets() != [127, 0, 0, 1]);
        assert!(!matches!(address.octets()[3], 0 | 255), "{address}");
    }
    let mut different = drawn;
    different.sort_unstable();
    different.dedup();
    assert!(different.len() > 99_000);
}
