//! What every transport promises alike: RC, UC, UD and XRC.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_core_sys::IBV_WC_RETRY_EXC_ERR;
use rdma_qp::exchange::{ExchangeError, tcp};
use rdma_qp::supervise::{
    self, Event, Happened, Meeting, NotPosted, Proof, Report, Sign, SuperviseError, Supervised, Why,
};
use rdma_qp::xrc::{Opening, XrcDomain};
use rdma_qp::{Device, Fate, PostFlags, op};
use rdma_soft::Profile;
use rdma_soft::core::config::GidEntry;

use super::supervised::links::{Link, TRANSPORTS, XrcLink, xrc};
use super::{RECEIVES, listener, quick};
use crate::common::{LIMIT, device};

/// An end of a transport, quick to notice.
pub type Make = fn(&Device, Box<dyn Meeting>) -> Box<dyn Link>;

macro_rules! quick {
    ($number:literal) => {
        |device, meeting| TRANSPORTS[$number].1(device, meeting, quick(), RECEIVES as u32).unwrap()
    };
}

pub const ALL: [(&str, Make); 4] = [
    ("RC", quick!(0)),
    ("UC", quick!(1)),
    ("UD", quick!(2)),
    ("XRC", quick!(3)),
];

/// An end, and what it was told.
pub struct End {
    pub link: Box<dyn Link>,
    pub events: Vec<Event>,
    pub done: Vec<u64>,
    pub received: Vec<u64>,
    pub reports: Vec<Report<u64>>,
    heartbeats: usize,
    over: Option<SuperviseError>,
}

impl End {
    pub fn new(link: Box<dyn Link>) -> End {
        End {
            link,
            events: Vec::new(),
            done: Vec::new(),
            received: Vec::new(),
            reports: Vec::new(),
            heartbeats: 0,
            over: None,
        }
    }

    pub fn turn(&mut self) {
        loop {
            while let Some(number) = self.link.beside().unwrap() {
                self.received.push(number);
            }
            match self.link.next(Duration::from_millis(1)) {
                Ok(None) => return,
                Ok(Some(Happened::Done(message))) => self.done.push(message.context),
                Ok(Some(Happened::Received(done))) => {
                    let number = self.link.take(&done).unwrap();
                    self.received.push(number);
                }
                Ok(Some(Happened::Heartbeat(done))) => {
                    self.link.take(&done).unwrap();
                    self.heartbeats += 1;
                }
                Ok(Some(Happened::Event(event))) => self.events.push(event),
                Ok(Some(Happened::Ended(report))) => self.reports.push(report),
                Ok(Some(_)) => {}
                Err(error) => {
                    self.over = Some(error);
                    return;
                }
            }
        }
    }

    fn deaths(&self) -> Vec<&Why> {
        let deaths = self.events.iter().filter_map(|event| match event {
            Event::Dead { why } => Some(why),
            _ => None,
        });
        deaths.collect()
    }

    pub fn connections(&self) -> usize {
        let made = |event: &&Event| matches!(event, Event::Recovered { .. });
        self.events.iter().filter(made).count()
    }
}

fn until(ends: &mut [&mut End], what: &str, over: impl Fn(&[&mut End]) -> bool) {
    let limit = Instant::now() + LIMIT;
    while !over(ends) {
        let told: Vec<_> = ends
            .iter()
            .map(|end| (&end.events, &end.received))
            .collect();
        assert!(Instant::now() < limit, "{what}: {told:?}");
        ends.iter_mut().for_each(|end| end.turn());
    }
}

/// Sends a number one way and waits until it is there; where it may be lost with a life, as often as needed.
fn carries(a: &mut End, b: &mut End, number: u64) {
    let limit = Instant::now() + LIMIT;
    while !b.received.contains(&number) {
        assert!(
            Instant::now() < limit,
            "{number}: {:?} and {:?}",
            a.events,
            b.events
        );
        if a.link.is_up() && b.link.is_up() && !a.done.contains(&number) {
            match a.link.send(number) {
                Ok(_) | Err(NotPosted::Down) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for _ in 0..3 {
            a.turn();
            b.turn();
        }
    }
}

/// Two ends on two devices, of which the first has that profile.
struct Pair {
    a: End,
    b: End,
    here: Device,
    there: Device,
    address: std::net::SocketAddr,
    make: Make,
}

fn pair(make: Make, profile: Profile) -> Pair {
    let (here, there) = (device(profile), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let a = End::new(make(&here, Box::new(supervise::connect(address))));
    let b = End::new(make(&there, Box::new(supervise::listen(listener))));
    Pair {
        a,
        b,
        here,
        there,
        address,
        make,
    }
}

fn over_each(play: impl Fn(&str, Pair)) {
    for (name, make) in ALL {
        play(name, pair(make, Profile::default()));
    }
}

#[test]
fn idle_connections_live_by_what_each_transport_can_prove() {
    for ((name, make), proof) in
        ALL.into_iter()
            .zip([Proof::Process, Proof::Echo, Proof::Echo, Proof::Node])
    {
        let Pair {
            mut a,
            mut b,
            here: _here,
            there: _there,
            ..
        } = pair(make, Profile::default());
        assert_eq!(a.link.proof(), proof, "{name}");
        carries(&mut a, &mut b, 1);
        carries(&mut b, &mut a, 2);
        let probed = |end: &End| end.events.iter().filter(|e| **e == Event::Probing).count();
        until(&mut [&mut a, &mut b], "probes", |ends| {
            probed(ends[0]) + probed(ends[1]) > 3
        });
        assert!(
            a.deaths().is_empty() && b.deaths().is_empty(),
            "{name}: {:?}",
            a.events
        );
        // Only messages take receives.
        assert_eq!(a.heartbeats > 0, proof == Proof::Echo, "{name}");
        // What is known is said when the connection is made.
        let made = a
            .events
            .iter()
            .find(|event| matches!(event, Event::Recovered { .. }));
        let text = made.unwrap().to_string();
        assert_eq!(
            text.contains("node, not its process"),
            proof == Proof::Node,
            "{text}"
        );
        carries(&mut a, &mut b, 3);
        assert_eq!((a.received, b.received), (vec![2], vec![1, 3]), "{name}");
    }
}

/// Frames do not get through, and nobody says a word.
#[test]
fn silence_is_noticed_within_the_promised_time() {
    over_each(
        |name,
         Pair {
             mut a,
             mut b,
             here,
             there: _there,
             ..
         }| {
            carries(&mut a, &mut b, 1);
            let of_b = a.link.peer().unwrap().gid.ip();
            assert!(rdma_soft::partition(here.name(), of_b, true));
            let since = Instant::now();
            let limit = a.link.notices_within() + LIMIT;
            until(&mut [&mut a, &mut b], "a death", |ends| {
                !ends[0].reports.is_empty() || since.elapsed() > limit
            });
            // Whoever notices first closes the channel.
            let noticed = [&a, &b].map(|end| end.deaths().first().map(|why| (*why).clone()));
            let first = [Why::Silent, Why::Failed(IBV_WC_RETRY_EXC_ERR)];
            let alone = noticed.iter().flatten().any(|why| first.contains(why));
            assert!(alone, "{name}: {noticed:?}");
            assert!(rdma_soft::partition(here.name(), of_b, false));
            carries(&mut a, &mut b, 2);
            carries(&mut b, &mut a, 3);
        },
    );
}

#[test]
fn a_port_that_goes_down_is_waited_for() {
    over_each(
        |name,
         Pair {
             mut a,
             mut b,
             here,
             there: _there,
             ..
         }| {
            carries(&mut a, &mut b, 1);
            rdma_soft::set_port_up(here.name(), 1, false).unwrap();
            until(&mut [&mut a, &mut b], "the port is down", |ends| {
                ends[0].events.contains(&Event::PortDown)
            });
            // The other end is told by its probes, and tells.
            until(&mut [&mut a, &mut b], "deaths", |ends| {
                ends.iter().all(|end| !end.reports.is_empty())
            });
            // While the port is down nobody is looked for.
            let last = a.events.last();
            assert!(
                matches!(last, Some(Event::Dead { .. })),
                "{name}: {:?}",
                a.events
            );
            assert_eq!(a.connections(), 1, "{name}");
            rdma_soft::set_port_up(here.name(), 1, true).unwrap();
            carries(&mut a, &mut b, 2);
            carries(&mut b, &mut a, 3);
            assert!(a.events.contains(&Event::PortUp), "{name}");
        },
    );
}

#[test]
fn another_gid_is_told_to_the_peer() {
    for (last, (name, make)) in (10..).zip(ALL) {
        // Two addresses, of which the first is the best.
        let addresses = [0, 1].map(|way| IpAddr::V4(Ipv4Addr::new(127, 78, last, 2 + way)));
        let mut profile = Profile::default();
        profile.ports[0].addresses = addresses.to_vec();
        let Pair {
            mut a,
            mut b,
            here,
            there: _there,
            ..
        } = pair(make, profile);
        carries(&mut a, &mut b, 1);
        let first = b.link.peer().unwrap().gid;
        let gids = here.port(1).unwrap().gids().unwrap();
        let at = gids.iter().find(|entry| entry.gid == first).unwrap().index as usize;
        // Something else in the table changes: nobody cares.
        for entry in [None, Some(GidEntry::v2(addresses[1]))] {
            rdma_soft::set_gid(here.name(), 1, 1 - at, entry).unwrap();
        }
        carries(&mut a, &mut b, 2);
        assert!(a.deaths().is_empty(), "{name}: {:?}", a.events);
        rdma_soft::set_gid(here.name(), 1, at, None).unwrap();
        until(&mut [&mut a, &mut b], "the change is seen", |ends| {
            !ends[0].reports.is_empty()
        });
        assert_eq!(a.reports[0].why, Why::GidChanged, "{name}");
        carries(&mut a, &mut b, 3);
        carries(&mut b, &mut a, 4);
        assert_ne!(b.link.peer().unwrap().gid, first, "{name}");
    }
}

#[test]
fn a_device_that_is_gone_is_the_end() {
    over_each(
        |name,
         Pair {
             mut a,
             mut b,
             here,
             there: _there,
             ..
         }| {
            carries(&mut a, &mut b, 1);
            rdma_soft::fail_device(here.name()).unwrap();
            until(&mut [&mut a, &mut b], "the end", |ends| {
                ends[0].over.is_some() && !ends[1].reports.is_empty()
            });
            let device = here.name().to_owned();
            assert_eq!(
                a.over,
                Some(SuperviseError::DeviceRemoved { device }),
                "{name}"
            );
            assert_eq!(a.reports[0].why, Why::DeviceRemoved, "{name}");
            assert!(b.over.is_none(), "{name}");
        },
    );
}

/// The other end is dropped, as when its process ends, and made again; messages under way get a fate each.
#[test]
fn a_peer_that_comes_again_is_met_again_and_each_message_has_one_fate() {
    over_each(|name, pair| {
        let Pair {
            mut a,
            mut b,
            here: _here,
            there,
            address,
            make,
        } = pair;
        carries(&mut a, &mut b, 1);
        let sent: Vec<u64> = (100..108).collect();
        for &number in &sent {
            a.link.send(number).unwrap();
        }
        drop(b);
        let listener = loop {
            match tcp::listen(address) {
                Ok(listener) => break listener,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        until(&mut [&mut a], "the death", |ends| {
            !ends[0].reports.is_empty()
        });
        let report = &a.reports[0];
        let told = |messages: &[supervise::Message<u64>]| -> Vec<u64> {
            messages.iter().map(|message| message.context).collect()
        };
        let fates = [
            &a.done[1..],
            &told(&report.not_done),
            &told(&report.unknown),
        ]
        .concat();
        assert_eq!(fates, sent, "{name}: {report:?}");
        assert!(
            report
                .unknown
                .iter()
                .all(|message| message.fate == Fate::Unknown)
        );
        let mut b = End::new(make(&there, Box::new(supervise::listen(listener))));
        carries(&mut a, &mut b, 2);
        carries(&mut b, &mut a, 3);
        // Nothing was sent again by itself, and nothing of the former life came through.
        assert_eq!(b.received, [2], "{name}");
        assert_eq!(a.connections(), 2, "{name}: {:?}", a.events);
    });
}

/// A channel that stays open when its end is gone, while `open`: as where a process leaves it to another.
struct Inherited {
    inner: Option<supervise::Listen>,
    open: Arc<AtomicBool>,
}

impl Meeting for Inherited {
    fn seek(&mut self) {
        self.inner.as_mut().unwrap().seek();
    }
    fn poll(&mut self) -> Option<Sign> {
        self.inner.as_mut().unwrap().poll()
    }
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.inner.as_mut().unwrap().send(message)
    }
    fn leave(&mut self) {
        self.inner.as_mut().unwrap().leave();
    }
    fn poll_every(&self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        if self.open.load(Ordering::Relaxed) {
            std::mem::forget(self.inner.take());
        }
    }
}

/// The process at the other end is gone; its node has another that holds the target, and the SRQ is there: over XRC that
/// cannot be told from life, and over RC it can.
#[test]
fn over_xrc_the_node_is_proven_and_not_the_process() {
    let path = std::env::temp_dir().join(format!("supervised-xrc-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let again = Device::open(rdma_soft::verbs(), there.name()).unwrap();
    let [own, of_other] = [(&there, Opening::CreateNew), (&again, Opening::Existing)]
        .map(|(device, opening)| XrcDomain::of_file(device, &file, opening).unwrap());
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let mut a = End::new(ALL[3].1(&here, Box::new(supervise::connect(address))));
    let inherited = Inherited {
        inner: Some(supervise::listen(listener)),
        open: Arc::new(AtomicBool::new(true)),
    };
    let mut of_b = xrc(&there, &own, Box::new(inherited), quick(), RECEIVES as u32).unwrap();
    let limit = Instant::now() + LIMIT;
    while !(a.link.is_up() && of_b.is_up()) {
        assert!(Instant::now() < limit, "{:?}", a.events);
        a.turn();
        of_b.next(Duration::from_millis(1)).unwrap();
    }
    // What another process of the node holds.
    let kept = of_other.open_target(of_b.link.target().qp_num()).unwrap();
    let XrcLink { link, srq, cq } = of_b;
    drop(link);
    let begin = Instant::now();
    let probed = |end: &End| end.events.iter().filter(|e| **e == Event::Probing).count();
    let before = probed(&a);
    until(&mut [&mut a], "probes of the node", |ends| {
        begin.elapsed() > 2 * ends[0].link.notices_within() && probed(ends[0]) > before + 1
    });
    assert!(a.link.is_up() && a.deaths().is_empty(), "{:?}", a.events);
    // The last holder goes, and with it what was proven.
    drop(kept);
    until(&mut [&mut a], "the end", |ends| !ends[0].reports.is_empty());
    assert_eq!(a.deaths(), [&Why::Failed(IBV_WC_RETRY_EXC_ERR)]);
    drop((srq, cq));
}

#[test]
fn an_xrc_target_that_lets_no_probe_in_is_refused() {
    let here = device(Profile::default());
    let domain = XrcDomain::anonymous(&here).unwrap();
    let (pd, cq) = (here.alloc_pd().unwrap(), here.create_event_cq(64).unwrap());
    let srq = pd.xrc_srq(&domain, &cq).depth(4).create().unwrap();
    let qp = pd.xrc(&cq).create().unwrap();
    let target = domain.create_target().unwrap();
    let target = target.with_access(rdma_qp::Access::REMOTE_READ);
    let (side, meeting) = ((target, srq.srq_num()), supervise::listen(listener()));
    let made = Supervised::<u64, _>::over_xrc(&here, (qp, cq), side, meeting, quick());
    assert_eq!(made.map(drop), Err(SuperviseError::NoRemoteWrite));
}

/// A peer of another transport is no peer: each end says why, and neither is ever connected.
#[test]
fn ends_of_two_transports_do_not_meet() {
    for (one, other) in [(0, 2), (2, 0), (0, 3), (3, 2), (1, 3)] {
        let (here, there) = (device(Profile::default()), device(Profile::default()));
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let mut a = End::new(ALL[one].1(&here, Box::new(supervise::connect(address))));
        let mut b = End::new(ALL[other].1(&there, Box::new(supervise::listen(listener))));
        let said = |end: &End| {
            let because = end.events.iter().filter_map(|event| match event {
                Event::Recovering { because, .. } => because.clone(),
                _ => None,
            });
            because.collect::<Vec<String>>().join("; ")
        };
        until(&mut [&mut a, &mut b], "refusals", |ends| {
            ends.iter().any(|end| {
                let said = said(end);
                ["record", "UD QP", "Q_Key"]
                    .iter()
                    .any(|word| said.contains(word))
            })
        });
        assert_eq!(a.connections() + b.connections(), 0, "{one} and {other}");
    }
}

/// A UD Queue Pair takes what has its Q_Key, from anybody. Such a message is handed out, and is no sign of the peer's life.
#[test]
fn a_stranger_is_no_proof_of_the_peer() {
    let Pair {
        mut a,
        mut b,
        here,
        there: _there,
        ..
    } = pair(ALL[2].1, Profile::default());
    carries(&mut a, &mut b, 1);
    let (pd, cq) = (here.alloc_pd().unwrap(), here.create_cq(64).unwrap());
    let mut stranger = pd.ud(&cq).create().unwrap();
    let gid = here.port(1).unwrap().best_gid().unwrap();
    let key = rdma_qp::QKey::random().unwrap();
    stranger
        .activate(gid, key, rdma_qp::PathOptions::default())
        .unwrap();
    // B's record, as A has it: the key of this life.
    let of_b = stranger.destination(&a.link.peer().unwrap()).unwrap();
    let of_a = stranger.destination(&b.link.peer().unwrap()).unwrap();
    // A's peer falls silent, and the stranger talks on.
    drop(b);
    for to in [&of_a, &of_b] {
        let op = op::SendToImm {
            to,
            imm: supervise::HEARTBEAT_ANSWER,
        };
        stranger
            .post(op, rdma_qp::NOTHING, PostFlags::empty())
            .unwrap();
    }
    until(&mut [&mut a], "the death", |ends| {
        !ends[0].reports.is_empty()
    });
}
