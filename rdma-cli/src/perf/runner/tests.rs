//! Contents that are not what was sent: an end changes a byte behind the back of both.

use super::*;
use crate::perf::Transport;
use crate::perf::meeting::MEETING;

const SIZE: u32 = 1000;

fn choice() -> DeviceChoice {
    DeviceChoice {
        name: None,
        port: 1,
        gid_index: None,
        mtu: None,
        pcap: None,
        faults: None,
        second: false,
    }
}

fn runner(plan: &Plan, asks: bool) -> Runner {
    let opened = crate::device::open(&choice()).unwrap();
    Runner::new(&opened, plan.clone(), &choice(), asks).unwrap()
}

fn plan(op: Op) -> Plan {
    Plan {
        figure: Figure::Bw,
        transport: Transport::Rc,
        op,
        sizes: vec![if op.is_atomic() { 8 } else { SIZE }],
        iterations: Some(8),
        duration: None,
        warmup: Some(0),
        tx_depth: 8,
        rx_depth: 8,
        post_list: 1,
        cq_mod: None,
        qps: 2,
        bidirectional: false,
        inline: 0,
        events: false,
        check: true,
        wait: Duration::from_secs(20),
    }
}

/// One run of eight messages; each end may change its memory when it is prepared, before any message goes.
fn play(
    op: Op,
    asking: impl Fn(&Runner, &Run),
    answering: impl Fn(&Runner, &Run) + Send + 'static,
) -> [Result<(), Trouble>; 2] {
    let timing = Timing::default();
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = std::thread::spawn(move || {
        let mut peer = listener.accept(MEETING).unwrap();
        let mut runner = runner(&plan(op), false);
        runner.meet(&mut peer, timing).unwrap();
        let mut peer = Peer::that_asks(peer, MEETING);
        let Word::Run(run) = hear(&mut peer)? else {
            panic!("no run")
        };
        runner.prepare(&run)?;
        answering(&runner, &run);
        say(&mut peer, &Word::Ready)?;
        runner.run(&mut peer, &run).map(|_| ())
    });
    let mut peer = tcp::connect(address, MEETING).unwrap();
    let mut runner = runner(&plan(op), true);
    runner.meet(&mut peer, timing).unwrap();
    let mut peer = Peer::that_answers(peer);
    let run = Run {
        size: runner.plan.largest(),
        limit: Limit::Count(8),
        first: 1,
    };
    runner.prepare(&run).unwrap();
    asking(&runner, &run);
    say(&mut peer, &Word::Run(run)).unwrap();
    assert!(matches!(hear(&mut peer), Ok(Word::Ready)));
    let here = runner.run(&mut peer, &run).map(|_| ());
    [here, there.join().unwrap()]
}

/// Changes byte 17 of message 5 of the second Queue Pair.
fn spoil(runner: &Runner, at: usize) {
    let mut byte = [0];
    runner.places.mr.read_at(at + 17, &mut byte).unwrap();
    runner.places.mr.write_at(at + 17, &[!byte[0]]).unwrap();
}

fn is_named(trouble: &Result<(), Trouble>) {
    let Err(Trouble::Differs(why)) = trouble else {
        panic!("{trouble:?}")
    };
    let named = "message 5 of Queue Pair 1 is not what was sent: of its 1000 bytes, byte 17 is";
    assert!(why.contains(named), "{why}");
}

#[test]
fn nothing_changed_is_no_difference() {
    for op in [Op::Send, Op::Write, Op::Read] {
        let ends = play(op, |_, _| {}, |_, _| {});
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    }
}

#[test]
fn a_changed_byte_is_named_at_both_ends() {
    for op in [Op::Send, Op::Write] {
        let here = |runner: &Runner, _: &Run| spoil(runner, runner.places.near(1, 5));
        play(op, here, |_, _| {}).iter().for_each(is_named);
    }
    let there = |runner: &Runner, _: &Run| spoil(runner, runner.places.far(1, 5));
    play(Op::Read, |_, _| {}, there).iter().for_each(is_named);
}

/// A counter that somebody else changes.
#[test]
fn a_counter_that_is_not_what_it_must_be_is_named() {
    for op in [Op::Faa, Op::Cas] {
        let there = |runner: &Runner, _: &Run| {
            let at = runner.places.far(1, 0);
            runner.places.mr.write_at(at, &1u64.to_ne_bytes()).unwrap();
        };
        let [here, _] = play(op, |_, _| {}, there);
        let Err(Trouble::Differs(why)) = here else {
            panic!("{here:?}")
        };
        let named = "the counter of Queue Pair 1 is 1 after 0 atomics that add 1 each";
        assert_eq!(why, named);
    }
}
