//! What starts, kills and watches the workers.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::report::{Figures, Sample};
use crate::{PASSIVE, Soak, WORKERS, active};

/// Within this every pair is connected again after a kill; it only catches what hangs.
const CONNECTED: Duration = Duration::from_secs(60);
/// Nobody is killed so long before the end, so that the last death is seen by all.
const TAIL: Duration = Duration::from_secs(4);

/// A line of a worker, the end of its output, and when it came.
struct Line {
    slot: usize,
    life: u64,
    at: Instant,
    text: Option<String>,
}

/// A worker's place.
struct Slot {
    life: u64,
    child: Option<Child>,
    restart: Instant,
    ended: bool,
}

/// Who is connected to whom: worker and life of who says so, and of the peer.
type Pair = (usize, u64, usize, u64);

/// What one worker told of its link to another. Both times are those of the parent.
struct Seen {
    up: Instant,
    lost: bool,
    failed: [bool; 2],
}

pub struct Parent<'a> {
    how: &'a Soak,
    random: Random,
    start: Instant,
    folder: PathBuf,
    network: String,
    slots: Vec<Slot>,
    pairs: HashMap<Pair, Seen>,
    /// Lives that were killed, and when.
    killed: HashMap<(usize, u64), Instant>,
    /// Since when not every pair is connected.
    incomplete: Option<Instant>,
    /// Every pair was connected once.
    started: bool,
    figures: Figures,
    sender: Sender<Line>,
    lines: Receiver<Line>,
}

/// A folder that goes away with its owner.
struct Folder<'a>(&'a Path);

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0);
    }
}

pub fn run(how: &Soak) -> Result<ExitCode, Box<dyn Error>> {
    let number = std::process::id();
    let folder = PathBuf::from(format!("/dev/shm/rdma-qp-soak-{number}"));
    std::fs::create_dir(&folder)?;
    let _folder = Folder(&folder);
    let (sender, lines) = channel();
    let now = Instant::now();
    let mut parent = Parent {
        how,
        random: Random::new(how.seed),
        start: now,
        folder: folder.clone(),
        network: format!("127.{}.{}", 64 + number / 256 % 128, number % 256),
        slots: Vec::new(),
        pairs: HashMap::new(),
        killed: HashMap::new(),
        incomplete: Some(now),
        started: false,
        figures: Figures::default(),
        sender,
        lines,
    };
    if !how.json {
        println!(
            "{WORKERS} workers, {} s, {} kills, seed {}",
            how.seconds, how.kills, how.seed
        );
    }
    for slot in 0..WORKERS {
        let child = Some(parent.spawn(slot, 0)?);
        parent.slots.push(Slot {
            life: 0,
            child,
            restart: now,
            ended: false,
        });
    }
    let stall = watch_processor();
    let result = parent.watch().and_then(|()| parent.stop());
    // Whatever happened, none outlives this process.
    for child in parent
        .slots
        .iter_mut()
        .filter_map(|slot| slot.child.as_mut())
    {
        let _ = child.kill();
        let _ = child.wait();
    }
    result?;
    let figures = &mut parent.figures;
    figures.seconds = parent.start.elapsed().as_secs();
    figures.stall = Duration::from_micros(stall.load(Relaxed));
    figures.judge_use();
    figures.print(how)?;
    Ok(if figures.is_good(how) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Microseconds that a thread was kept from running at most: it sleeps for a moment, again and again.
fn watch_processor() -> Arc<AtomicU64> {
    const NAP: Duration = Duration::from_millis(5);
    let most = Arc::new(AtomicU64::new(0));
    let most_seen = most.clone();
    std::thread::spawn(move || {
        loop {
            let start = Instant::now();
            std::thread::sleep(NAP);
            let late = start.elapsed().saturating_sub(NAP).as_micros();
            most_seen.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Relaxed);
        }
    });
    most
}

impl Parent<'_> {
    fn spawn(&mut self, slot: usize, life: u64) -> Result<Child, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .args([slot as u64, life, self.random.next()].map(|number| number.to_string()))
            .args([&self.folder, Path::new(&self.network)])
            .env("RDMA_SOFT_ADDR", format!("{}.{}", self.network, slot + 1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take();
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let lines = out.map(BufReader::new).into_iter().flat_map(BufRead::lines);
            for text in lines.map_while(Result::ok) {
                let text = Some(text);
                if sender
                    .send(Line {
                        slot,
                        life,
                        at: Instant::now(),
                        text,
                    })
                    .is_err()
                {
                    return;
                }
            }
            let _ = sender.send(Line {
                slot,
                life,
                at: Instant::now(),
                text: None,
            });
        });
        Ok(child)
    }

    fn wrong(&mut self, what: String) {
        let at = self.start.elapsed().as_secs_f64();
        eprintln!("{at:8.3} s: WRONG: {what}");
        self.figures.violations += 1;
    }

    /// Kills, starts again and reads what is told, until the time is over.
    fn watch(&mut self) -> Result<(), Box<dyn Error>> {
        let length = Duration::from_secs(self.how.seconds);
        let tail = TAIL.min(length / 3);
        let mut next_kill = Instant::now();
        let mut next_word = Instant::now();
        let mut last_kill = None;
        loop {
            let now = Instant::now();
            // The time begins when all are connected. Where a slow machine leaves kills over, it becomes longer.
            let planned = self.start + length;
            let end = last_kill.map_or(planned, |killed: Instant| planned.max(killed + tail));
            let waits = self.figures.kills < self.how.kills && now < self.start + 3 * length;
            if self.started && now >= end && !waits {
                return Ok(());
            }
            for slot in 0..WORKERS {
                if self.slots[slot].child.is_none() && self.slots[slot].restart <= now {
                    self.slots[slot].life += 1;
                    let child = self.spawn(slot, self.slots[slot].life)?;
                    self.slots[slot].child = Some(child);
                }
            }
            if self.started && waits && now >= next_kill {
                if self.kill()? {
                    last_kill = Some(now);
                    let left = (end - tail).saturating_duration_since(now);
                    let rest =
                        u32::try_from(self.how.kills - self.figures.kills).unwrap_or(u32::MAX);
                    // From 0.2 to 1.6 of the mean, and the last one is not too late.
                    let mean = left / rest.max(1);
                    let wait = mean / 5 + self.random.time(mean * 7 / 5);
                    let late = left.saturating_sub(Duration::from_millis(100));
                    next_kill = now + wait.min(late).max(Duration::from_millis(200));
                } else {
                    next_kill = now + Duration::from_millis(100);
                }
            }
            if now >= next_word {
                next_word = now + Duration::from_secs((self.how.seconds / 20).max(2));
                if !self.how.json {
                    self.figures.progress(self.start.elapsed());
                }
            }
            match self.lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => self.hear(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.look_for_late();
        }
    }

    /// Kills a worker, but not the first. `false`: the one that was drawn is not alive.
    fn kill(&mut self) -> Result<bool, Box<dyn Error>> {
        let slot = 1 + self.random.below(WORKERS as u64 - 1) as usize;
        let Some(mut child) = self.slots[slot].child.take() else {
            return Ok(false);
        };
        let now = Instant::now();
        child.kill()?;
        child.wait()?;
        self.slots[slot].restart = now + self.random.time(Duration::from_millis(1500));
        let life = self.slots[slot].life;
        self.killed.insert((slot, life), now);
        // What it saw is of no matter any more.
        self.pairs.retain(|(who, _, _, _), _| *who != slot);
        self.figures.kills += 1;
        let watched = self
            .pairs
            .keys()
            .filter(|(_, _, peer, of)| (*peer, *of) == (slot, life));
        if watched.count() == 0 {
            self.figures.unwatched += 1;
        }
        self.incomplete = Some(now);
        Ok(true)
    }

    fn hear(
        &mut self,
        Line {
            slot,
            life,
            at,
            text,
        }: Line,
    ) {
        let killed = self.killed.contains_key(&(slot, life));
        let Some(text) = text else {
            if !killed && !self.slots[slot].ended {
                self.slots[slot].ended = true;
                self.wrong(format!("worker {slot} ended by itself"));
            }
            return;
        };
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let numbers: Vec<u64> = rest
            .split(' ')
            .map_while(|number| number.parse().ok())
            .collect();
        match (word, &numbers[..]) {
            ("wrong", _) => self.wrong(format!("worker {slot}.{life}: {rest}")),
            ("end", _) => self.slots[slot].ended = true,
            ("use", &[resident, open, done]) => {
                let sample = Sample {
                    at: at - self.start,
                    resident,
                    open,
                };
                self.figures.used(slot, life, sample, done);
            }
            // What a worker said before it was killed may come late.
            _ if killed => {}
            ("up", &[peer, of]) => {
                let seen = Seen {
                    up: at,
                    lost: false,
                    failed: [false; 2],
                };
                self.pairs.insert((slot, life, peer as usize, of), seen);
                self.figures.connections += 1;
                if self.all_connected() {
                    self.incomplete = None;
                    if !self.started {
                        (self.started, self.start) = (true, at);
                        self.figures.begin();
                    }
                }
            }
            ("spurious", _) => self.figures.spurious += 1,
            ("down", &[peer, of]) => {
                let pair = (slot, life, peer as usize, of);
                // One that is left by agreement, even if the peer is killed at that moment, was not waiting for it.
                self.pairs.remove(&pair);
                self.incomplete.get_or_insert(at);
            }
            ("lost", &[peer, of]) => self.saw((slot, life, peer as usize, of), at, None),
            ("failed", &[peer, of, index, status, age]) => {
                let age = Duration::from_micros(age);
                let failed = Some((index as usize & 1, status, age));
                self.saw((slot, life, peer as usize, of), at, failed);
            }
            _ => self.wrong(format!("worker {slot} says {text:?}")),
        }
    }

    /// A worker saw that its peer is gone: by the control channel, or by one of its QPs.
    fn saw(&mut self, pair: Pair, at: Instant, failed: Option<(usize, u64, Duration)>) {
        let (who, _, peer, of) = pair;
        let Some(since) = self.killed.get(&(peer, of)).copied() else {
            // A QP alone may find its peer too slow; the worker says so then.
            if failed.is_none() && !self.slots[who].ended {
                self.wrong(format!(
                    "worker {who} lost worker {peer}.{of}, which is alive"
                ));
            }
            return;
        };
        let Some(seen) = self.pairs.get_mut(&pair) else {
            return;
        };
        if failed.map_or(seen.lost, |(index, _, _)| seen.failed[index]) {
            return;
        }
        let slack = self.how.slack();
        // Connected at the moment of the kill, it may have said so afterwards.
        let took = at.saturating_duration_since(since.max(seen.up));
        let (took, bound) = match failed {
            None => {
                seen.lost = true;
                (took, PASSIVE + slack)
            }
            Some((index, _, age)) => {
                seen.failed[index] = true;
                // Posted after the death, it could not fail earlier.
                (took.min(age), active() + slack)
            }
        };
        self.figures
            .detected(failed.map(|(_, status, _)| status), took);
        if took > bound {
            self.figures.missed.insert((peer, of));
            self.wrong(format!(
                "worker {who} saw the death of worker {peer}.{of} after {took:?}, not within {bound:?}: {failed:?}"
            ));
        }
    }

    /// Deaths that somebody should have seen by now.
    fn look_for_late(&mut self) {
        let now = Instant::now();
        let limit = PASSIVE + active() + 2 * self.how.slack() + Duration::from_millis(500);
        let mut late = Vec::new();
        for (pair, seen) in &mut self.pairs {
            let Some(since) = self.killed.get(&(pair.2, pair.3)) else {
                continue;
            };
            let passed = now.saturating_duration_since(seen.up.max(*since));
            // Requests may have been posted only when the channel told.
            let missing = !seen.lost || seen.failed != [true; 2];
            if passed > limit && missing {
                late.push(format!(
                    "{pair:?} has not seen a death: {} {:?}",
                    seen.lost, seen.failed
                ));
                (seen.lost, seen.failed) = (true, [true; 2]);
                self.figures.missed.insert((pair.2, pair.3));
            }
        }
        for what in late {
            self.wrong(what);
        }
        if let Some(since) = self.incomplete
            && now.saturating_duration_since(since) > CONNECTED
        {
            self.incomplete = Some(now);
            self.wrong(format!("not all are connected for {CONNECTED:?}"));
        }
    }

    fn all_connected(&self) -> bool {
        let life = |slot: usize| self.slots[slot].life;
        (0..WORKERS).all(|a| {
            (0..WORKERS).all(|b| a == b || self.pairs.contains_key(&(a, life(a), b, life(b))))
        })
    }

    /// Tells the workers to stop, and waits until they have.
    fn stop(&mut self) -> Result<(), Box<dyn Error>> {
        for slot in &mut self.slots {
            match &mut slot.child {
                // The end of their input says so.
                Some(child) => drop(child.stdin.take()),
                None => slot.ended = true,
            }
        }
        let until = Instant::now() + Duration::from_secs(60);
        while !self.slots.iter().all(|slot| slot.ended) && Instant::now() < until {
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
                self.hear(line);
            }
        }
        for slot in 0..WORKERS {
            if !self.slots[slot].ended {
                self.wrong(format!("worker {slot} does not end"));
            } else if let Some(mut child) = self.slots[slot].child.take() {
                let status = child.wait()?;
                if !status.success() {
                    self.wrong(format!("worker {slot} ended with {status}"));
                }
            }
        }
        Ok(())
    }
}
