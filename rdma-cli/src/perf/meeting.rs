//! How two ends meet: one listens, the other one comes and says what it wants.

use std::io::{self, Write};
use std::time::Duration;

use rdma_qp::exchange::tcp;
use rdma_qp::{AckTimeout, RetryCount, Timing};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::control::Peer;
use super::plan::Plan;
use super::report;
use super::runner::Runner;
use crate::address::resolve;
use crate::device::{self, DeviceChoice};
use crate::failure::{Failure, told};
use crate::ping;
use crate::term::{Harmless, Style, counted};

/// How long each step of the meeting may take.
pub const MEETING: Duration = Duration::from_secs(10);
/// How long it waits for a peer at a time.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The version of what the ends say to each other.
const VERSION: u32 = 3;

/// What the end that asks tells the one that answers, before anything else.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    #[serde(flatten)]
    version: Version,
    timeout: u8,
    retry_cnt: u8,
    wish: Wish,
}

#[derive(Debug, Serialize, Deserialize)]
struct Version {
    /// [`VERSION`].
    qp: u32,
}

/// What shall be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// As `qp ping`.
    Ping(ping::Pings),
    /// As `qp lat` and `qp bw`.
    Measure(Plan),
}

/// What the end that answers says to that; empty is yes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    refused: Option<String>,
}

/// A message of the control channel.
///
/// # Errors
/// It is something else.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::told(format!(
            "what the other end says is not of `qp ping`, `qp lat` or `qp bw`: {error}"
        ))
    })
}

/// Goes to the end that listens at `address`, and says what is wished.
///
/// # Errors
/// Nobody is there, or it refuses.
pub fn greet(address: &str, wish: Wish, timing: Timing) -> Result<tcp::Channel, Failure> {
    let mut peer = tcp::connect(&*resolve(address)?, MEETING).map_err(told)?;
    let hello = Hello {
        version: Version { qp: VERSION },
        timeout: timing.timeout.code(),
        retry_cnt: timing.retry_cnt.get(),
        wish,
    };
    let hello = serde_json::to_vec(&hello).map_err(told)?;
    peer.send(&hello).map_err(told)?;
    let answer: Answer = read(&peer.recv().map_err(told)?)?;
    match answer.refused {
        Some(why) => Err(Failure::told(format!("{address} refuses: {why}"))),
        None => Ok(peer),
    }
}

/// Lets `asks` go to `address`, or, if there is none, to an end in this process, on a device of its own.
///
/// # Errors
/// What went wrong at the end that asks; or, where that says less, at the other one.
pub fn with_peer<T>(
    address: Option<&str>,
    choice: &DeviceChoice,
    asks: impl FnOnce(&str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(address) = address {
        return asks(address);
    }
    let listener = tcp::listen("127.0.0.1:0").map_err(told)?;
    let address = listener.local_addr().map_err(told)?.to_string();
    let theirs = DeviceChoice {
        second: true,
        ..choice.clone()
    };
    let answering = std::thread::spawn(move || {
        let peer = listener.accept(MEETING).map_err(told)?;
        // It lives as long as this process.
        answer(peer, &theirs, Duration::MAX)
    });
    let asked = asks(&address);
    match answering.join() {
        // Why the other end gave up says more than that it did. What it has found, this one has told; and where nobody
        // reads the output, this one has gone first.
        Ok(Err(failure))
            if asked.is_err() && !matches!(asked, Err(Failure::Found | Failure::OutputClosed)) =>
        {
            Err(failure)
        }
        _ => asked,
    }
}

/// Answers whoever comes, one after another.
///
/// # Errors
/// Nobody can come there; with `once` also what went wrong with the one that came.
pub fn serve(address: &str, choice: &DeviceChoice, once: bool) -> Result<(), Failure> {
    let listener = tcp::listen(&*resolve(address)?).map_err(told)?;
    let style = Style::of(&io::stdout());
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "listening on {}",
        style.bold(listener.local_addr().map_err(told)?)
    )?;
    out.flush()?;
    loop {
        let Ok(mut peer) = listener.accept(PATIENCE) else {
            continue;
        };
        // A peer that is silent keeps others waiting no longer than the meeting may take.
        peer.set_limit(MEETING);
        let from = peer.peer_addr();
        let answered = answer(peer, choice, MEETING);
        match &answered {
            Ok(Answered::Told(sentence)) => writeln!(out, "{from}: {sentence}")?,
            Ok(Answered::Ended(plan, verdict)) => {
                writeln!(out, "{from}: {}", plan.title())?;
                report::verdict(&mut out, style, verdict)?;
            }
            Err(failure) => writeln!(out, "{from}: {}", Harmless(failure))?,
        }
        out.flush()?;
        if once {
            return match answered? {
                Answered::Ended(_, verdict) if verdict.error.is_some() => Err(Failure::Found),
                _ => Ok(()),
            };
        }
    }
}

/// What became of an end that answered.
enum Answered {
    /// All went well; the sentence says what was done.
    Told(String),
    /// A measurement ended.
    Ended(Plan, super::control::Verdict),
}

/// Answers one peer until it is done, or is silent for longer than `patience`.
///
/// # Errors
/// It is gone, or asks for what this end cannot do; the device cannot be used.
fn answer(
    mut peer: tcp::Channel,
    choice: &DeviceChoice,
    patience: Duration,
) -> Result<Answered, Failure> {
    let hello = peer.recv().map_err(told)?;
    let made = prepare(&hello, choice);
    let refused = made.as_ref().err().map(ToString::to_string);
    let answer = serde_json::to_vec(&Answer { refused }).map_err(told)?;
    peer.send(&answer).map_err(told)?;
    match made? {
        (Made::Ping(mut end), timing) => {
            end.meet(&mut peer, timing)?;
            let pings = ping::answer(&mut end, &mut Peer::that_asks(peer, patience));
            let pings = pings.map_err(told)?;
            Ok(Answered::Told(format!(
                "answered {}",
                counted(pings, "ping", "pings")
            )))
        }
        (Made::Measure(mut runner), timing) => {
            runner.meet(&mut peer, timing)?;
            let mut peer = Peer::that_asks(peer, patience);
            let ended = runner.answer(&mut peer);
            let verdict = runner.conclude(&mut peer, ended, None);
            Ok(Answered::Ended(runner.plan, verdict))
        }
    }
}

/// The end that the peer asks for.
enum Made {
    Ping(Box<ping::End>),
    Measure(Box<Runner>),
}

fn prepare(hello: &[u8], choice: &DeviceChoice) -> Result<(Made, Timing), Failure> {
    let version: Version = read(hello)?;
    if version.qp != VERSION {
        return Err(Failure::told(format!(
            "this end is of version {VERSION}, the other one of {}: use the same release of qp at both",
            version.qp
        )));
    }
    let hello: Hello = read(hello)?;
    let timing = Timing {
        timeout: AckTimeout::from_code(hello.timeout).map_err(told)?,
        retry_cnt: RetryCount::new(hello.retry_cnt).map_err(told)?,
        ..Timing::default()
    };
    // Not for a wish that no device could fulfil.
    if let Wish::Measure(plan) = &hello.wish {
        plan.check().map_err(Failure::Told)?;
    }
    let opened = device::open(choice)?;
    let made = match hello.wish {
        Wish::Ping(pings) => Made::Ping(Box::new(ping::End::new(&opened, pings, choice.mtu)?)),
        Wish::Measure(plan) => Made::Measure(Box::new(Runner::new(&opened, plan, choice, false)?)),
    };
    Ok((made, timing))
}
