//! Many threads post, poll and sleep on the same two nodes: nobody's request is forgotten, whoever has the
//! engine at the moment.

#[path = "abi/common.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod common;

use std::ptr::null_mut;
use std::time::Duration;

use common::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const THREADS: usize = 6;
const ROUNDS: u64 = 300;

/// One thread's pair of Queue Pairs, and a word at either end; buffers go before their domains.
struct Pair {
    from: Buf,
    to: Buf,
    near: End,
    far: End,
}

// SAFETY: verbs objects may be used by any thread; the raw pointers of a pair are used by the one thread that
// it is moved to, and again by the main thread when that has ended.
unsafe impl Send for Pair {}

fn pair_of(a: &Device, b: &Device) -> Pair {
    let opt = Options {
        events: true,
        ..Options::default()
    };
    let (near, far) = pair(a, b, opt);
    let (from, to) = (Buf::new(&near, 8), Buf::new(&far, 8));
    Pair {
        from,
        to,
        near,
        far,
    }
}

impl Pair {
    /// Writes `value` to the far end and waits for that in one of three ways.
    fn round(&self, value: u64, way: u64) {
        self.from.set_word(0, value);
        let mut sges = [self.from.sge(0, 8)];
        let mut wr = rdma(IBV_WR_RDMA_WRITE, value, &mut sges, &self.to, 0);
        assert_eq!(self.near.send(&mut wr), 0);
        let wc = match way {
            // Polls in a loop.
            0 => self.near.sent(),
            // Sleeps until the completion channel wakes it.
            1 => self.sleep(),
            // Calls nothing: the far end sees the word by itself.
            _ => {
                until("a request without a poll", || self.to.word(0) == value);
                self.near.sent()
            }
        };
        assert_eq!(ok(wc).wr_id, value);
        assert_eq!(self.to.word(0), value);
    }

    /// The next completion, without polling in a loop: arm, look once more, sleep.
    fn sleep(&self) -> ibv_wc {
        let (cq, channel) = (self.near.scq, self.near.channel);
        loop {
            // SAFETY: the CQ is live.
            assert_eq!(unsafe { ops::ibv_req_notify_cq(cq, 0) }, 0);
            if let Some(wc) = poll_once(cq).expect("a poll") {
                return wc;
            }
            // SAFETY: the CQ and its channel are live, and the event that is got is acknowledged.
            unsafe {
                assert!(readable((*channel).fd, PATIENCE), "no event");
                let (mut which, mut context) = (null_mut(), null_mut());
                let got = verbs().get_cq_event(channel, &mut which, &mut context);
                assert_eq!((got, which), (0, cq));
                verbs().ack_cq_events(cq, 1);
            }
        }
    }
}

fn all_ways_meet(a: &Device, b: &Device) {
    let pairs: Vec<Pair> = (0..THREADS).map(|_| pair_of(a, b)).collect();
    let run = |(i, pair): (usize, Pair)| {
        move || {
            for round in 1..=ROUNDS {
                // Each thread in its own rhythm, so that all ways meet all others.
                pair.round(round, (round / (i as u64 + 1)) % 3);
                if round % 50 == 0 {
                    // The node's thread goes to sleep for good meanwhile.
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
            pair
        }
    };
    let pairs: Vec<Pair> = std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .into_iter()
            .enumerate()
            .map(|t| scope.spawn(run(t)))
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a thread"))
            .collect()
    });
    for pair in &pairs {
        assert_eq!(pair.to.word(0), ROUNDS);
        let states = (pair.near.state(), pair.far.state());
        assert_eq!(states, (IBV_QPS_RTS, IBV_QPS_RTS));
    }
}

#[test]
fn no_request_is_forgotten_between_two_nodes() {
    let (a, b) = (Device::plain(), Device::plain());
    all_ways_meet(&a, &b);
}

/// Both ends behind one lock, and no datagram that could wake anybody.
#[test]
fn no_request_is_forgotten_inside_one_node() {
    let a = Device::plain();
    all_ways_meet(&a, &a);
}
