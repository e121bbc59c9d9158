//! The peer is a process of its own, which is killed and started again.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_qp::exchange::tcp;
use rdma_qp::supervise::{self, NotPosted};
use rdma_soft::Profile;

use super::listener;
use super::transports::{ALL, End};
use crate::common::{LIMIT, device};

/// Answers to numbers are so much larger.
const ANSWER: u64 = 1000;

/// A process that answers. It is gone when this is dropped.
struct Peer(Child);

impl Peer {
    fn start(transport: usize, address: SocketAddr) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--ignored",
            "--exact",
            "processes::the_peer_of_another_process",
        ]);
        command.env("SUPERVISED_PEER", format!("{transport} {address}"));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Peer(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a number until its answer is there.
fn answered(end: &mut End, number: u64) {
    let limit = Instant::now() + LIMIT;
    let mut sent: Option<Instant> = None;
    while !end.received.contains(&(number + ANSWER)) {
        assert!(Instant::now() < limit, "{number}: {:?}", end.events);
        // It may have been lost, with a life or on the way.
        if end.link.is_up() && sent.is_none_or(|at| at.elapsed() > Duration::from_millis(200)) {
            match end.link.send(number) {
                Ok(_) => sent = Some(Instant::now()),
                Err(NotPosted::Down) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..20 {
            end.turn();
        }
    }
}

#[test]
fn it_is_met_again_on_every_transport() {
    for (transport, (name, make)) in ALL.into_iter().enumerate() {
        let address = listener().local_addr().unwrap();
        let mut peer = Peer::start(transport, address);
        let here = device(Profile::default());
        let mut end = End::new(make(&here, Box::new(supervise::connect(address))));
        answered(&mut end, 1);
        peer.kill();
        let limit = Instant::now() + LIMIT;
        while end.reports.is_empty() {
            assert!(Instant::now() < limit, "{name}: {:?}", end.events);
            end.turn();
        }
        let (made, began) = (end.connections(), Instant::now());
        // Nobody is there for a while, and then somebody is.
        while began.elapsed() < Duration::from_millis(300) {
            end.turn();
        }
        let _again = Peer::start(transport, address);
        answered(&mut end, 2);
        assert!(end.connections() > made, "{name}: {:?}", end.events);
    }
}

#[test]
#[ignore = "run by it_is_met_again_on_every_transport"]
fn the_peer_of_another_process() {
    let Ok(what) = std::env::var("SUPERVISED_PEER") else {
        return;
    };
    let (transport, address) = what.split_once(' ').unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let address: SocketAddr = address.parse().unwrap();
    let listener = loop {
        match tcp::listen(address) {
            Ok(listener) => break listener,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let (_, make) = ALL[transport.parse::<usize>().unwrap()];
    let here = device(Profile::default());
    let mut end = End::new(make(&here, Box::new(supervise::listen(listener))));
    let mut answers = 0;
    loop {
        end.turn();
        while let Some(number) = end.received.get(answers) {
            if end.link.send(number + ANSWER).is_err() {
                break;
            }
            answers += 1;
        }
    }
}
