//! Two ends that do not fit each other, or do not reach each other.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use rdma_core_sys::*;
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{
    AckTimeout, NOTHING, PathMtu, PathOptions, Peer, QKey, RetryCount, RnrRetry, RnrTimer, Ticket,
    Timing, WaitError,
};

use super::*;

/// The variable's value, which the row of the table sets.
fn set<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
    std::env::var(name).unwrap().parse().unwrap()
}

/// What two ends are told that are described with options of their own.
fn with_options(of: [PathOptions; 2], timing: Timing) -> (End, End) {
    let device = device();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (mut a, mut b) = (end(&device), end(&device));
    let describe = |end: &mut End, options| Peer {
        endpoint: end.qp.endpoint_with(gid, options).unwrap(),
        regions: vec![end.mr.remote()],
    };
    let [first, second] = of;
    let (of_a, of_b) = (describe(&mut a, first), describe(&mut b, second));
    connect(&mut a, &of_b, &mut b, &of_a, timing);
    (a, b)
}

programs! {
    two_path_mtus => {
        let (mut a, mut b, _) = spoiled(|of_b, of_a| {
            (of_b.endpoint.mtu, of_a.endpoint.mtu) = (PathMtu::Mtu2048, PathMtu::Mtu1024);
        });
        b.qp.recv(b.mr.slice(0, 4096).unwrap()).unwrap();
        let ticket = a.qp.send(a.mr.slice(0, 2000).unwrap()).unwrap();
        fails(&a, &b, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    psns_that_do_not_match => {
        let (mut a, b, _) = spoiled(|of_b, of_a| of_a.endpoint.psn = of_b.endpoint.psn);
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, &b, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    a_number_that_is_not_the_peers => {
        let (mut a, b, _) = spoiled(|of_b, of_a| of_b.endpoint.qp_num = of_a.endpoint.qp_num);
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, &b, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    /// b stays in INIT.
    a_peer_that_is_not_ready => {
        let device = device();
        let (mut a, mut b) = (end(&device), end(&device));
        let (_, of_b) = (describe(&device, &mut a), describe(&device, &mut b));
        b.qp.init().unwrap();
        let agreed = a.qp.connect_begin(&of_b, impatient()).unwrap();
        a.qp.connect_finish(agreed, impatient()).unwrap();
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, &b, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    two_partitions => {
        let at = |pkey_index| PathOptions { pkey_index, ..PathOptions::default() };
        let (mut a, b) = with_options([at(0), at(1)], impatient());
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, &b, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    /// A class of its own for each direction: it works, and answers queue elsewhere than requests.
    two_traffic_classes => {
        let at = |traffic_class| PathOptions { traffic_class, ..PathOptions::default() };
        let (mut a, mut b) = with_options([at(104), at(0)], impatient());
        b.qp.recv(NOTHING).unwrap();
        let ticket = a.qp.send(NOTHING).unwrap();
        a.cq.wait(&ticket, LIMIT).unwrap();
        leave(&[a.qp.dump(), b.qp.dump()], &"");
        give_up()
    }

    /// GID and hop limit of a peer that is nobody.
    a_peer_out_of_reach => {
        let device = device();
        let mut a = end(&device);
        let gid = device.port(1).unwrap().gid(0).unwrap();
        let options = PathOptions { hop_limit: set("HOPS"), ..PathOptions::default() };
        let mut there = Peer { endpoint: a.qp.endpoint_with(gid, options).unwrap(), regions: vec![] };
        there.endpoint.gid = set::<IpAddr>("PEER").into();
        let agreed = a.qp.connect_begin(&there, impatient()).unwrap();
        a.qp.connect_finish(agreed, impatient()).unwrap();
        let ticket = a.qp.send(NOTHING).unwrap();
        let Err(error) = a.cq.wait(&ticket, LIMIT) else { panic!("somebody answered") };
        leave(&[a.qp.dump()], &error);
        give_up()
    }

    /// The port's link is down.
    a_port_that_is_down => {
        let device = device();
        let mut a = end(&device);
        let init = rdma_qp::ToInit { port: 1, pkey_index: 0, access: ALL };
        a.qp.to(init).unwrap();
        leave(&[a.qp.dump()], &"");
        give_up()
    }

    a_timeout_below_the_round_trip => {
        // The timeout comes from the environment, so that the cure is the same program.
        let timing = Timing {
            timeout: AckTimeout::from_code(set("TIMEOUT")).unwrap(),
            retry_cnt: RetryCount::new(2).unwrap(),
            ..Timing::default()
        };
        let device = device();
        let (mut a, b, there) = pair_of(end(&device), end(&device), &device, timing, |_, _| {});
        for _ in 0..60 {
            let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
            if let Err(error) = a.cq.wait(&ticket, LIMIT) {
                leave(&[a.qp.dump(), b.qp.dump()], &error);
                give_up();
            }
        }
        leave(&[a.qp.dump(), b.qp.dump()], &"");
    }

    no_receive => {
        let timing = Timing { rnr_retry: RnrRetry::times(0).unwrap(), ..impatient() };
        let device = device();
        let (mut a, b, _) = pair_of(end(&device), end(&device), &device, timing, |_, _| {});
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, &b, ticket, IBV_WC_RNR_RETRY_EXC_ERR);
    }

    /// A WRITE with immediate takes a receive, too.
    no_receive_for_an_immediate => {
        let timing = Timing { rnr_retry: RnrRetry::times(0).unwrap(), ..impatient() };
        let device = device();
        let (mut a, b, there) = pair_of(end(&device), end(&device), &device, timing, |_, _| {});
        let ticket = a.qp.write_with_imm(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0), 7).unwrap();
        fails(&a, &b, ticket, IBV_WC_RNR_RETRY_EXC_ERR);
    }

    /// It crawls, and then it hangs.
    rnr_timer_zero => {
        let timing = Timing { min_rnr_timer: RnrTimer::from_code(0).unwrap(), ..impatient() };
        let device = device();
        let (mut a, b, _) = pair_of(end(&device), end(&device), &device, timing, |_, _| {});
        leave(&[b.qp.dump(), a.qp.dump()], &"");
        let ticket = a.qp.send(NOTHING).unwrap();
        let _ = a.cq.wait(&ticket, Duration::from_secs(60));
    }

    /// More READs under way than the peer serves: devices refuse or drop what is too many.
    more_reads_than_the_peer_serves => {
        let (a, b, _) = spoiled(|of_b, of_a| {
            (of_b.endpoint.responder_depth, of_a.endpoint.initiator_depth) = (16, 4);
        });
        leave(&[a.qp.dump(), b.qp.dump()], &"");
        give_up()
    }

    a_responder_without_resources => {
        let (mut a, b, there) = spoiled(|_, of_a| of_a.endpoint.initiator_depth = 0);
        let ticket = a.qp.read(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
        fails(&a, &b, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    /// Nobody is told; the receiver waits, and is ended.
    two_qkeys => {
        let (mut a, mut b) = (member(0x1111_1111), member(0x1111_1111));
        b.qp.recv(b.mr.slice(0, 104).unwrap()).unwrap();
        let mut there = b.here.clone();
        there.qkey = Some(QKey::new(0x2222_2222).unwrap());
        let to = a.qp.destination(&there).unwrap();
        let sent = a.qp.send_to(a.mr.slice(0, 64).unwrap(), &to).unwrap();
        a.cq.wait(&sent, LIMIT).unwrap();
        let _ = b.cq.wait_any(Duration::from_secs(60));
    }

    /// Two processes. The other one is killed after its first message, with eight more on the way to it.
    a_peer_that_was_killed => {
        let listener = tcp::listen("127.0.0.1:0").unwrap();
        let name = "programs::connection::a_peer_that_is_killed";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", name])
            .env("MEET", listener.local_addr().unwrap().to_string())
            .env_remove("LEAVE")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut a = end(&device());
        let mut channel = listener.accept(LIMIT).unwrap();
        meet(&mut a, &mut channel);
        let ticket = a.qp.send(NOTHING).unwrap();
        a.cq.wait(&ticket, LIMIT).unwrap();
        // Time for its record; then it dies.
        std::thread::sleep(Duration::from_millis(600));
        child.kill().unwrap();
        child.wait().unwrap();
        let tickets: Vec<_> = (0..8).map(|_| a.qp.send(NOTHING).unwrap()).collect();
        match a.cq.wait(&tickets[0], LIMIT) {
            Err(WaitError::Failed(report)) => leave(&[a.qp.dump()], &report),
            other => panic!("{other:?}"),
        }
        give_up()
    }

    a_peer_that_is_killed => {
        let mut b = end(&device());
        let mut channel = tcp::connect(set::<String>("MEET").as_str(), LIMIT).unwrap();
        let first = meet(&mut b, &mut channel);
        b.cq.wait(&first, LIMIT).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Connects over the channel, with one receive posted before, whose ticket this gives.
fn meet(end: &mut End, channel: &mut tcp::Channel) -> Ticket {
    let here = describe(&device(), end);
    let there = channel.swap(&here.endpoint, &here.regions).unwrap();
    end.qp.init().unwrap();
    let first = end.qp.recv(NOTHING).unwrap();
    end.qp.connect(&there, channel, impatient()).unwrap();
    first
}
