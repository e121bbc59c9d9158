//! Who is to blame: of many requests the one that cannot be executed fails, with its own status; those before
//! it end well, whatever is under way when it is found out, and those behind it are flushed.

use rdma_core_sys::ibv_wc_status;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Queue, SendOp, Sge};

use super::net::*;
use super::pair::*;

/// What is wrong with a request, and how it ends.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// A key that opens nothing at the peer.
    RemoteKey,
    /// Too long for the receive.
    TooLong,
    /// An atomic on no whole word.
    Unaligned,
    /// There is no receive, and no patience.
    NoReceive,
    /// A key that opens nothing here.
    LocalKey,
}

const ALL_WRONG: [Wrong; 5] = [
    Wrong::RemoteKey,
    Wrong::TooLong,
    Wrong::Unaligned,
    Wrong::NoReceive,
    Wrong::LocalKey,
];

impl Wrong {
    fn status(self) -> ibv_wc_status {
        use ibv_wc_status as S;
        match self {
            Wrong::RemoteKey => S::IBV_WC_REM_ACCESS_ERR,
            Wrong::TooLong | Wrong::Unaligned => S::IBV_WC_REM_INV_REQ_ERR,
            Wrong::NoReceive => S::IBV_WC_RNR_RETRY_EXC_ERR,
            Wrong::LocalKey => S::IBV_WC_LOC_PROT_ERR,
        }
    }
}

/// A request that ends well; true if it takes a receive.
fn right(rng: &mut Rng, p: &Pair, at: u64) -> (SendOp, Sge, bool) {
    let remote = p.b.remote(8 * rng.below(4000));
    let len = [0, 1, 255, 256, 257, 3000][rng.below(6) as usize];
    let sge = p.a.sge(at, len);
    let imm = rng.chance(0.3).then_some(7);
    match rng.below(5) {
        0 => (SEND, sge, true),
        1 | 2 => (SendOp::Write { remote, imm }, sge, imm.is_some()),
        3 => (SendOp::Read { remote }, sge, false),
        _ => (SendOp::FetchAdd { remote, add: 1 }, p.a.sge(at, 8), false),
    }
}

fn wrong(rng: &mut Rng, p: &Pair, at: u64, what: Wrong) -> (SendOp, Sge) {
    let good = p.b.remote(0);
    let (mut remote, mut sge) = (good, p.a.sge(at, 3000));
    match what {
        Wrong::TooLong | Wrong::NoReceive => return (SEND, sge),
        Wrong::Unaligned => {
            remote.addr += 4;
            return (SendOp::FetchAdd { remote, add: 1 }, p.a.sge(at, 8));
        }
        Wrong::RemoteKey => remote.rkey = p.b.lkey,
        Wrong::LocalKey => sge.lkey = p.a.rkey,
    }
    let op = match rng.below(3) {
        0 => SendOp::Write { remote, imm: None },
        1 => SendOp::Read { remote },
        _ => {
            sge.len = 8;
            SendOp::FetchAdd { remote, add: 1 }
        }
    };
    (op, sge)
}

#[test]
fn the_request_that_cannot_be_executed_is_the_one_that_fails() {
    const REQUESTS: u64 = 12;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let what = ALL_WRONG[seed as usize % ALL_WRONG.len()];
        let rd_atomic = 1 + rng.below(4) as u8;
        let mut p = pair(&Conn {
            mtu: 256,
            rnr_retry: 0,
            rd_atomic,
            dest_rd_atomic: rd_atomic,
            ..Conn::default()
        });
        let culprit = rng.below(REQUESTS);
        let mut receives = 0;
        let mut requests = vec![];
        for i in 0..REQUESTS {
            let at = 4096 * i;
            if i == culprit {
                requests.push(wrong(&mut rng, &p, at, what));
            } else {
                let (op, sge, takes) = right(&mut rng, &p, at);
                receives += usize::from(takes && i < culprit);
                requests.push((op, sge));
            }
        }
        // The receives of those before it, and one for itself.
        for i in 0..receives {
            let into = p.b.sge(40_000, 4096);
            p.net.recv(1, p.qb, i as u64, &[into]);
        }
        match what {
            Wrong::NoReceive => {}
            Wrong::TooLong => {
                let short = p.b.sge(40_000, 2999);
                p.net.recv(1, p.qb, 99, &[short]);
            }
            _ => p.net.recv(1, p.qb, 99, &[]),
        }
        // All at once, so that the peer has several before it answers any; or in pieces.
        let at_once = rng.chance(0.5);
        for (i, (op, sge)) in requests.into_iter().enumerate() {
            let mut w = wqe(i as u64, op, &[sge]);
            w.fence = rng.chance(0.1);
            p.net.nodes[0].engine.post_send(p.qa, w);
            if !at_once && rng.chance(0.3) {
                p.net.drain();
                p.net.step();
            }
        }
        p.net.drain();
        p.net.settle();
        let status = |i: u64| match i.cmp(&culprit) {
            std::cmp::Ordering::Less => OK,
            std::cmp::Ordering::Equal => what.status(),
            std::cmp::Ordering::Greater => FLUSHED,
        };
        let want: Vec<_> = (0..REQUESTS).map(|i| (i, status(i))).collect();
        assert_eq!(p.net.ends(0), want, "seed {seed}, {what:?}");
        let got = p.done(1, Queue::Recv);
        let good = got.iter().filter(|c| c.status == OK).count();
        assert_eq!(good, receives, "seed {seed}, {what:?}");
        assert_eq!(p.net.nodes[0].engine.counters().timeouts, 0);
        p.net.balanced();
    }
}
