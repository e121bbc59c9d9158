//! What two ends say to each other beside the Queue Pairs, and how a measurement ends before its time.

use std::time::{Duration, Instant};

use rdma_qp::doctor::{Evidence, Finding, diagnose};
use rdma_qp::exchange::{ExchangeError, tcp};
use rdma_qp::{Cq, Dump, PollError, Rtt};
use serde::{Deserialize, Serialize};

use super::end::Lane;
use super::meeting::{self, MEETING};
use crate::failure::{Failure, told};

/// A word on the control channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// From the end that asks: the next run begins when the other end is ready.
    Run(Run),
    /// It is.
    Ready,
    /// All requests of this end have completed: so many.
    Sent(u64),
    /// What came of it here.
    Outcome(Outcome),
    /// From the end that asks, each second: it is still there.
    Here,
    /// No run any more.
    Over(Over),
}

/// Messages of one size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Bytes of each.
    pub size: u32,
    /// How many by each Queue Pair.
    pub limit: Limit,
    /// Number of the first.
    pub first: u64,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// After so many messages of each Queue Pair.
    Count(u64),
    /// After so long.
    Time(Duration),
}

/// What came of a run at one end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Messages that this end has sent.
    pub sent: u64,
    /// Messages that came to this end, where it is told of them.
    pub arrived: u64,
    /// From the first post to the last completion, in seconds.
    pub seconds: f64,
    /// Most messages a second within 10 ms.
    pub peak: f64,
    /// The first difference to what was sent.
    pub difference: Option<String>,
}

/// The end of everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Over {
    /// The Queue Pair of this end, as a document.
    pub dump: String,
    /// What failed at this end.
    pub failed: Option<String>,
}

/// Why a measurement ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A Queue Pair failed; the sentence says how.
    #[error("{why}")]
    Failed {
        /// Its place.
        lane: usize,
        /// How.
        why: String,
    },
    /// What came is not what was sent.
    #[error("{0}")]
    Differs(String),
    /// The other end is gone.
    #[error("{0}")]
    Gone(String),
    /// The other end has ended it.
    #[error("the other end has ended it")]
    Over(Over),
    /// The user has ended it.
    #[error("interrupted")]
    Interrupted,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<ExchangeError> for Trouble {
    fn from(error: ExchangeError) -> Trouble {
        match error {
            ExchangeError::PeerLost { .. } => Trouble::Gone(gone(&error)),
            other => Trouble::Other(other.to_string()),
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Other(failure.to_string())
    }
}

impl From<PollError> for Trouble {
    fn from(error: PollError) -> Trouble {
        Trouble::Other(error.to_string())
    }
}

impl From<rdma_qp::OutOfRegion> for Trouble {
    fn from(error: rdma_qp::OutOfRegion) -> Trouble {
        Trouble::Other(error.to_string())
    }
}

/// The sentence for a peer whose channel is closed.
fn gone(error: &impl std::fmt::Display) -> String {
    format!("the other end is gone: its process ended, or its host does not answer ({error})")
}

/// What a completion says that is no success.
pub fn failed(cq: &Cq, lanes: &[Lane], done: &rdma_qp::Completion) -> Trouble {
    let lane = (lanes.iter()).position(|lane| lane.numbers().contains(&done.qp_num));
    Trouble::Failed {
        lane: lane.unwrap_or(0),
        why: explain(cq, done),
    }
}

/// How a request failed, in a sentence.
pub fn explain(cq: &Cq, done: &rdma_qp::Completion) -> String {
    let report = cq.explain(done);
    report.map_or_else(|| format!("{done:?}"), |report| report.to_string())
}

/// How often the end that asks says that it is still there.
const SIGN: Duration = Duration::from_secs(1);

/// The other end, by the control channel, once the two have met.
pub struct Peer {
    channel: tcp::Channel,
    /// How long it may be silent, where it is the one that asks.
    patience: Option<Duration>,
    /// When it last said a word; where it is the one that answers, when this end last said that it is still there.
    last: Instant,
}

impl Peer {
    /// The end that answers this one.
    pub fn that_answers(channel: tcp::Channel) -> Peer {
        Peer {
            channel,
            patience: None,
            last: Instant::now(),
        }
    }

    /// The end that asks this one, and may be silent for so long.
    pub fn that_asks(channel: tcp::Channel, patience: Duration) -> Peer {
        Peer {
            patience: Some(patience),
            ..Peer::that_answers(channel)
        }
    }
}

/// Says a word.
///
/// # Errors
/// The other end is gone, or has ended it.
pub fn say(peer: &mut Peer, word: &Word) -> Result<(), Trouble> {
    let word = serde_json::to_vec(word).map_err(told)?;
    match peer.channel.send(&word) {
        Ok(()) => Ok(()),
        // It may have said why before it went.
        Err(error) => Err(last_word(peer).map_or_else(|_| error.into(), Trouble::Over)),
    }
}

/// Hears a word; one that ends it all is trouble.
///
/// # Errors
/// The other end is gone, silent, or has ended it.
pub fn hear(peer: &mut Peer) -> Result<Word, Trouble> {
    let word = peer.channel.recv()?;
    understand(&word)
}

/// Hears a word if there is one. Each end calls it again and again: the one that asks shows by it that it is still there, and
/// the one that answers does not wait for ever for one that is not.
///
/// # Errors
/// As [`hear`].
pub fn overhear(peer: &mut Peer) -> Result<Option<Word>, Trouble> {
    let word = peer.channel.try_recv()?;
    let word = word.map(|word| understand(&word)).transpose()?;
    let now = Instant::now();
    let passed = now - peer.last;
    match peer.patience {
        None if passed >= SIGN => {
            peer.last = now;
            say(peer, &Word::Here)?;
        }
        Some(_) if word.is_some() => peer.last = now,
        Some(patience) if passed > patience => return Err(silent(peer, patience)),
        _ => {}
    }
    Ok(word.filter(|word| !matches!(word, Word::Here)))
}

/// What the silence of the end that asks amounts to. Should it only have been stopped, it finds why it was given up.
fn silent(peer: &mut Peer, patience: Duration) -> Trouble {
    let why = format!("nothing was heard of the end that asks for {patience:?}");
    let over = Over {
        dump: String::new(),
        failed: Some(why.clone()),
    };
    let _ = say(peer, &Word::Over(over));
    Trouble::Gone(format!(
        "{why}: it was stopped, or its host does not answer"
    ))
}

/// The same for an end to which the other one has nothing to say.
///
/// # Errors
/// As [`hear`], and that it says something.
pub fn attend(peer: &mut Peer) -> Result<(), Trouble> {
    match overhear(peer)? {
        None => Ok(()),
        Some(word) => Err(out_of_step(&word)),
    }
}

fn understand(word: &[u8]) -> Result<Word, Trouble> {
    match meeting::read(word)? {
        Word::Over(over) => Err(Trouble::Over(over)),
        word => Ok(word),
    }
}

/// What a word at the wrong time amounts to.
pub fn out_of_step(word: &Word) -> Trouble {
    Trouble::Other(format!(
        "the other end says {word:?} where it should not: use the same release at both ends"
    ))
}

/// What became of everything.
#[derive(Default)]
pub struct Verdict {
    /// What failed.
    pub error: Option<String>,
    /// What is wrong with the two ends.
    pub findings: Vec<Finding>,
    /// Whether the user has ended it.
    pub interrupted: bool,
}

/// Ends it at this end: each end tells the other how its Queue Pair is and what failed, and looks at both.
pub fn conclude(
    peer: &mut Peer,
    ended: Result<(), Trouble>,
    dump: impl FnOnce(usize) -> Dump,
    rtt: Option<Rtt>,
) -> Verdict {
    let interrupted = matches!(ended, Err(Trouble::Interrupted));
    let (lane, failed, heard) = match ended {
        Ok(()) | Err(Trouble::Interrupted) => (0, None, None),
        Err(Trouble::Failed { lane, why }) => (lane, Some(why), None),
        Err(Trouble::Differs(why) | Trouble::Other(why)) => (0, Some(why), None),
        Err(Trouble::Over(over)) => (0, None, Some(over)),
        Err(Trouble::Gone(why)) => {
            return Verdict {
                error: Some(why),
                ..Verdict::default()
            };
        }
    };
    let here = dump(lane);
    let mine = Word::Over(Over {
        dump: here.to_json(),
        failed: failed.clone(),
    });
    let said = say(peer, &mine);
    let there = match (heard, said) {
        (Some(over), _) | (None, Err(Trouble::Over(over))) => Ok(over),
        (None, said) => said.and_then(|()| last_word(peer)),
    };
    let (error, there) = match there {
        Ok(Over {
            dump,
            failed: theirs,
        }) => (
            failed.or_else(|| theirs.map(|why| format!("at the other end: {why}"))),
            Dump::from_json(&dump).ok(),
        ),
        // That says it all.
        Err(Trouble::Gone(why)) => {
            return Verdict {
                error: Some(why),
                ..Verdict::default()
            };
        }
        Err(trouble) => (
            failed.or_else(|| Some(format!("the other end did not end: {trouble}"))),
            None,
        ),
    };
    let mut evidence = Evidence::default();
    evidence.rtt = rtt;
    evidence.ends = std::iter::once(here).chain(there).collect();
    Verdict {
        error,
        findings: diagnose(&evidence),
        interrupted,
    }
}

/// The last word of the other end; what it said before it heard of the end does not count.
fn last_word(peer: &mut Peer) -> Result<Over, Trouble> {
    let begin = Instant::now();
    while begin.elapsed() < MEETING {
        match hear(peer) {
            Ok(_) => {}
            Err(Trouble::Over(over)) => return Ok(over),
            Err(other) => return Err(other),
        }
    }
    Err(Trouble::Other("it goes on talking".to_owned()))
}
