//! The state machine: no clock, no socket, no Queue Pair.

use std::collections::VecDeque;
use std::time::Duration;

use super::options::{Options, Proof, TRIES};
use super::{Action, Event, Why};
use crate::draw::Draws;

/// First byte of a message: the sender's record follows.
const HELLO: u8 = 1;
/// First byte of a message: the sender is in RTR, with its receives posted.
const READY: u8 = 2;
/// Version of these messages, the second byte.
const VERSION: u8 = 1;

/// What became of a probe that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It was posted, and nothing stands before it.
    Posted,
    /// It was posted behind requests that are unsignaled and may wait for a receive of the peer's.
    Behind,
    /// Requests are under way, whose outcome will tell.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The Queue Pair's life is being ended.
    Ending,
    /// Until the next attempt.
    Waiting { until: Duration },
    /// The peer is looked for.
    Seeking { until: Duration },
    /// The record is told, or about to be; the peer's is awaited.
    Swapping { until: Duration, told: bool },
    /// The Queue Pair is in RTR; the peer's is awaited.
    Barrier { until: Duration },
    /// The connection is there.
    Up,
    /// Until the port is up.
    PortDown,
    /// For good.
    Over,
}

/// A supervised connection as a state machine: it says what to do when, and is told what happened.
///
/// It has no clock, no socket and no Queue Pair. Time is told by whoever drives it, as the duration since a moment of its
/// choice; what is to be done comes out of [`Supervisor::next_action`], and what came of it goes in by the method that
/// [`Action`] names. So the same machine runs in real time under [`Supervised`](super::Supervised) and on a virtual clock in a
/// simulator.
///
/// Both ends run one. A connection has lives; each life has a channel, over which the ends tell each other their records and
/// then that they are ready to receive, and which stays while the life lasts. When it closes, the life is over at both ends:
/// so one end that has noticed a failure tells the other, and a process that is killed tells its peer.
///
/// ```
/// use rdma_qp::supervise::{Action, Event, Options, Probed, Proof, Supervisor};
/// use std::time::Duration;
/// let at = Duration::from_millis;
/// let mut supervisor = Supervisor::new(&Options::default(), Proof::Process, 1, at(0));
/// assert!(matches!(supervisor.next_action(), Some(Action::Tell(Event::Recovering { attempt: 1, .. }))));
/// assert_eq!(supervisor.next_action(), Some(Action::Seek));
/// supervisor.met(at(1));
/// assert_eq!(supervisor.next_action(), Some(Action::Describe));
/// supervisor.described(at(1), b"our record");
/// assert!(matches!(supervisor.next_action(), Some(Action::Send(hello)) if hello.ends_with(b"our record")));
/// // The peer does the same, and then both tell that they are ready.
/// supervisor.message(at(2), &[&[1, 1], &b"their record"[..]].concat());
/// assert_eq!(supervisor.next_action(), Some(Action::Join(b"their record".to_vec())));
/// supervisor.joined(at(2));
/// assert!(matches!(supervisor.next_action(), Some(Action::Send(_))));
/// supervisor.message(at(3), &[2, 1]);
/// assert_eq!(supervisor.next_action(), Some(Action::Finish));
/// supervisor.finished(at(3));
/// assert!(supervisor.is_up());
/// # assert!(matches!(supervisor.next_action(), Some(Action::Tell(Event::Recovered { .. }))));
/// // Nothing is heard for a second:
/// supervisor.handle_timeout(supervisor.next_timeout().unwrap());
/// assert_eq!(supervisor.next_action(), Some(Action::Probe));
/// supervisor.probed(at(1003), Probed::Posted);
/// assert_eq!(supervisor.next_action(), Some(Action::Tell(Event::Probing)));
/// ```
#[derive(Debug)]
pub struct Supervisor {
    options: Options,
    proof: Proof,
    draws: Draws,
    state: State,
    attempt: u32,
    /// Since when there is no connection.
    lost: Duration,
    /// Why the last attempt failed.
    because: Option<String>,
    channel: bool,
    /// The peer's record, and whether it is ready, in the present channel.
    theirs: Option<Vec<u8>>,
    theirs_ready: bool,
    /// When to join, once both records are there.
    join_at: Option<Duration>,
    port_up: bool,
    /// When something was heard last.
    heard: Duration,
    /// When it is to be probed next.
    probe_at: Duration,
    /// A probe is under way, since then.
    probe: Option<Duration>,
    /// Probes that were asked for since something was heard.
    tries: u32,
    told_silent: bool,
    removed: bool,
    actions: VecDeque<Action>,
}

impl Supervisor {
    /// A connection that is to be made. `seed` is what waits are drawn from.
    pub fn new(options: &Options, proof: Proof, seed: u64, now: Duration) -> Supervisor {
        let mut supervisor = Supervisor {
            options: options.clone(),
            proof,
            draws: Draws::new(seed),
            state: State::PortDown,
            attempt: 0,
            lost: now,
            because: None,
            channel: false,
            theirs: None,
            theirs_ready: false,
            join_at: None,
            port_up: true,
            heard: now,
            probe_at: now,
            probe: None,
            tries: 0,
            told_silent: false,
            removed: false,
            actions: VecDeque::new(),
        };
        supervisor.plan(now, Duration::ZERO);
        supervisor
    }

    /// What is to be done next; `None`: nothing, until something happens or [`Supervisor::next_timeout`] has come.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether requests can be posted.
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether it has come to its end: the device is gone, or it gave up.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the port is down, as far as is known: nothing but an event says that it is up again.
    pub(super) fn misses_port(&self) -> bool {
        !self.port_up
    }

    /// When [`Supervisor::handle_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Duration> {
        match self.state {
            State::Waiting { until } | State::Seeking { until } | State::Barrier { until } => {
                Some(until)
            }
            State::Swapping { until, .. } => Some(self.join_at.map_or(until, |at| at.min(until))),
            State::Up if !self.port_up => None,
            State::Up => Some(match self.probe {
                Some(since) if self.proof != Proof::Echo => {
                    since.saturating_add(self.answer_within())
                }
                _ => self.probe_at,
            }),
            State::PortDown => self.gives_up_at(),
            State::Ending | State::Over => None,
        }
    }

    fn gives_up_at(&self) -> Option<Duration> {
        let limit = self.options.give_up?;
        Some(self.lost.saturating_add(limit))
    }

    fn answer_within(&self) -> Duration {
        self.options.answer_within(self.proof)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        match self.state {
            State::Waiting { .. } => {
                self.state = State::Seeking {
                    until: now.saturating_add(self.options.step),
                };
                self.actions.push_back(Action::Seek);
            }
            State::Seeking { .. } => self.attempt_failed(now, "the peer was not found in time"),
            State::Swapping { .. } if self.join_at.is_some_and(|at| at <= now) => {
                self.join_at = None;
                self.join();
            }
            State::Swapping { .. } => self.attempt_failed(now, "the peer did not tell its record"),
            State::Barrier { .. } => self.attempt_failed(now, "the peer did not get ready"),
            State::Up => self.silence(now),
            State::PortDown => self.give_up(now),
            State::Ending | State::Over => {}
        }
    }

    /// Nothing was heard for some time.
    fn silence(&mut self, now: Duration) {
        let dead = match self.proof {
            // Counted, so that who was kept from looking blames nobody else for it.
            Proof::Echo => self.tries == TRIES,
            _ => self.probe.is_some(),
        };
        if dead {
            return self.down(now, Why::Silent);
        }
        // If nothing comes of this one, it is asked for again.
        self.tries += 1;
        self.probe_at = now.saturating_add(self.options.probe_again(self.proof));
        self.actions.push_back(Action::Probe);
    }

    /// What became of [`Action::Probe`].
    pub fn probed(&mut self, now: Duration, probed: Probed) {
        if self.state != State::Up {
            return;
        }
        let lasts = now.saturating_sub(self.heard);
        match probed {
            // One of several: the first is told.
            _ if self.proof == Proof::Echo => {
                if self.tries == 1 {
                    self.tell(Event::Probing);
                }
            }
            Probed::Posted => {
                self.probe = Some(now);
                self.tell(Event::Probing);
            }
            Probed::Behind => self.tell(Event::Probing),
            Probed::Busy if lasts >= self.answer_within() && !self.told_silent => {
                self.told_silent = true;
                self.tell(Event::Silent { lasts });
            }
            Probed::Busy => {}
        }
    }

    /// Something proves that the peer was there: an acknowledged request, or a message of the peer's.
    pub fn heard(&mut self, now: Duration) {
        if self.state == State::Up {
            self.alive(now);
        }
    }

    fn alive(&mut self, now: Duration) {
        (self.heard, self.probe, self.told_silent) = (now, None, false);
        (self.tries, self.probe_at) = (0, now.saturating_add(self.options.probe));
    }

    /// A probe of the peer's came that the transport does not acknowledge: it is to be answered.
    pub fn asked(&mut self, now: Duration) {
        if self.state == State::Up {
            self.heard(now);
            self.actions.push_back(Action::Answer);
        }
    }

    /// The connection is of no use any more.
    pub fn down(&mut self, now: Duration, why: Why) {
        if self.state != State::Up {
            return;
        }
        if why != Why::PeerCameAnew {
            self.leave();
        }
        (self.lost, self.attempt, self.because) = (now, 0, None);
        self.state = State::Ending;
        self.tell(Event::Dead { why });
        self.actions.push_back(Action::End);
    }

    /// [`Action::End`] is done.
    pub fn ended(&mut self, now: Duration) {
        if self.state != State::Ending {
            return;
        }
        if self.removed {
            self.state = State::Over;
        } else if self.channel && self.port_up {
            self.describe(now);
        } else {
            let wait = self.backoff();
            self.plan(now, wait);
        }
    }

    /// The wait before the next attempt.
    fn backoff(&mut self) -> Duration {
        let draw = self.draws.next();
        let attempt = self.attempt.saturating_add(1);
        // Never at once: what fails at once would fail without end.
        let least = Duration::from_millis(1);
        self.options.backoff.wait(attempt, draw).max(least)
    }

    /// Plans the next attempt.
    fn plan(&mut self, now: Duration, wait: Duration) {
        if !self.port_up {
            self.leave();
            self.state = State::PortDown;
            return;
        }
        let until = now.saturating_add(wait);
        if self.gives_up_at().is_some_and(|limit| until >= limit) {
            return self.give_up(now);
        }
        self.attempt = self.attempt.saturating_add(1);
        let (attempt, because) = (self.attempt, self.because.take());
        self.tell(Event::Recovering {
            attempt,
            wait,
            because,
        });
        self.state = State::Waiting { until };
        if wait.is_zero() {
            self.handle_timeout(now);
        }
    }

    fn give_up(&mut self, now: Duration) {
        self.leave();
        self.state = State::Over;
        let because = self.because.take();
        let after = now.saturating_sub(self.lost);
        self.tell(Event::GaveUp { after, because });
    }

    /// A step was refused or did not work.
    pub fn failed(&mut self, now: Duration, why: impl ToString) {
        self.attempt_failed(now, why);
    }

    fn attempt_failed(&mut self, now: Duration, why: impl ToString) {
        let touched = match self.state {
            State::Seeking { .. } => false,
            State::Swapping { .. } | State::Barrier { .. } => true,
            _ => return,
        };
        self.leave();
        self.because = Some(why.to_string());
        if touched {
            // Receives may have been posted.
            self.state = State::Ending;
            self.actions.push_back(Action::End);
        } else {
            let wait = self.backoff();
            self.plan(now, wait);
        }
    }

    /// There is a channel to the peer, and none before it counts any more.
    pub fn met(&mut self, now: Duration) {
        (self.channel, self.theirs, self.theirs_ready) = (true, None, false);
        match self.state {
            State::Up => self.down(now, Why::PeerCameAnew),
            State::Ending => {}
            State::Over | State::PortDown => self.leave(),
            State::Barrier { .. } => {
                self.state = State::Ending;
                self.actions.push_back(Action::End);
            }
            State::Waiting { .. } | State::Seeking { .. } | State::Swapping { .. } => {
                self.describe(now);
            }
        }
    }

    fn describe(&mut self, now: Duration) {
        self.state = State::Swapping {
            until: now.saturating_add(self.options.step),
            told: false,
        };
        self.join_at = None;
        self.actions.push_back(Action::Describe);
    }

    /// [`Action::Describe`] gave this record.
    pub fn described(&mut self, now: Duration, record: &[u8]) {
        if let State::Swapping { told, .. } = &mut self.state {
            *told = true;
            let hello = [&[HELLO, VERSION], record].concat();
            self.actions.push_back(Action::Send(hello));
            self.swapped(now);
        }
    }

    /// One of the two records is there.
    fn swapped(&mut self, now: Duration) {
        match self.proof {
            // Where nothing tells packets of a former life from others, those on the way are waited for.
            Proof::Echo if matches!(self.state, State::Swapping { told: true, .. }) => {
                self.join_at = self
                    .theirs
                    .as_ref()
                    .map(|_| now.saturating_add(self.options.settle));
            }
            Proof::Echo => {}
            _ => self.join(),
        }
    }

    fn join(&mut self) {
        if let (State::Swapping { told: true, .. }, Some(theirs)) = (self.state, &self.theirs) {
            self.actions.push_back(Action::Join(theirs.clone()));
        }
    }

    /// A message came over the channel.
    pub fn message(&mut self, now: Duration, message: &[u8]) {
        if !self.channel {
            return;
        }
        match (message, &self.theirs) {
            ([HELLO, VERSION, record @ ..], None) => {
                self.theirs = Some(record.to_vec());
                self.swapped(now);
            }
            ([READY, VERSION, ..], Some(_)) if !self.theirs_ready => {
                self.theirs_ready = true;
                self.finish();
            }
            _ => {
                let why = match message {
                    [HELLO | READY, version, ..] if *version != VERSION => {
                        format!("the peer speaks version {version} and not {VERSION}")
                    }
                    _ => "the peer sent something else than was expected".to_owned(),
                };
                self.channel_lost(now, why);
            }
        }
    }

    fn finish(&mut self) {
        if matches!(self.state, State::Barrier { .. }) && self.theirs_ready {
            self.actions.push_back(Action::Finish);
        }
    }

    #[cfg(test)]
    pub(super) fn join_due(&self) -> Option<Duration> {
        self.join_at
    }

    /// [`Action::Join`] is done.
    pub fn joined(&mut self, now: Duration) {
        if matches!(self.state, State::Swapping { .. }) {
            self.state = State::Barrier {
                until: now.saturating_add(self.options.step),
            };
            self.actions.push_back(Action::Send(vec![READY, VERSION]));
            self.finish();
        }
    }

    /// [`Action::Finish`] is done.
    pub fn finished(&mut self, now: Duration) {
        if !matches!(self.state, State::Barrier { .. }) {
            return;
        }
        self.state = State::Up;
        self.alive(now);
        let (attempt, after) = (self.attempt.max(1), now.saturating_sub(self.lost));
        (self.attempt, self.because) = (0, None);
        let proof = self.proof;
        self.tell(Event::Recovered {
            attempt,
            after,
            proof,
        });
    }

    /// The channel broke, or none could be had.
    pub fn channel_lost(&mut self, now: Duration, why: impl ToString) {
        let why = why.to_string();
        match self.state {
            State::Up => self.down(now, Why::ChannelLost(why)),
            State::Seeking { .. } | State::Swapping { .. } | State::Barrier { .. } => {
                self.attempt_failed(now, why);
            }
            State::Ending | State::Waiting { .. } | State::PortDown | State::Over => self.leave(),
        }
    }

    /// The port went down or up.
    pub fn port(&mut self, now: Duration, up: bool) {
        if self.port_up == up || self.is_over() {
            return;
        }
        self.port_up = up;
        self.tell(if up { Event::PortUp } else { Event::PortDown });
        match self.state {
            // What waits longer than it may ends by itself; whether the rest has survived, a probe will tell.
            State::Up if up => {
                self.alive(now);
                self.probe_at = now;
            }
            State::PortDown if up => self.plan(now, Duration::ZERO),
            State::Waiting { .. } | State::Seeking { .. } if !up => {
                self.leave();
                self.state = State::PortDown;
            }
            State::Swapping { .. } | State::Barrier { .. } if !up => {
                self.attempt_failed(now, "the port went down");
            }
            _ => {}
        }
    }

    /// The GID that the peer was told is gone, or, while there is no connection, the table changed.
    pub fn gid_changed(&mut self, now: Duration) {
        match self.state {
            State::Up => {
                self.tell(Event::GidChanged);
                self.down(now, Why::GidChanged);
            }
            State::Swapping { .. } | State::Barrier { .. } => {
                self.tell(Event::GidChanged);
                self.attempt_failed(now, Why::GidChanged);
            }
            // There may be a GID now.
            State::Waiting { .. } => {
                self.state = State::Waiting { until: now };
                self.handle_timeout(now);
            }
            State::Seeking { .. } | State::Ending | State::PortDown | State::Over => {}
        }
    }

    /// The device is gone.
    pub fn device_removed(&mut self, now: Duration) {
        if self.is_over() || self.removed {
            return;
        }
        self.removed = true;
        self.tell(Event::DeviceRemoved);
        match self.state {
            State::Up => self.down(now, Why::DeviceRemoved),
            State::Ending => {}
            State::Swapping { .. } | State::Barrier { .. } => {
                self.attempt_failed(now, Why::DeviceRemoved);
            }
            _ => {
                self.leave();
                self.state = State::Over;
            }
        }
    }

    fn leave(&mut self) {
        (self.channel, self.theirs, self.theirs_ready) = (false, None, false);
        self.join_at = None;
        self.actions.push_back(Action::Leave);
    }

    fn tell(&mut self, event: Event) {
        self.actions.push_back(Action::Tell(event));
    }
}
