//! Supervised connections on the software device: what happens to a port, a GID, a device, and to the process at the other end.
// The example is a program of its own, with what the examples have in common.
#![allow(clippy::duplicate_mod)]

mod carried;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod processes;
#[path = "../../examples/supervised.rs"]
#[allow(dead_code)]
mod supervised;
mod transports;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{LIMIT, device};
use rdma_core_sys::IBV_WC_RETRY_EXC_ERR;
use rdma_qp::exchange::tcp;
use rdma_qp::supervise::{
    self, Backoff, Event, Happened, NotPosted, Options, Probes, SuperviseError, Supervised, Why,
};
use rdma_qp::{AckTimeout, BufferPool, Device, Fate, PostFlags, RecvQueue, RetryCount, Timing, op};
use rdma_soft::Profile;
use rdma_soft::core::config::GidEntry;

const RECEIVES: usize = 16;

/// Quick to notice, so that the tests are short: 200 ms, and at most 4 times 3 times 33.5 ms.
pub fn quick() -> Options {
    Options {
        probe: Duration::from_millis(200),
        timing: Timing {
            timeout: AckTimeout::from_code(13).unwrap(),
            retry_cnt: RetryCount::new(2).unwrap(),
            ..Timing::default()
        },
        backoff: Backoff {
            most: Duration::from_millis(100),
            ..Backoff::default()
        },
        ..Options::default()
    }
}

/// An end that receives into buffers and posts each again.
struct End<T: Probes> {
    link: Supervised<u64, T>,
    pool: Arc<BufferPool>,
    events: Vec<Event>,
    done: Vec<u64>,
    received: Vec<u64>,
    reports: Vec<supervise::Report<u64>>,
    /// Probes that took a receive.
    heartbeats: usize,
}

macro_rules! end {
    ($transport:ident, $device:expr, $meeting:expr, $options:expr) => {{
        let (pd, cq) = (
            $device.alloc_pd().unwrap(),
            $device.create_event_cq(128).unwrap(),
        );
        let pool = Arc::new(pd.buffers(RECEIVES, 8).unwrap());
        let depth = RECEIVES as u32;
        let qp = pd
            .$transport(&cq)
            .send_depth(depth)
            .recv_depth(depth)
            .inline_data(8);
        let (qp, receives) = (qp.create().unwrap(), pool.clone());
        let link = Supervised::new($device, (qp, cq), $meeting, $options, move |qp| {
            while let Some(buffer) = receives.take() {
                qp.recv_buffer(buffer).map_err(|not| not.error)?;
            }
            Ok(())
        });
        End {
            link: link.unwrap(),
            pool,
            events: Vec::new(),
            done: Vec::new(),
            received: Vec::new(),
            reports: Vec::new(),
            heartbeats: 0,
        }
    }};
}

impl<T: Probes + RecvQueue> End<T> {
    /// Takes what there is to tell.
    fn turn(&mut self) -> Result<(), SuperviseError> {
        while let Some(happened) = self.link.next(Duration::from_millis(1))? {
            match happened {
                Happened::Done(message) => self.done.push(message.context),
                Happened::Received(done) => {
                    let buffer = self.link.take_buffer(&done).expect("it was a buffer");
                    self.received
                        .push(u64::from_be_bytes(buffer[..].try_into().unwrap()));
                    self.again(buffer);
                }
                Happened::Heartbeat(done) => {
                    self.heartbeats += 1;
                    let buffer = self.link.take_buffer(&done).expect("it was a buffer");
                    self.again(buffer);
                }
                Happened::Event(event) => self.events.push(event),
                Happened::Ended(report) => self.reports.push(report),
                _ => {}
            }
        }
        Ok(())
    }

    fn again(&mut self, buffer: rdma_qp::Buffer) {
        match self.link.recv_buffer(buffer) {
            Ok(_) | Err(NotPosted::Down) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn saw(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.events.iter().any(wanted)
    }
}

/// Gives both ends turns until `over`.
fn until<T: Probes + RecvQueue>(
    (a, b): (&mut End<T>, &mut End<T>),
    what: &str,
    over: impl Fn(&End<T>, &End<T>) -> bool,
) {
    let limit = Instant::now() + LIMIT;
    while !over(a, b) {
        assert!(
            Instant::now() < limit,
            "{what}: {:?} and {:?}; {:?} and {:?}",
            a.link,
            b.link,
            a.events,
            b.events
        );
        a.turn().unwrap();
        b.turn().unwrap();
    }
}

/// Sends a message one way and waits until it is there.
fn carries<T: Probes + RecvQueue>(a: &mut End<T>, b: &mut End<T>, number: u64)
where
    op::Send: rdma_qp::Op<T>,
{
    until((a, b), "both are up", |a, b| {
        a.link.is_up() && b.link.is_up()
    });
    let bytes = number.to_be_bytes();
    let posted = a
        .link
        .post_inline(op::Send, &bytes, PostFlags::empty(), number);
    posted.unwrap();
    until((a, b), "a message arrives", |a, b| {
        b.received.last() == Some(&number) && a.done.last() == Some(&number)
    });
}

fn listener() -> tcp::Listener {
    tcp::listen("127.0.0.1:0").unwrap()
}

/// Two ends on two devices.
fn pair(options: Options) -> (Device, End<rdma_qp::Rc>, Device, End<rdma_qp::Rc>) {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let a = end!(rc, &here, supervise::connect(address), options.clone());
    let b = end!(rc, &there, supervise::listen(listener), options);
    (here, a, there, b)
}

#[test]
fn an_idle_connection_is_probed_and_lives() {
    let (_here, mut a, _there, mut b) = pair(quick());
    carries(&mut a, &mut b, 1);
    carries(&mut b, &mut a, 2);
    let probed = |end: &End<_>| end.events.iter().filter(|e| **e == Event::Probing).count();
    until((&mut a, &mut b), "some probes", |a, b| {
        probed(a) > 2 && probed(b) > 2
    });
    assert!(
        !a.saw(|event| matches!(event, Event::Dead { .. })),
        "{:?}",
        a.events
    );
    carries(&mut a, &mut b, 3);
    // No probe took a receive.
    assert_eq!((a.heartbeats, b.received.len()), (0, 2));
}

/// The last message is unsignaled, so nothing tells that it was done; and then there is nobody any more.
#[test]
fn silence_behind_an_unsignaled_message_is_noticed() {
    let (here, mut a, _there, mut b) = pair(quick());
    carries(&mut a, &mut b, 1);
    let flags = PostFlags::UNSIGNALED;
    a.link
        .post_inline(op::Send, &2u64.to_be_bytes(), flags, 2)
        .unwrap();
    until((&mut a, &mut b), "it arrives", |_, b| b.received == [1, 2]);
    let of_b = a.link.peer().unwrap().endpoint.gid;
    let of_b = of_b.ip();
    assert!(rdma_soft::partition(here.name(), of_b, true));
    let since = Instant::now();
    let limit = a.link.notices_within();
    while a.reports.is_empty() {
        assert!(since.elapsed() < limit + LIMIT, "{:?}", a.events);
        a.turn().unwrap();
    }
    assert!(a.saw(|event| *event
        == Event::Dead {
            why: Why::Failed(IBV_WC_RETRY_EXC_ERR)
        }));
    // It stood before the probe, so it is of unknown fate, or was told done.
    let told = a.done.contains(&2) || a.reports[0].unknown.iter().any(|m| m.context == 2);
    assert!(told, "{:?}", a.reports);
    assert!(rdma_soft::partition(here.name(), of_b, false));
    carries(&mut a, &mut b, 3);
}

#[test]
fn a_port_that_goes_down_is_waited_for() {
    let (here, mut a, _there, mut b) = pair(quick());
    carries(&mut a, &mut b, 1);
    rdma_soft::set_port_up(here.name(), 1, false).unwrap();
    until((&mut a, &mut b), "the port is down", |a, _| {
        a.saw(|e| *e == Event::PortDown)
    });
    // What is sent now is not acknowledged; and then nobody is looked for.
    a.link
        .post_inline(op::Send, &2u64.to_be_bytes(), PostFlags::empty(), 2)
        .unwrap();
    until((&mut a, &mut b), "the death is noticed", |a, b| {
        !a.reports.is_empty() && !b.reports.is_empty()
    });
    let report = &a.reports[0];
    let unknown: Vec<_> = report.unknown.iter().map(|m| (m.context, m.fate)).collect();
    assert_eq!(unknown, [(2, Fate::Unknown)]);
    assert!(report.complete && report.not_done.is_empty());
    let last = |end: &End<_>| matches!(end.events.last(), Some(Event::Dead { .. }));
    assert!(last(&a), "{:?}", a.events);
    rdma_soft::set_port_up(here.name(), 1, true).unwrap();
    until((&mut a, &mut b), "the port is up", |a, _| {
        a.saw(|e| *e == Event::PortUp)
    });
    carries(&mut a, &mut b, 3);
    assert_eq!(b.received, [1, 3]);
    assert_eq!(a.pool.free(), 0, "all buffers are posted again");
}

#[test]
fn another_gid_is_told_to_the_peer() {
    // Two addresses, of which the first is the best.
    let addresses = [2, 3].map(|last| IpAddr::V4(Ipv4Addr::new(127, 77, 0, last)));
    let mut profile = Profile::default();
    profile.ports[0].addresses = addresses.to_vec();
    let (here, there) = (device(profile), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut a = end!(rc, &here, supervise::connect(address), quick());
    let mut b = end!(rc, &there, supervise::listen(listener), quick());
    carries(&mut a, &mut b, 1);
    let of_a = |b: &End<_>| b.link.peer().unwrap().endpoint.gid;
    let first = of_a(&b);
    let gids = here.port(1).unwrap().gids().unwrap();
    let at = gids.iter().find(|entry| entry.gid == first).unwrap().index as usize;
    // Something else in the table changes: nobody cares.
    for entry in [None, Some(GidEntry::v2(addresses[1]))] {
        rdma_soft::set_gid(here.name(), 1, 1 - at, entry).unwrap();
    }
    carries(&mut a, &mut b, 2);
    assert!(
        !a.saw(|event| *event == Event::GidChanged),
        "{:?}",
        a.events
    );
    rdma_soft::set_gid(here.name(), 1, at, None).unwrap();
    until((&mut a, &mut b), "the change is seen", |a, _| {
        a.saw(|e| *e == Event::GidChanged)
    });
    carries(&mut a, &mut b, 3);
    assert_ne!(of_a(&b), first);
    assert_eq!(a.reports[0].why, Why::GidChanged);
}

#[test]
fn a_device_that_is_gone_is_the_end() {
    let (here, mut a, _there, mut b) = pair(quick());
    carries(&mut a, &mut b, 1);
    rdma_soft::fail_device(here.name()).unwrap();
    let limit = Instant::now() + LIMIT;
    let error = loop {
        assert!(Instant::now() < limit);
        if let Err(error) = a.turn() {
            break error;
        }
    };
    let device = here.name().to_owned();
    assert_eq!(error, SuperviseError::DeviceRemoved { device });
    assert!(
        a.saw(|event| *event == Event::DeviceRemoved),
        "{:?}",
        a.events
    );
    assert_eq!(a.reports[0].why, Why::DeviceRemoved);
    // The other end is told by the channel, and looks for somebody who will never come.
    until(
        (&mut b, &mut end_of_nobody()),
        "the peer notices",
        |b, _| !b.reports.is_empty(),
    );
}

/// An end that meets nobody.
fn end_of_nobody() -> End<rdma_qp::Rc> {
    let here = device(Profile::default());
    end!(rc, &here, supervise::listen(listener()), quick())
}

#[test]
fn who_finds_nobody_gives_up_if_it_is_told_to() {
    let nobody = listener().local_addr().unwrap();
    let here = device(Profile::default());
    let options = Options {
        give_up: Some(Duration::from_millis(300)),
        ..quick()
    };
    let mut a = end!(rc, &here, supervise::connect(nobody), options);
    let refused = a.link.post_inline(op::Send, &[0; 8], PostFlags::empty(), 1);
    assert_eq!(refused, Err(NotPosted::Down));
    let limit = Instant::now() + LIMIT;
    while a.turn().is_ok() {
        assert!(Instant::now() < limit);
    }
    assert_eq!(a.turn(), Err(SuperviseError::GaveUp));
    let because = a.events.iter().find_map(|event| match event {
        Event::GaveUp { because, .. } => because.clone(),
        _ => None,
    });
    assert!(because.unwrap().contains("refused"), "{:?}", a.events);
}

/// A name stands for several addresses, and at the first nobody may listen.
#[test]
fn a_peer_of_several_addresses_is_found() {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let nobody = [listener(), listener()].map(|l| l.local_addr().unwrap());
    let listener = listener();
    let all = [nobody[0], listener.local_addr().unwrap(), nobody[1]];
    let meeting = supervise::connect_any(&all[..]).unwrap();
    let mut a = end!(rc, &here, meeting, quick());
    let mut b = end!(rc, &there, supervise::listen(listener), quick());
    carries(&mut a, &mut b, 1);
    // One attempt is enough, and so it is again.
    drop(b);
    let there = device(Profile::default());
    let listener = loop {
        a.turn().unwrap();
        if let Ok(listener) = tcp::listen(all[1]) {
            break listener;
        }
    };
    let mut b = end!(rc, &there, supervise::listen(listener), quick());
    carries(&mut a, &mut b, 2);
}

/// All of them are told where nobody is met, and a name that stands for none is an error.
#[test]
fn addresses_where_nobody_is_met_are_told() {
    let nobody = [listener(), listener()].map(|l| l.local_addr().unwrap());
    let here = device(Profile::default());
    let options = Options {
        give_up: Some(Duration::from_millis(300)),
        ..quick()
    };
    let meeting = supervise::connect_any(&nobody[..]).unwrap();
    let mut a = end!(rc, &here, meeting, options);
    let limit = Instant::now() + LIMIT;
    while a.turn().is_ok() {
        assert!(Instant::now() < limit);
    }
    let told = a.events.iter().any(|event| match event {
        Event::GaveUp { because, .. } => nobody.iter().all(|address| {
            let said = format!("{address}: Connection refused");
            because
                .as_ref()
                .is_some_and(|because| because.contains(&said))
        }),
        _ => false,
    });
    assert!(told, "{:?}", a.events);
    assert!(supervise::connect_any(&[][..]).is_err());
    assert!(supervise::connect_any("no port").is_err());
}

/// An address may not answer at all; then the next attempt is for the others.
#[test]
fn an_address_that_does_not_answer_leaves_others_their_turn() {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    // Its queue holds one, and whoever comes then hears nothing.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let address = deaf.local_addr().unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    let listener = listener();
    let all = [address, listener.local_addr().unwrap()];
    let options = Options {
        step: Duration::from_millis(300),
        ..quick()
    };
    let meeting = supervise::connect_any(&all[..]).unwrap();
    let mut a = end!(rc, &here, meeting, options.clone());
    let mut b = end!(rc, &there, supervise::listen(listener), options);
    carries(&mut a, &mut b, 1);
}

#[test]
fn what_cannot_be_supervised_is_refused() {
    let here = device(Profile::default());
    let pd = here.alloc_pd().unwrap();
    let begin = |cq: rdma_qp::Cq, access| {
        let qp = pd.rc(&cq).access(access).create().unwrap();
        let meeting = supervise::listen(listener());
        let made: Result<Supervised, _> =
            Supervised::new(&here, (qp, cq), meeting, quick(), |_| Ok(()));
        made.map(drop)
    };
    let all = common::all();
    assert_eq!(
        begin(here.create_cq(64).unwrap(), all),
        Err(SuperviseError::NoChannel)
    );
    let (cq, other) = (
        here.create_event_cq(64).unwrap(),
        here.create_event_cq(64).unwrap(),
    );
    let qp = pd.rc(&cq).create().unwrap();
    let meeting = supervise::listen(listener());
    let made: Result<Supervised, _> =
        Supervised::new(&here, (qp, other), meeting, quick(), |_| Ok(()));
    assert_eq!(made.map(drop), Err(SuperviseError::OtherCq));
    let error = begin(here.create_event_cq(64).unwrap(), rdma_qp::Access::empty());
    assert!(error.unwrap_err().to_string().contains("REMOTE_WRITE"));
    assert_eq!(begin(here.create_event_cq(64).unwrap(), all), Ok(()));
}

/// Somebody who knocks at the port, and says nothing or nonsense, ends no connection.
#[test]
fn strangers_disturb_nobody() {
    use std::io::Write;
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut a = end!(rc, &here, supervise::connect(address), quick());
    let mut b = end!(rc, &there, supervise::listen(listener), quick());
    carries(&mut a, &mut b, 1);
    let mut strangers: Vec<_> = (0..20)
        .map(|_| std::net::TcpStream::connect(address).unwrap())
        .collect();
    strangers[19].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    carries(&mut a, &mut b, 2);
    carries(&mut b, &mut a, 3);
    assert!(b.reports.is_empty(), "{:?}", b.events);
}

/// Two rounds with real processes over each transport; `cargo run --release --example supervised -- --rounds 50` plays more.
#[test]
fn a_process_that_is_killed_and_started_again_is_met_again() {
    let exe = std::env::current_exe().unwrap();
    let server = |transport: &str, address: &str, log: &Path| {
        let mut command = Command::new(&exe);
        command.args(["--ignored", "--exact", "the_server_of_the_example"]);
        command
            .env("SUPERVISED_TRANSPORT", transport)
            .env("SUPERVISED_SERVE", address)
            .env("SUPERVISED_LOG", log);
        command
    };
    let arguments = ["--rounds", "2", "--transport", "all", "--pause", "1"].map(str::to_owned);
    supervised::run(arguments, server).unwrap();
}

#[test]
#[ignore = "run by a_process_that_is_killed_and_started_again_is_met_again"]
fn the_server_of_the_example() {
    if let (Ok(transport), Ok(address), Ok(log)) = (
        std::env::var("SUPERVISED_TRANSPORT"),
        std::env::var("SUPERVISED_SERVE"),
        std::env::var("SUPERVISED_LOG"),
    ) {
        let arguments = [
            "--transport",
            &transport,
            "--serve",
            &address,
            "--log",
            &log,
        ];
        let arguments = arguments.map(str::to_owned);
        let nobody = |_: &str, _: &str, _: &Path| Command::new("false");
        supervised::run(arguments, nobody).unwrap();
    }
}
