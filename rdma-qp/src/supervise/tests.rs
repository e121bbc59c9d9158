//! The state machine by itself, against a peer that is made up.

use std::time::Duration;

use rdma_core_sys::{IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR};

use super::*;
use crate::qp::Fate;

const HELLO: &[u8] = &[1, 1, b't'];
const READY: &[u8] = &[2, 1];

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn options() -> Options {
    Options {
        probe: at(100),
        backoff: Backoff {
            first: at(10),
            most: at(40),
            jitter: 0.0,
        },
        step: at(1000),
        ..Options::default()
    }
}

fn actions(supervisor: &mut Supervisor) -> Vec<Action> {
    std::iter::from_fn(|| supervisor.next_action()).collect()
}

fn events(supervisor: &mut Supervisor) -> Vec<Event> {
    let told = actions(supervisor).into_iter();
    told.filter_map(|action| match action {
        Action::Tell(event) => Some(event),
        _ => None,
    })
    .collect()
}

fn begin(options: &Options, proof: Proof) -> Supervisor {
    Supervisor::new(options, proof, 1, at(0))
}

/// Takes it to a connection that is there, as of `now`.
fn raise(supervisor: &mut Supervisor, now: Duration) {
    supervisor.met(now);
    supervisor.described(now, b"o");
    supervisor.message(now, HELLO);
    if let Some(due) = supervisor.join_due() {
        supervisor.handle_timeout(due);
    }
    supervisor.joined(now);
    supervisor.message(now, READY);
    supervisor.finished(now);
    assert!(supervisor.is_up());
    actions(supervisor);
}

#[test]
fn waits_grow_to_their_limit_and_begin_anew_after_a_success() {
    let mut supervisor = begin(&options(), Proof::Process);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        waits.extend(events(&mut supervisor).into_iter().filter_map(|e| match e {
            Event::Recovering { wait, .. } => Some(wait.as_millis()),
            _ => None,
        }));
        if let Some(due) = supervisor
            .next_timeout()
            .filter(|due| *due < now + at(1000))
        {
            now = due;
            supervisor.handle_timeout(now);
        }
        supervisor.channel_lost(now, "refused");
    }
    assert_eq!(waits, [0, 20, 40, 40, 40, 40]);
    supervisor.handle_timeout(supervisor.next_timeout().unwrap());
    raise(&mut supervisor, now);
    supervisor.down(now, Why::Asked);
    supervisor.ended(now);
    let told = events(&mut supervisor);
    let expected = Event::Recovering {
        attempt: 1,
        wait: at(10),
        because: None,
    };
    assert!(told.contains(&expected), "{told:?}");
}

#[test]
fn what_is_drawn_makes_waits_shorter_and_never_longer() {
    let backoff = Backoff {
        first: at(100),
        most: at(100),
        jitter: 0.5,
    };
    let waits: Vec<_> = (0..64).map(|n| backoff.wait(1, n << 58)).collect();
    assert!(waits.iter().all(|wait| (at(50)..=at(100)).contains(wait)));
    assert!(waits.iter().any(|wait| *wait < at(60)) && waits.iter().any(|wait| *wait > at(90)));
}

#[test]
fn a_probe_that_nobody_answers_is_the_end_within_the_promised_time() {
    let options = options();
    let mut supervisor = begin(&options, Proof::Process);
    raise(&mut supervisor, at(5));
    assert_eq!(supervisor.next_timeout(), Some(at(105)));
    supervisor.handle_timeout(at(105));
    assert_eq!(actions(&mut supervisor), [Action::Probe]);
    supervisor.probed(at(105), Probed::Posted);
    let within = options.notices_within(Proof::Process);
    assert_eq!(supervisor.next_timeout(), Some(at(5) + within));
    supervisor.handle_timeout(at(5) + within);
    let told = events(&mut supervisor);
    assert_eq!(told[1], Event::Dead { why: Why::Silent });
    // The device's own word comes earlier, and counts as well.
    let mut supervisor = begin(&options, Proof::Process);
    raise(&mut supervisor, at(0));
    supervisor.down(at(1), Why::Failed(IBV_WC_RETRY_EXC_ERR));
    assert_eq!(actions(&mut supervisor)[0], Action::Leave);
}

/// A peer that posts no receives keeps requests waiting, and lives.
#[test]
fn requests_under_way_are_no_proof_of_death() {
    let options = options();
    let mut supervisor = begin(&options, Proof::Process);
    raise(&mut supervisor, at(0));
    let mut told = Vec::new();
    while let Some(due) = supervisor.next_timeout().filter(|due| *due < at(10_000)) {
        supervisor.handle_timeout(due);
        for action in actions(&mut supervisor) {
            match action {
                Action::Probe => supervisor.probed(due, Probed::Busy),
                Action::Tell(event) => told.push(event),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(supervisor.is_up());
    // Once, until something is heard.
    assert!(matches!(told[..], [Event::Silent { .. }]), "{told:?}");
}

#[test]
fn a_port_that_is_down_stops_probes_and_attempts() {
    let mut supervisor = begin(&options(), Proof::Process);
    raise(&mut supervisor, at(0));
    supervisor.port(at(50), false);
    assert_eq!(supervisor.next_timeout(), None);
    supervisor.port(at(5000), true);
    assert_eq!(events(&mut supervisor), [Event::PortDown, Event::PortUp]);
    supervisor.handle_timeout(at(5000));
    assert_eq!(actions(&mut supervisor), [Action::Probe]);
    // One that does not survive it waits as well.
    supervisor.port(at(6000), false);
    supervisor.channel_lost(at(6001), "gone");
    supervisor.ended(at(6002));
    assert_eq!(supervisor.next_timeout(), None);
    actions(&mut supervisor);
    supervisor.port(at(9000), true);
    assert!(actions(&mut supervisor).contains(&Action::Seek));
}

#[test]
fn a_peer_that_comes_anew_ends_the_life_and_keeps_its_channel() {
    let mut supervisor = begin(&options(), Proof::Process);
    raise(&mut supervisor, at(0));
    supervisor.met(at(10));
    let why = Why::PeerCameAnew;
    let expected = [Action::Tell(Event::Dead { why }), Action::End];
    assert_eq!(actions(&mut supervisor), expected);
    // Its record comes while the queues are being flushed.
    supervisor.message(at(11), HELLO);
    supervisor.ended(at(12));
    assert_eq!(actions(&mut supervisor), [Action::Describe]);
    supervisor.described(at(12), b"o");
    let expected = [Action::Send(vec![1, 1, b'o']), Action::Join(b"t".to_vec())];
    assert_eq!(actions(&mut supervisor), expected);
}

#[test]
fn messages_out_of_their_turn_end_an_attempt() {
    for (message, why) in [
        (READY, "something else"),
        (&[1, 9, 0][..], "version 9"),
        (&[][..], "something else"),
        (b"GET /", "something else"),
    ] {
        let mut supervisor = begin(&options(), Proof::Process);
        supervisor.met(at(0));
        supervisor.described(at(0), b"o");
        supervisor.message(at(0), message);
        assert!(actions(&mut supervisor).contains(&Action::End));
        supervisor.ended(at(1));
        let told = events(&mut supervisor);
        let because = match &told[..] {
            [Event::Recovering { because, .. }] => because.clone().unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(because.contains(why), "{because}");
    }
}

#[test]
fn a_device_that_is_gone_is_the_end_in_every_state() {
    let mut fresh = begin(&options(), Proof::Process);
    fresh.device_removed(at(1));
    let mut up = begin(&options(), Proof::Process);
    raise(&mut up, at(0));
    up.device_removed(at(1));
    assert!(!up.is_over(), "what was under way is told before");
    up.ended(at(2));
    for mut supervisor in [fresh, up] {
        assert!(supervisor.is_over());
        assert_eq!(supervisor.next_timeout(), None);
        assert!(events(&mut supervisor).contains(&Event::DeviceRemoved));
        supervisor.met(at(3));
        assert!(!actions(&mut supervisor).contains(&Action::Describe));
    }
}

#[test]
fn giving_up_is_for_who_asks_for_it() {
    let options = Options {
        give_up: Some(at(25)),
        ..options()
    };
    let mut supervisor = begin(&options, Proof::Process);
    supervisor.channel_lost(at(6), "refused");
    let told = events(&mut supervisor);
    let expected = Event::GaveUp {
        after: at(6),
        because: Some("refused".to_owned()),
    };
    assert_eq!(told.last(), Some(&expected));
    assert!(supervisor.is_over());
}

#[test]
fn where_nothing_is_acknowledged_five_probes_go_unanswered_before_the_end() {
    let options = options();
    let mut supervisor = begin(&options, Proof::Echo);
    raise(&mut supervisor, at(0));
    // An idle peer that answers is probed once in a while.
    for turn in 0..3 {
        let due = at(100 + 110 * turn);
        assert_eq!(supervisor.next_timeout(), Some(due));
        supervisor.handle_timeout(due);
        assert_eq!(actions(&mut supervisor), [Action::Probe]);
        supervisor.probed(due, Probed::Posted);
        assert_eq!(events(&mut supervisor), [Event::Probing]);
        supervisor.heard(due + at(10));
    }
    // Heard last at 330.
    let mut probes = Vec::new();
    while supervisor.is_up() {
        let due = supervisor.next_timeout().unwrap();
        supervisor.handle_timeout(due);
        if supervisor.next_action() == Some(Action::Probe) {
            probes.push(due);
            supervisor.probed(due, Probed::Behind);
            actions(&mut supervisor);
        } else {
            let within = options.notices_within(Proof::Echo);
            assert_eq!((due, within), (at(330) + within, at(200)));
        }
    }
    assert_eq!(probes, [430, 450, 470, 490, 510].map(at));
}

/// What of a former life is on the way finds nobody.
#[test]
fn where_lives_cannot_be_told_apart_the_new_one_waits_a_while() {
    for (proof, waits) in [(Proof::Echo, true), (Proof::Process, false)] {
        let mut supervisor = begin(&options(), proof);
        supervisor.met(at(5));
        supervisor.described(at(5), b"o");
        supervisor.message(at(7), HELLO);
        let joins = Action::Join(b"t".to_vec());
        assert_eq!(
            actions(&mut supervisor).contains(&joins),
            !waits,
            "{proof:?}"
        );
        if waits {
            assert_eq!(supervisor.next_timeout(), Some(at(7) + options().settle));
            supervisor.handle_timeout(at(7) + options().settle);
            assert_eq!(actions(&mut supervisor), [joins]);
        }
        // The step has its limit all the same.
        supervisor.handle_timeout(at(5) + options().step);
        supervisor.ended(at(2000));
        assert!(!supervisor.is_up());
    }
}

#[test]
fn a_probe_of_the_peers_is_answered_and_is_a_sign_of_life() {
    let mut supervisor = begin(&options(), Proof::Echo);
    supervisor.asked(at(1));
    assert!(!actions(&mut supervisor).contains(&Action::Answer));
    raise(&mut supervisor, at(2));
    supervisor.asked(at(50));
    assert_eq!(actions(&mut supervisor), [Action::Answer]);
    assert_eq!(supervisor.next_timeout(), Some(at(150)));
}

#[test]
fn the_books_tell_of_every_message_once() {
    let mut ledger: Ledger<&str, u64> = Ledger::new();
    let mut done = Vec::new();
    for (ticket, context, signaled) in [
        (1, Some("silent"), false),
        (2, Some("signaled"), true),
        (3, None, true),
        (4, Some("failed"), true),
        (5, Some("flushed"), true),
        (6, Some("open"), false),
    ] {
        ledger.posted(ticket, context, signaled);
    }
    let ok = (IBV_WC_SUCCESS, true);
    ledger.completed(&2, (Fate::Done, Fate::Done), ok, |m| done.push(m.context));
    assert_eq!(done, ["silent", "signaled"]);
    ledger.completed(&3, (Fate::Done, Fate::Done), ok, |m| done.push(m.context));
    let lost = (IBV_WC_RETRY_EXC_ERR, false);
    ledger.completed(&4, (Fate::Unknown, Fate::Done), lost, |_| panic!());
    let flushed = (IBV_WC_WR_FLUSH_ERR, false);
    ledger.completed(&5, (Fate::NotDone, Fate::Done), flushed, |_| panic!());
    assert!(!ledger.will_tell() && ledger.len() == 1);
    // A device that is gone leaves the last one open; what has no ticket here is nobody's.
    ledger.completed(&9, (Fate::Done, Fate::Done), ok, |_| panic!());
    let report = ledger.end(Why::DeviceRemoved, false, Fate::Done, |_| panic!());
    let names = |messages: &[Message<&'static str, u64>]| -> Vec<&str> {
        messages.iter().map(|message| message.context).collect()
    };
    assert_eq!(names(&report.unknown), ["failed", "open"]);
    assert_eq!(names(&report.not_done), ["flushed"]);
    assert_eq!(report.unknown[0].status, Some(IBV_WC_RETRY_EXC_ERR));
    assert!(ledger.is_empty());
}

#[test]
fn the_longest_times_are_as_good_as_never() {
    let most = Duration::MAX;
    let options = Options {
        probe: most,
        backoff: Backoff {
            first: most,
            most,
            jitter: 0.0,
        },
        step: most,
        settle: most,
        give_up: Some(most),
        ..Options::default()
    };
    let now = at(5);
    for proof in [Proof::Process, Proof::Node, Proof::Echo] {
        let mut supervisor = begin(&options, proof);
        assert_eq!(supervisor.next_timeout(), Some(most), "seeking");
        supervisor.port(now, false);
        assert_eq!(supervisor.next_timeout(), Some(most), "until it gives up");
        supervisor.port(now, true);
        raise(&mut supervisor, now);
        assert_eq!(supervisor.next_timeout(), Some(most), "the next probe");
        supervisor.asked(now);
        supervisor.handle_timeout(most);
        supervisor.probed(most, Probed::Posted);
        assert_eq!(supervisor.next_timeout(), Some(most), "its answer");
        supervisor.down(now, Why::Asked);
        supervisor.ended(now);
        assert!(supervisor.is_over(), "it cannot wait so long: it gave up");
    }
}

#[test]
fn a_part_that_is_no_number_draws_nothing_of_a_wait() {
    let waits = |first, jitter| {
        let most = first;
        let backoff = Backoff {
            first,
            most,
            jitter,
        };
        backoff.wait(1, u64::MAX / 2)
    };
    assert_eq!(waits(at(100), f64::NAN), at(100));
    assert_eq!(waits(Duration::MAX, 0.0), Duration::MAX);
    assert!(waits(Duration::MAX, 0.5) < Duration::MAX);
}
