//! Every operation of RC, UC and UD between two devices, in two processes that keep step over TCP; with receives of the
//! QPs' own and with SRQs, and over multicast groups.
//!
//! Both ends go through the same list of [`Case`]s: first the connecting end asks and the listening end answers, then the
//! other way round: RC and UC for every path MTU, then datagrams. Both know what each message holds, so each looks at its own memory and its own
//! completions; the connecting end prints a line per case.

mod answer;
mod case;
mod control;
mod difference;
mod end;
mod part;
mod place;
pub mod xrc;

use std::net::{Ipv6Addr, UdpSocket};
use std::rc::Rc;
use std::time::Instant;

use rdma_core_sys::{ibv_gid, ibv_mtu};

use crate::Tally;
use crate::device::{Buffer, Cq, Device, Pd};
pub use case::{Case, Kind, Service, Shape, connected, datagrams};
pub use control::Control;
pub use difference::{DIFFERENCES, Difference, Side};
use end::{End, Route, Setting};
use part::{Part, Seen};

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
    /// Bytes of the port's active MTU.
    active_mtu: u32,
    /// What this end and the other one are called in the table.
    names: [String; 2],
    route: Route,
    /// Messages that a lossy wire may lose for good, and those that it lost.
    loose: [usize; 2],
    /// Keeps this host a member of the multicast group.
    member: Option<UdpSocket>,
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
        let mine = device.gid(PORT, gid_index)?;
        let active = device.port(PORT)?.active_mtu;
        let pd = Pd::new(device)?;
        let theirs = control.swap(&format!("{} {mine}", device.name()))?;
        let (name, their_gid) = theirs
            .split_once(' ')
            .ok_or_else(|| format!("peer: {theirs}"))?;
        let their_gid: Ipv6Addr = their_gid.parse().map_err(|e| format!("peer: {e}"))?;
        Ok(Session {
            control,
            leads,
            cqs: [Cq::new(device, 64)?, Cq::new(device, 64)?],
            buffer: Buffer::new(&pd, place::BUFFER)?,
            pd,
            active_mtu: active.bytes().unwrap_or(0),
            names: [device.name().to_owned(), name.to_owned()],
            route: Route {
                gid_index,
                mine,
                theirs: ibv_gid::from(their_gid),
            },
            loose: [0, 0],
            member: None,
        })
    }

    /// Makes this host a member of the multicast group. `ibv_attach_mcast` on a kernel device does not: it only lets the
    /// group's link address pass (`rxe_mcast.c`, `rxe_mcast_add`); `rdma_join_multicast` or the administrator do.
    ///
    /// # Errors
    /// A text that names the group.
    pub fn join_group(&mut self) -> Result<(), String> {
        let [group, here] = [self.route.group(), self.route.mine].map(Ipv6Addr::from);
        let joined = match (group.to_ipv4_mapped(), here.to_ipv4_mapped()) {
            (Some(group), Some(here)) => UdpSocket::bind("0.0.0.0:0")
                .and_then(|socket| socket.join_multicast_v4(&group, &here).map(|()| socket)),
            _ => UdpSocket::bind("[::]:0")
                .and_then(|socket| socket.join_multicast_v6(&group, 0).map(|()| socket)),
        };
        self.member = Some(joined.map_err(|e| format!("joining {group}: {e}"))?);
        Ok(())
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
                tally += self.direction(&plan, code, &connected(mtu as usize, &plan), asks)?;
            }
        }
        let code = ibv_mtu::from_bytes(greatest).ok_or("the ports have no MTU")?;
        for asks in [self.leads, !self.leads] {
            tally += self.direction(&plan, code, &datagrams(greatest as usize, &plan), asks)?;
        }
        let [loose, lost] = self.loose;
        if plan.lossy {
            self.say(&format!(
                "lost on the wire, for good: {lost} of {loose} messages of UC and UD"
            ));
        }
        Ok(tally)
    }

    /// All cases at one MTU in one direction.
    fn direction(
        &mut self,
        plan: &Plan,
        mtu: ibv_mtu,
        cases: &[Case],
        asks: bool,
    ) -> Result<Tally, String> {
        let usual = Setting {
            mtu,
            timeout: plan.timeout,
            ..Setting::USUAL
        };
        let mut tally = Tally::default();
        let mut end: Option<End> = None;
        for (number, case) in (0..).zip(cases) {
            let setting = case.setting(usual);
            if end.as_ref().is_none_or(|end| end.setting != setting) {
                drop(end.take());
                end = Some(self.connect(setting, asks)?);
            }
            let Some(on) = end.as_mut() else { continue };
            let began = Instant::now();
            let (mine, theirs) = self.play(on, case, asks, number, plan.lossy)?;
            let spent = began.elapsed().as_millis();
            let loose = plan.lossy && !case.service.reliable();
            self.loose[0] += if loose { case.burst } else { 0 };
            let result = match (&mine, &theirs) {
                (Ok(Seen::AsRuled), Ok(Seen::AsRuled)) => {
                    tally.passed += 1;
                    "ok"
                }
                (Ok(Seen::Differs(_)), Ok(_)) | (Ok(_), Ok(Seen::Differs(_))) => {
                    tally.expected += 1;
                    "differs"
                }
                (Ok(Seen::Lost(n)), Ok(_)) | (Ok(_), Ok(Seen::Lost(n))) => {
                    tally.passed += 1;
                    self.loose[1] += n;
                    "lost"
                }
                _ => {
                    tally.failed += 1;
                    "FAILED"
                }
            };
            let [me, peer] = &self.names;
            let (from, to) = if asks { (me, peer) } else { (peer, me) };
            let (family, bytes) = (self.family(), mtu.bytes().unwrap_or(0));
            let mut line = format!(
                "{family}  mtu {bytes:<4}  {from} asks {to}  {result:<7}  {spent:>5} ms  {case}"
            );
            for (name, verdict) in [(me, &mine), (peer, &theirs)] {
                match verdict {
                    Ok(Seen::AsRuled) => {}
                    Ok(Seen::Lost(n)) => line += &format!("; {name}: {n} lost"),
                    Ok(Seen::Differs(text)) | Err(text) => line += &format!("; {name}: {text}"),
                }
            }
            self.say(&line);
            // What comes late, or was left over, must not meet the next case.
            if result != "ok" || case.spoils() || loose {
                end = None;
            }
        }
        Ok(tally)
    }

    fn family(&self) -> &'static str {
        if self.route.v4() { "IPv4" } else { "IPv6" }
    }

    /// Prints on the leading end only.
    fn say(&self, line: &str) {
        if self.leads {
            println!("{line}");
        }
    }

    /// A fresh QP, connected to a fresh one of the other end, once those before it are gone.
    fn connect(&mut self, setting: Setting, asks: bool) -> Result<End, String> {
        // What came for them after they were looked at is nobody's.
        for cq in &self.cqs {
            while cq.poll()?.is_some() {}
        }
        let mut end = End::new(self, setting)?;
        let mine = end.local(self.leads);
        let theirs = self.control.swap(&mine.to_line())?;
        let theirs = end::Address::from_line(&theirs).ok_or_else(|| format!("peer: {theirs}"))?;
        end.connect(mine, theirs, asks || setting.answers)?;
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
        let [me, peer] = &self.names;
        let part = Part {
            case,
            number,
            devices: if asks { [me, peer] } else { [peer, me] },
            lossy,
        };
        end.prepare(part, asks)?;
        self.control.swap("ready")?;
        if asks {
            let mine = end.ask(part);
            self.control.send(&verdict_line(&mine))?;
            let theirs = verdict(&self.control.recv()?);
            Ok((mine, theirs))
        } else {
            let mine = end.answer(part);
            let theirs = verdict(&self.control.recv()?);
            // Only now is everything in memory that is not told by a completion.
            let mine = mine.and_then(|seen| match end.answered(part)? {
                Seen::AsRuled => Ok(seen),
                other => Ok(other),
            });
            self.control.send(&verdict_line(&mine))?;
            Ok((mine, theirs))
        }
    }
}

/// What one end says of a case: what it saw, or what is wrong.
type Verdict = Result<Seen, String>;

fn verdict_line(verdict: &Verdict) -> String {
    match verdict {
        Ok(Seen::AsRuled) => "ok".to_owned(),
        Ok(Seen::Differs(name)) => format!("differs {name}"),
        Ok(Seen::Lost(count)) => format!("lost {count}"),
        Err(text) => format!("bad {}", text.replace('\n', " ")),
    }
}

fn verdict(line: &str) -> Verdict {
    match line.split_once(' ') {
        None if line == "ok" => Ok(Seen::AsRuled),
        Some(("differs", name)) => Ok(Seen::Differs(name.to_owned())),
        Some(("lost", count)) => (count.parse().map(Seen::Lost)).map_err(|_| line.to_owned()),
        Some(("bad", text)) => Err(text.to_owned()),
        _ => Err(line.to_owned()),
    }
}
