//! Connecting over TCP: nobody sends before the peer can receive, and a peer that stops half way is an error in time.

mod common;

use std::time::{Duration, Instant};

use common::{End, LIMIT, device};
use rdma_core_sys::*;
use rdma_qp::exchange::{Exchange, ExchangeError, from_fn, tcp};
use rdma_qp::{ConnectError, DecodeError, Gid, GidError, PathMtu, Peer, Timing, ToErr};
use rdma_soft::Profile;
use rdma_soft::profile::PortProfile;

fn channels(limit: Duration) -> (tcp::Channel, tcp::Channel) {
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let active = tcp::connect(listener.local_addr().unwrap(), limit).unwrap();
    (active, listener.accept(limit).unwrap())
}

/// A device whose port has that active MTU.
fn with_mtu(active_mtu: u32) -> rdma_qp::Device {
    let port = PortProfile {
        active_mtu,
        ..PortProfile::default()
    };
    device(Profile {
        ports: vec![port],
        ..Profile::default()
    })
}

#[test]
fn both_ends_agree_and_the_first_message_of_either_arrives() {
    let (left, right) = (with_mtu(2048), with_mtu(1024));
    let (mut to_b, mut to_a) = channels(LIMIT);
    // Nothing is repeated for 4 s, so a repetition means a loss and not a busy machine.
    let patient = Timing {
        timeout: rdma_qp::AckTimeout::from_code(20).unwrap(),
        ..Timing::default()
    };
    let end = |device: &rdma_qp::Device, channel: &mut tcp::Channel, name: &[u8; 5]| {
        let mut end = End::new(device, 4096);
        let here = end
            .qp
            .endpoint(device.port(1).unwrap().best_gid().unwrap())
            .unwrap();
        let there = channel.swap(&here, &[end.mr.remote()]).unwrap();
        end.qp.init().unwrap();
        let receive = end.qp.recv(end.mr.slice(0, 64).unwrap()).unwrap();
        let connected = end.qp.connect(&there, channel, patient).unwrap();
        // At once: the peer is in RTR, or this would be lost and repeated after a timeout.
        end.mr.write_at(100, name).unwrap();
        let send = end.qp.send(end.mr.slice(100, 5).unwrap()).unwrap();
        end.cq.wait(&send, LIMIT).unwrap();
        end.cq.wait(&receive, LIMIT).unwrap();
        // Nobody leaves before the other has its message.
        channel.barrier().unwrap();
        assert!(channel.bytes_sent() < 1024 && channel.bytes_received() < 1024);
        (connected.agreed.path_mtu, end.bytes(0, 5))
    };
    let (a, b) = std::thread::scope(|s| {
        let other = s.spawn(|| end(&right, &mut to_a, b"right"));
        (end(&left, &mut to_b, b"left!"), other.join().unwrap())
    });
    assert_eq!(a, (PathMtu::Mtu1024, b"right".to_vec()));
    assert_eq!(b, (PathMtu::Mtu1024, b"left!".to_vec()));
    let resent = rdma_soft::counters(left.name())
        .unwrap()
        .engine
        .tx_retransmitted;
    assert_eq!(resent, 0, "nothing was lost on a peer that was not ready");
}

#[test]
fn a_peer_that_stops_before_the_barrier_is_an_error_in_time() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    let mut other = End::new(&device, 64);
    let there = other.describe(&device);
    end.describe(&device);

    let (mut channel, _silent) = channels(Duration::from_millis(50));
    let start = Instant::now();
    let error = end
        .qp
        .connect(&there, &mut channel, Timing::default())
        .unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Exchange(ExchangeError::TimedOut { .. })
        ),
        "{error}"
    );
    assert!(start.elapsed() < LIMIT);
    assert_eq!(
        end.qp.state().unwrap(),
        IBV_QPS_RTR,
        "it has not begun to send"
    );

    let error = end
        .qp
        .connect(&there, &mut channel, Timing::default())
        .unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::NotFresh {
                state: IBV_QPS_RTR,
                ..
            }
        ),
        "{error}"
    );
    end.qp.to(rdma_qp::ToReset).unwrap();
    let (mut channel, gone) = channels(LIMIT);
    drop(gone);
    let error = end
        .qp
        .connect(&there, &mut channel, Timing::default())
        .unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Exchange(ExchangeError::PeerLost { .. })
        ),
        "{error}"
    );
}

#[test]
fn steps_out_of_order_are_explained() {
    let device = device(Profile::default());
    let mut end = End::new(&device, 64);
    let there = End::new(&device, 64).describe(&device);
    let error = end.qp.connect_begin(&there, Timing::default()).unwrap_err();
    assert!(matches!(error, ConnectError::NoEndpoint), "{error}");
    assert!(matches!(end.qp.init(), Err(ConnectError::NoEndpoint)));
    end.describe(&device);
    end.qp.init().unwrap();
    end.qp.to(ToErr).unwrap();
    let error = end.qp.connect_begin(&there, Timing::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is in ERR; connecting begins in RESET or INIT"),
        "{error}"
    );
}

#[test]
fn a_record_that_is_none_is_refused() {
    let (mut a, mut b) = channels(LIMIT);
    let device = device(Profile::default());
    let here = End::new(&device, 64).describe(&device).endpoint;
    std::thread::scope(|s| {
        s.spawn(|| a.swap_bytes(b"hello, world").unwrap());
        let error = b.swap(&here, &[]).unwrap_err();
        assert!(
            matches!(error, ExchangeError::Record(DecodeError::NotARecord(_))),
            "{error}"
        );
    });
}

/// An exchange of another kind: the other end is played by the test.
struct Scripted(Peer, u32);

impl Exchange for Scripted {
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        Peer::decode(mine)?;
        Ok(self.0.encode()?)
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.1 += 1;
        Ok(())
    }
}

#[test]
fn any_exchange_will_do() {
    let device = device(Profile::default());
    let (mut end, mut other) = (End::new(&device, 64), End::new(&device, 64));
    let mut exchange = Scripted(other.describe(&device), 0);
    let here = end.describe(&device);
    let there = exchange.swap(&here.endpoint, &here.regions).unwrap();
    assert_eq!(there, exchange.0);
    let dynamic: &mut dyn Exchange = &mut exchange;
    end.qp.connect(&there, dynamic, Timing::default()).unwrap();
    assert_eq!((exchange.1, end.qp.state().unwrap()), (1, IBV_QPS_RTS));
}

#[test]
fn gids_that_do_not_fit_are_refused_before_anything_is_sent() {
    let v6: std::net::IpAddr = "::1".parse().unwrap();
    let gids = vec![
        rdma_soft::core::config::GidEntry::v2("fe80::1".parse().unwrap()),
        rdma_soft::core::config::GidEntry::v2(v6),
    ];
    let port = PortProfile {
        gids: Some(gids),
        ..PortProfile::default()
    };
    let device = device(Profile {
        ports: vec![port],
        ..Profile::default()
    });
    let mut end = End::new(&device, 64);
    let table = device.port(1).unwrap();
    assert_eq!(table.best_gid().unwrap().entry().index, 1);
    let peer: Gid = std::net::Ipv4Addr::new(127, 0, 0, 9).into();
    assert!(matches!(
        table.best_gid_for(peer),
        Err(GidError::NoneUsable(_))
    ));
    let mut there = end.describe(&device);
    there.endpoint.gid = peer;
    let error = end
        .qp
        .connect_begin(&there, Timing::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("sgid_index 1 is ::1 (IPv6, RoCE v2) but dgid is ::ffff:127.0.0.9 (IPv4)"),
        "{error}"
    );
    assert_eq!(end.qp.state().unwrap(), IBV_QPS_INIT);
}

#[test]
fn there_are_no_events_when_nothing_happens() {
    let device = device(Profile::default());
    assert_eq!(device.next_event(Duration::from_millis(10)).unwrap(), None);
}

/// What a launcher without messages offers: bytes are left under a name, and found there. Two programs that know of each
/// other no more than a folder connect by it.
#[test]
fn a_folder_is_an_exchange() {
    let folder = std::env::temp_dir().join(format!("rdma-qp-folder-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let device = device(Profile::default());
    let end = |own: u32| {
        let (mut count, folder) = (0, &folder);
        // Each swap has names of its own: who is late must not find the answer of the next.
        let mut leave_and_find = move |mine: &[u8]| {
            count += 1;
            let path = |rank: u32| folder.join(format!("{rank}.{count}"));
            let draft = folder.join(format!("{own}.draft"));
            std::fs::write(&draft, mine)?;
            std::fs::rename(&draft, path(own))?;
            let until = Instant::now() + LIMIT;
            loop {
                match std::fs::read(path(1 - own)) {
                    Ok(bytes) => return Ok(bytes),
                    Err(_) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let calls = std::cell::RefCell::new(&mut leave_and_find);
        let mut exchange = from_fn(
            |mine| (calls.borrow_mut())(mine),
            || (calls.borrow_mut())(&[]).map(|_| ()),
        );
        let mut end = End::new(&device, 64);
        let here = end.describe(&device);
        let there = exchange.swap(&here.endpoint, &here.regions).unwrap();
        end.qp
            .connect(&there, &mut exchange, Timing::default())
            .unwrap();
        let ticket = end
            .qp
            .write(end.mr.slice(0, 8).unwrap(), there.region(0).unwrap().at(8));
        end.cq.wait(&ticket.unwrap(), LIMIT).unwrap();
        exchange.barrier().unwrap();
    };
    std::thread::scope(|s| {
        s.spawn(|| end(0));
        s.spawn(|| end(1));
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_a_function_fails_with_comes_back() {
    let mut exchange = from_fn(
        |_| Err("the launcher is gone".into()),
        || Err("nobody".into()),
    );
    let error = exchange.swap_bytes(b"x").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the exchange failed: the launcher is gone"
    );
    let error: ExchangeError = exchange.barrier().unwrap_err();
    assert!(matches!(error, ExchangeError::Other(_)), "{error}");
}
