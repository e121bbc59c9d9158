//! What the applications and the world do in a run, drawn before it begins: each action has a seed of its
//! own, so that one can be left out and the others stay what they are.

use std::time::Duration;

use rdma_soft::core::rng::Rng;

use crate::knobs::{Knobs, Profile};

/// What happens in an action; where and how is drawn from its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Some send requests of a connection.
    Send,
    /// Some receives.
    Receive,
    /// Some datagrams.
    Datagram,
    /// A memory window is bound, or ended by its owner.
    Window,
    /// An application moves a Queue Pair to ERR.
    Fail,
    /// A connection is made anew.
    Recover,
    /// A send queue is drained (SQD) and goes on later.
    Drain,
    /// A region in use is deregistered.
    Deregister,
    /// A completion queue overruns.
    Overrun,
    /// The limit of a shared receive queue is set.
    Limit,
    /// A Queue Pair joins or leaves a multicast group.
    Group,
    /// A node stands still.
    Pause,
    /// A node is cut off.
    Partition,
    /// A link loses nearly everything for a while, one way.
    Burst,
    /// A node dies; another takes its address later.
    Die,
}

/// One action.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// When, from the beginning.
    pub at: Duration,
    /// What.
    pub act: Act,
    /// What is drawn in it.
    pub seed: u64,
}

/// Draws all actions of a run.
pub fn draw(knobs: &Knobs, seed: u64) -> Vec<Action> {
    let rng = &mut Rng::new(seed);
    let weights = weights(knobs, rng);
    let total: u64 = weights.iter().map(|&(_, weight)| weight).sum();
    let span = knobs.span.as_nanos() as u64;
    let mut actions: Vec<Action> = (0..knobs.actions)
        .map(|_| {
            let at = Duration::from_nanos(rng.below(span));
            let mut drawn = rng.below(total);
            let mut act = Act::Send;
            for &(candidate, weight) in &weights {
                if drawn < weight {
                    act = candidate;
                    break;
                }
                drawn -= weight;
            }
            Action {
                at,
                act,
                seed: rng.next_u64(),
            }
        })
        .collect();
    actions.sort_by_key(|a| a.at);
    actions
}

/// How often each act comes. What breaks connections comes often in some runs, and not at all in others.
fn weights(knobs: &Knobs, rng: &mut Rng) -> Vec<(Act, u64)> {
    let trouble = [0, 1, 3, 10][rng.below(4) as usize];
    let of = |profile: Profile, weight: u64| match knobs.profile {
        p if p == profile => weight,
        Profile::Mixed => weight.div_ceil(2),
        _ => 0,
    };
    let datagrams = if knobs.datagrams > 0 { 80 } else { 0 };
    vec![
        (Act::Send, 500),
        (Act::Receive, 150),
        (Act::Datagram, datagrams),
        (Act::Group, datagrams / 10),
        (Act::Window, 25),
        (Act::Limit, 5),
        (Act::Drain, 2 * trouble),
        (Act::Fail, trouble),
        (Act::Recover, trouble),
        (Act::Deregister, trouble),
        (Act::Overrun, trouble.div_ceil(4)),
        (Act::Pause, of(Profile::Pause, 30)),
        (Act::Partition, of(Profile::Partition, 20)),
        (
            Act::Burst,
            of(Profile::Partition, 10) + of(Profile::Loss, 10),
        ),
        (Act::Die, of(Profile::Death, 10)),
    ]
}
