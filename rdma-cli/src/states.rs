//! `qp states`: which transitions each transport has, and which attributes each one needs and allows.
//!
//! Nothing here knows the rules: everything printed is an answer of [`rdma_core_sys::rules::check`], asked about every bit
//! of the attribute mask ([`ask::ask`]).

mod ask;
mod drawn;
mod text;

use std::io::{self, Write};

use clap::ValueEnum;
use rdma_core_sys::ibv_qp_attr_mask;
use rdma_core_sys::rules::{STATES, Transport};
use serde::Serialize;

use crate::failure::Failure;
use ask::{Transition, ask};

/// Options of `qp states`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  qp states --transport rc                  the moves of RC, with their needs
  qp states --transport ud --svg > ud.svg   the same, drawn
  qp states --tsv | grep 'INIT.RTR'         one line per move")]
pub struct Args {
    /// Transports to show; all that a program usually creates, if none is named
    #[arg(long = "transport", value_name = "TRANSPORT", ignore_case = true)]
    transports: Vec<Named>,
    /// One tab-separated line per transition: transport, from, to, required, optional
    #[arg(long, conflicts_with = "json")]
    tsv: bool,
    /// Print one JSON array, for machines: an object per transition
    #[arg(long)]
    json: bool,
    /// A diagram of each transport, as an SVG image
    #[arg(long, conflicts_with_all = ["tsv", "json"])]
    svg: bool,
    /// A diagram of each transport, in the language of Mermaid
    #[arg(long, conflicts_with_all = ["tsv", "json", "svg"])]
    mermaid: bool,
}

/// The transports that are shown when none is named.
const USUAL: [Transport; 5] = [
    Transport::Rc,
    Transport::Uc,
    Transport::Ud,
    Transport::XrcIni,
    Transport::XrcTgt,
];

/// A transport as the command line names it; `XRC` is both ends of it, as for `qp ping`.
#[derive(Clone, Copy, Debug)]
enum Named {
    One(Transport),
    Xrc,
}

impl Named {
    fn transports(&self) -> &[Transport] {
        match self {
            Named::One(transport) => std::slice::from_ref(transport),
            Named::Xrc => &[Transport::XrcIni, Transport::XrcTgt],
        }
    }
}

impl ValueEnum for Named {
    fn value_variants<'a>() -> &'a [Named] {
        const ALL: [Named; Transport::ALL.len() + 1] = {
            let mut all = [Named::Xrc; Transport::ALL.len() + 1];
            let mut i = 0;
            while i < Transport::ALL.len() {
                all[i] = Named::One(Transport::ALL[i]);
                i += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self {
            Named::One(transport) => transport.name(),
            Named::Xrc => "XRC",
        }))
    }
}

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let named: Vec<Transport> = (args.transports.iter())
        .flat_map(Named::transports)
        .copied()
        .collect();
    let transports = if named.is_empty() {
        &USUAL[..]
    } else {
        &named[..]
    };
    let mut out = io::stdout().lock();
    let written = if args.tsv {
        write_tsv(&mut out, transports)
    } else if args.json {
        write_json(&mut out, transports)
    } else if args.svg {
        drawn::svg(&mut out, transports)
    } else if args.mermaid {
        drawn::mermaid(&mut out, transports)
    } else {
        text::write(&mut out, transports)
    };
    Ok(written.and_then(|()| out.flush())?)
}

/// Every transition of `transport`, in the order of the states.
fn transitions(transport: Transport) -> impl Iterator<Item = Transition> {
    STATES
        .into_iter()
        .flat_map(|from| STATES.into_iter().map(move |to| (from, to)))
        .filter_map(move |(from, to)| ask(transport, from, to))
}

/// Names of the bits without their prefix; `None` is a bit that verbs.h does not name, as a number.
fn names(mask: ibv_qp_attr_mask) -> Vec<String> {
    let mut known = mask.iter_names();
    let mut names: Vec<String> = (&mut known)
        .map(|(name, _)| name.strip_prefix("IBV_QP_").unwrap_or(name).to_owned())
        .collect();
    let unknown = known.remaining();
    if !unknown.is_empty() {
        names.push(format!("{:#x}", unknown.bits()));
    }
    names
}

fn write_tsv(out: &mut impl Write, transports: &[Transport]) -> io::Result<()> {
    let field = |mask: ibv_qp_attr_mask| match names(mask) {
        names if names.is_empty() => "-".to_owned(),
        names => names.join("|"),
    };
    writeln!(out, "transport\tfrom\tto\trequired\toptional")?;
    for &transport in transports {
        for Transition {
            from,
            to,
            required,
            optional,
        } in transitions(transport)
        {
            writeln!(
                out,
                "{transport}\t{from}\t{to}\t{}\t{}",
                field(required),
                field(optional)
            )?;
        }
    }
    Ok(())
}

/// One transition, as JSON has it.
#[derive(Serialize)]
struct Row {
    transport: &'static str,
    from: String,
    to: String,
    required: Vec<String>,
    optional: Vec<String>,
}

fn write_json(out: &mut impl Write, transports: &[Transport]) -> io::Result<()> {
    let rows: Vec<Row> = transports
        .iter()
        .flat_map(|&transport| {
            transitions(transport).map(move |t| Row {
                transport: transport.name(),
                from: t.from.to_string(),
                to: t.to.to_string(),
                required: names(t.required),
                optional: names(t.optional),
            })
        })
        .collect();
    serde_json::to_writer_pretty(&mut *out, &rows)?;
    writeln!(out)
}
