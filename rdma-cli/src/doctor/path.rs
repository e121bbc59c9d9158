//! `qp doctor path`: which local GID reaches a peer.

use std::io::{self, Write};
use std::net::IpAddr;

use rdma_qp::{Device, Gid, GidEntry, GidError, Verdict};
use serde::Serialize;

use crate::device::{is_loopback, open_real};
use crate::failure::Failure;
use crate::term::Style;

/// Options of `qp doctor path`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The peer's GID, or its IP address
    #[arg(long, value_name = "GID")]
    remote: IpAddr,
    /// An RDMA device as `qp devices` names it, instead of the software device
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Its port, counted from 1; all of them if not given
    #[arg(long, value_name = "N")]
    port: Option<u8>,
    /// Print one JSON object, for machines
    #[arg(long)]
    pub json: bool,
}

/// What was found.
#[derive(Serialize)]
struct Answer {
    device: String,
    remote: String,
    ports: Vec<PortAnswer>,
}

#[derive(Serialize)]
struct PortAnswer {
    port: u8,
    /// The `sgid_index` to take.
    best: Option<u32>,
    entries: Vec<Entry>,
    /// Why no entry will do.
    error: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    index: u32,
    gid: String,
    #[serde(rename = "type")]
    kind: String,
    verdict: String,
}

/// Runs the command.
///
/// # Errors
/// [`Failure::Found`] if no entry reaches the peer; [`Failure::CouldNotLook`] if there is no such device or port.
pub fn run(args: &Args) -> Result<(), Failure> {
    let blind = |error: &dyn std::fmt::Display| Failure::CouldNotLook(error.to_string());
    let device = match &args.device {
        Some(name) => open_real(name).map_err(|failure| blind(&failure))?,
        None => Device::open_index(rdma_soft::verbs(), 0).map_err(|error| blind(&error))?,
    };
    let remote = Gid::from(args.remote);
    let ports = match args.port {
        Some(number) => vec![device.port(number).map_err(|error| blind(&error))?],
        None => device.ports(),
    };
    let mut answer = Answer {
        device: device.name().to_owned(),
        remote: remote.to_string(),
        ports: Vec::new(),
    };
    for port in ports {
        let (verdicts, best, error) = match port.best_gid_for(remote) {
            Ok(choice) if is_loopback(choice.entry().gid) && !is_loopback(remote) => {
                let why = "a loopback address reaches this host only: RDMA_SOFT_ADDR gives the software device one of this host's own";
                (choice.verdicts().to_vec(), None, Some(why.to_owned()))
            }
            Ok(choice) => (choice.verdicts().to_vec(), Some(choice.entry().index), None),
            Err(GidError::NoneUsable(none)) => {
                let why = none.to_string();
                (none.verdicts, None, why.lines().next().map(str::to_owned))
            }
            Err(error) => return Err(blind(&error)),
        };
        let filled = verdicts
            .iter()
            .filter(|(_, verdict)| *verdict != Verdict::Empty);
        answer.ports.push(PortAnswer {
            port: port.number(),
            best,
            entries: filled.map(entry).collect(),
            error,
        });
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &answer).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write(&mut out, Style::of(&io::stdout()), &answer)?;
    }
    out.flush()?;
    if answer.ports.iter().any(|port| port.best.is_some()) {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}

fn entry((entry, verdict): &(GidEntry, Verdict)) -> Entry {
    Entry {
        index: entry.index,
        gid: entry.gid.to_string(),
        kind: entry.kind.to_string(),
        verdict: verdict.to_string(),
    }
}

fn write(out: &mut impl Write, style: Style, answer: &Answer) -> io::Result<()> {
    writeln!(
        out,
        "{}  to {}",
        style.bold(&answer.device),
        style.bold(&answer.remote)
    )?;
    for port in &answer.ports {
        writeln!(out, "  port {}", port.port)?;
        let width = port
            .entries
            .iter()
            .map(|entry| entry.gid.len())
            .max()
            .unwrap_or(0);
        for entry in &port.entries {
            let chosen = Some(entry.index) == port.best;
            let mark = if chosen { "→" } else { " " };
            let head = format!(
                "  {mark} GID {:>3}  {:<width$}  {:<7}  ",
                entry.index, entry.gid, entry.kind
            );
            super::print::paragraph(out, &head, &entry.verdict, |line| match chosen {
                true => style.green(line).to_string(),
                false => style.dim(line).to_string(),
            })?;
        }
        match (&port.error, port.best) {
            (Some(error), _) => {
                super::print::paragraph(out, "    ", error, |line| style.red(line).to_string())?
            }
            (None, Some(best)) => writeln!(
                out,
                "    set ah_attr.grh.sgid_index to {}",
                style.green(best)
            )?,
            _ => {}
        }
    }
    Ok(())
}
