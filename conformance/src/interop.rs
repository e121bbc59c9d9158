//! Every operation of RC between two devices, in two processes that keep step over TCP.
//!
//! Both ends go through the same list of [`Case`]s: first the connecting end asks and the listening end answers, then the
//! other way round, for every path MTU. Both know what each message holds, so each looks at its own memory and its own
//! completions; the connecting end prints a line per case.

mod case;
mod control;
mod end;

use std::rc::Rc;
use std::time::Instant;

use rdma_core_sys::{ibv_gid, ibv_mtu};

use crate::Tally;
use crate::device::{Buffer, Cq, Device, Pd};
pub use case::{Case, DIFFERENCES, Difference, Kind, Shape, cases};
pub use control::Control;
use end::{End, Setting};

/// How a session is run; the connecting end decides, the listening one is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Path MTUs in bytes.
    pub mtus: Vec<u32>,
    /// Fewer lengths.
    pub quick: bool,
    /// Bytes of the longest message.
    pub longest: usize,
    /// The wire may lose packets, so the one NAK that ends a connection may not arrive.
    pub lossy: bool,
    /// The acknowledgement timeout, 4.096 us x 2^n.
    pub timeout: u8,
}

impl Plan {
    fn to_line(&self) -> String {
        let mtus: Vec<_> = self.mtus.iter().map(u32::to_string).collect();
        let [quick, lossy] = [self.quick, self.lossy].map(u8::from);
        let (mtus, longest, timeout) = (mtus.join(","), self.longest, self.timeout);
        format!("{mtus} {quick} {longest} {lossy} {timeout}")
    }

    fn from_line(line: &str) -> Option<Plan> {
        let mut words = line.split(' ');
        let mtus = words.next()?.split(',').map(|m| m.parse().ok());
        Some(Plan {
            mtus: mtus.collect::<Option<_>>()?,
            quick: words.next()? == "1",
            longest: words.next()?.parse().ok()?,
            lossy: words.next()? == "1",
            timeout: words.next()?.parse().ok()?,
        })
    }
}

/// This end of a session.
#[derive(Debug)]
pub struct Session {
    control: Control,
    /// The plan is this end's.
    leads: bool,
    pd: Rc<Pd>,
    cqs: [Rc<Cq>; 2],
    buffer: Rc<Buffer>,
    gid_index: u8,
    /// Bytes of the port's active MTU.
    active_mtu: u32,
    /// What this end and the other one are called in the table.
    names: [String; 2],
    gids: [ibv_gid; 2],
}

/// The port that is used.
const PORT: u8 = 1;

impl Session {
    /// Gets this end ready and meets the other one.
    ///
    /// # Errors
    /// A text that says what failed.
    pub fn new(
        mut control: Control,
        leads: bool,
        device: &Rc<Device>,
        gid_index: u8,
    ) -> Result<Session, String> {
        let text = |e: crate::device::Failed| e.to_string();
        let gid = device.gid(PORT, gid_index).map_err(text)?;
        let active = device.port(PORT).map_err(text)?.active_mtu;
        let pd = Pd::new(device).map_err(text)?;
        let theirs = control.swap(&format!("{} {gid}", device.name()))?;
        let (name, their_gid) = theirs
            .split_once(' ')
            .ok_or_else(|| format!("peer: {theirs}"))?;
        let their_gid: std::net::Ipv6Addr = their_gid.parse().map_err(|e| format!("peer: {e}"))?;
        Ok(Session {
            control,
            leads,
            cqs: [
                Cq::new(device, 64).map_err(text)?,
                Cq::new(device, 64).map_err(text)?,
            ],
            buffer: Buffer::new(&pd, end::BUFFER).map_err(text)?,
            pd,
            gid_index,
            active_mtu: active.bytes().unwrap_or(0),
            names: [device.name().to_owned(), name.to_owned()],
            gids: [gid, ibv_gid::from(their_gid)],
        })
    }

    /// Goes through all cases: with a plan on the connecting end, without one on the listening end.
    ///
    /// # Errors
    /// Where the two ends lost each other: a text. A case that fails is counted.
    pub fn run(&mut self, plan: Option<Plan>) -> Result<Tally, String> {
        let line = plan
            .as_ref()
            .map_or_else(|| "told".to_owned(), Plan::to_line);
        let theirs = self.control.swap(&line)?;
        let plan = match plan {
            Some(plan) => plan,
            None => Plan::from_line(&theirs).ok_or_else(|| format!("peer: {theirs}"))?,
        };
        let their_mtu = self.control.swap(&self.active_mtu.to_string())?;
        let their_mtu: u32 = their_mtu.parse().map_err(|e| format!("peer: {e}"))?;
        let greatest = self.active_mtu.min(their_mtu);
        let mut tally = Tally::default();
        for &mtu in &plan.mtus {
            let Some(code) = ibv_mtu::from_bytes(mtu).filter(|_| mtu <= greatest) else {
                self.say(&format!("SKIP mtu-{mtu}: the ports do {greatest} bytes"));
                tally.skipped += 1;
                continue;
            };
            for asks in [self.leads, !self.leads] {
                tally += self.direction(&plan, code, asks)?;
            }
        }
        Ok(tally)
    }

    /// All cases at one MTU in one direction.
    fn direction(&mut self, plan: &Plan, mtu: ibv_mtu, asks: bool) -> Result<Tally, String> {
        let bytes = mtu.bytes().unwrap_or(0);
        let usual = Setting {
            mtu,
            timeout: plan.timeout,
            ..Setting::USUAL
        };
        let mut tally = Tally::default();
        let mut end: Option<End> = None;
        for (number, case) in (0..).zip(cases(bytes as usize, plan)) {
            let setting = case.setting(usual);
            if end.as_ref().is_none_or(|end| end.setting != setting) {
                drop(end.take());
                end = Some(self.connect(setting, asks)?);
            }
            let Some(on) = end.as_mut() else { continue };
            let began = Instant::now();
            let (mine, theirs) = self.play(on, &case, asks, number, plan.lossy)?;
            let spent = began.elapsed().as_millis();
            let result = match (&mine, &theirs) {
                (Ok(None), Ok(None)) => {
                    tally.passed += 1;
                    "ok"
                }
                (Ok(_), Ok(_)) => {
                    tally.expected += 1;
                    "differs"
                }
                _ => {
                    tally.failed += 1;
                    "FAILED"
                }
            };
            let [me, peer] = &self.names;
            let (from, to) = if asks { (me, peer) } else { (peer, me) };
            let family = self.family();
            let mut line = format!(
                "{family}  mtu {bytes:<4}  {from} asks {to}  {result:<7}  {spent:>5} ms  {case}"
            );
            for (name, verdict) in [(me, &mine), (peer, &theirs)] {
                if let Err(text) | Ok(Some(text)) = verdict {
                    line += &format!("; {name}: {text}");
                }
            }
            self.say(&line);
            if result == "FAILED" || case.breaks() {
                end = None;
            }
        }
        Ok(tally)
    }

    fn family(&self) -> &'static str {
        let v4 = std::net::Ipv6Addr::from(self.gids[0])
            .to_ipv4_mapped()
            .is_some();
        if v4 { "IPv4" } else { "IPv6" }
    }

    /// Prints on the leading end only.
    fn say(&self, line: &str) {
        if self.leads {
            println!("{line}");
        }
    }

    /// A fresh QP, connected to a fresh one of the other end.
    fn connect(&mut self, setting: Setting, asks: bool) -> Result<End, String> {
        let mut end = End::new(self, setting)?;
        let mine = end.local(self.leads);
        let theirs = self.control.swap(&mine.to_line())?;
        let theirs = end::Address::from_line(&theirs).ok_or_else(|| format!("peer: {theirs}"))?;
        let address = (self.gid_index, self.gids[1]);
        end.connect(mine, theirs, address, asks || setting.answers)?;
        // Nobody asks before both are ready to answer.
        self.control.swap("connected")?;
        Ok(end)
    }

    /// Plays one case; gives the verdicts of this end and of the other one.
    fn play(
        &mut self,
        end: &mut End,
        case: &Case,
        asks: bool,
        number: u32,
        lossy: bool,
    ) -> Result<(Verdict, Verdict), String> {
        end.prepare(case, asks, number)?;
        self.control.swap("ready")?;
        if asks {
            let mine = end.ask(case, number, (&self.names[1], lossy));
            self.control.send(&verdict_line(&mine))?;
            let theirs = verdict(&self.control.recv()?);
            Ok((mine, theirs))
        } else {
            let mine = end.answer(case, number);
            let theirs = verdict(&self.control.recv()?);
            // Only now is everything in memory that is not told by a completion.
            let mine = mine
                .and_then(|()| end.answered(case, number))
                .map(|()| None);
            self.control.send(&verdict_line(&mine))?;
            Ok((mine, theirs))
        }
    }
}

/// What one end says of a case: fine, a difference that has a name, or what is wrong.
type Verdict = Result<Option<String>, String>;

fn verdict_line(verdict: &Verdict) -> String {
    match verdict {
        Ok(None) => "ok".to_owned(),
        Ok(Some(name)) => format!("differs {name}"),
        Err(text) => format!("bad {}", text.replace('\n', " ")),
    }
}

fn verdict(line: &str) -> Verdict {
    match line.split_once(' ') {
        None if line == "ok" => Ok(None),
        Some(("differs", name)) => Ok(Some(name.to_owned())),
        Some(("bad", text)) => Err(text.to_owned()),
        _ => Err(line.to_owned()),
    }
}
