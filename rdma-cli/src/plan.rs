//! `qp plan`: how many Queue Pairs and how much memory a job needs, by transport.
//!
//! All arithmetic is [`rdma_xrc::plan`]'s; here is how it is printed.

use std::io::{self, Write};

use clap::ValueEnum;
use indicatif::HumanCount;
use rdma_xrc::plan::{Amounts, BreakEven, Depths, IntraNode, Needs, Plan, QP_NUMBERS, plan};
use serde::Serialize;

use crate::failure::Failure;
use crate::term::{Style, counted};
use crate::units::parse_size;

/// Options of `qp plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each process is to reach every other one. RC takes a Queue Pair for each peer;
with SRQs all of a process share their receives. XRC takes, for each process, an
initiator (it sends) to each node, and there a target (it receives). UD takes
one for all; `reliable` is this library's acknowledgement and order above it.

Example:
  qp plan --nodes 10 --per-node 10 --intra-node shm --buffer 8K")]
pub struct Args {
    /// Nodes of the job
    #[arg(long, value_name = "M")]
    nodes: u32,
    /// Processes on each node
    #[arg(long, value_name = "P")]
    per_node: u32,
    /// Pairs on one node: over the fabric as all others, or left to shared memory
    #[arg(long, value_name = "WAY", default_value = "fabric")]
    intra_node: Way,
    /// Sends that a QP may have outstanding
    #[arg(long, value_name = "REQUESTS", default_value_t = Depths::default().send)]
    send_depth: u32,
    /// Receives of a QP with a receive queue of its own (RC)
    #[arg(long, value_name = "REQUESTS", default_value_t = Depths::default().recv)]
    recv_depth: u32,
    /// Receives of a shared receive queue; of UD, receives and sends
    #[arg(long, value_name = "REQUESTS", default_value_t = Depths::default().srq)]
    srq_depth: u32,
    /// Bytes of the buffer of each receive, such as 4096 or 4K
    #[arg(long, value_name = "BYTES", default_value_t = Depths::default().buffer, value_parser = parse_size)]
    buffer: u32,
    /// Print one JSON object, for machines
    #[arg(long)]
    pub json: bool,
}

/// What becomes of the pairs on one node, as the command line names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    Fabric,
    Shm,
}

/// The size to which every job is extrapolated.
const LARGE: u32 = 100_000;

/// Runs the command.
///
/// # Errors
/// The numbers make no job, or the output cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let depths = Depths {
        send: args.send_depth,
        recv: args.recv_depth,
        srq: args.srq_depth,
        buffer: args.buffer,
    };
    let intra_node = match args.intra_node {
        Way::Fabric => IntraNode::Fabric,
        Way::Shm => IntraNode::Shm,
    };
    let of = |nodes| plan(nodes, args.per_node, depths, intra_node);
    let refused = |error: rdma_xrc::plan::PlanError| Failure::Usage(error.to_string());
    let asked = of(args.nodes).map_err(refused)?;
    let told = Told {
        break_even: asked.break_even(),
        at_100000: of(LARGE.div_ceil(args.per_node)).ok(),
        asked,
    };
    let mut out = io::stdout().lock();
    let written = if args.json {
        write_json(&mut out, &told)
    } else {
        write_text(&mut out, &told)
    };
    Ok(written.and_then(|()| out.flush())?)
}

/// Everything that is printed; as JSON it is one object.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    asked: Plan,
    break_even: BreakEven,
    /// The same for the fewest nodes that have 100,000 processes; `None` if that is more than can be counted.
    at_100000: Option<Plan>,
}

fn write_json(out: &mut impl Write, told: &Told) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, told)?;
    writeln!(out)
}

/// The rows of a table: a name, and what it is of each transport.
type Row = (&'static str, fn(&Plan) -> &Needs, fn(&Amounts) -> u64);

const QPS: [Row; 6] = [
    ("RC", |p| &p.rc, |a| a.qps),
    ("RC + SRQ", |p| &p.rc_srq, |a| a.qps),
    ("XRC initiators", |p| &p.xrc, |a| a.initiators.unwrap_or(0)),
    ("XRC targets", |p| &p.xrc, |a| a.targets.unwrap_or(0)),
    ("UD", |p| &p.ud, |a| a.qps),
    ("UD, reliable", |p| &p.datagrams, |a| a.qps),
];

/// The rows of a table with one number per transport.
fn rows(of: fn(&Amounts) -> u64) -> [Row; 5] {
    [
        ("RC", |p| &p.rc, of),
        ("RC + SRQ", |p| &p.rc_srq, of),
        ("XRC", |p| &p.xrc, of),
        ("UD", |p| &p.ud, of),
        ("UD, reliable", |p| &p.datagrams, of),
    ]
}

fn write_text(out: &mut impl Write, told: &Told) -> io::Result<()> {
    let style = Style::of(&io::stdout());
    let Plan {
        nodes,
        per_node,
        processes,
        intra_node,
        depths,
        ..
    } = &told.asked;
    writeln!(
        out,
        "{}",
        style.bold(format!(
            "{}: {} of {}",
            counted(*processes, "process", "processes"),
            counted((*nodes).into(), "node", "nodes"),
            grouped((*per_node).into())
        ))
    )?;
    writeln!(out, "pairs on one node: {intra_node}")?;
    writeln!(
        out,
        "depths: {}, {}, {}, of {}",
        counted(depths.send.into(), "send", "sends"),
        counted(depths.recv.into(), "receive", "receives"),
        counted(depths.srq.into(), "shared one", "shared ones"),
        counted(depths.buffer.into(), "byte", "bytes")
    )?;
    table(out, style, told, "Queue Pairs", &QPS, grouped)?;
    table(out, style, told, "Receives", &rows(|a| a.receives), grouped)?;
    let memory = rows(|a| a.memory_bytes);
    table(out, style, told, "Memory", &memory, binary)?;
    writeln!(out)?;
    for line in remarks(told) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn table(
    out: &mut impl Write,
    style: Style,
    told: &Told,
    title: &str,
    rows: &[Row],
    show: fn(u64) -> String,
) -> io::Result<()> {
    writeln!(
        out,
        "\n{}{}",
        style.bold(format_args!("{title:<16}")),
        style.dim(format_args!(
            "{:>14}{:>14}{:>16}{:>18}",
            "per process", "per node", "in all", "at 100,000"
        ))
    )?;
    for (name, needs, of) in rows {
        let asked = needs(&told.asked);
        let large = told.at_100000.as_ref().map(|plan| of(&needs(plan).job));
        write!(out, "{}", style.cyan(format_args!("{name:<16}")))?;
        for (width, number) in [
            (14, Some(of(&asked.per_process))),
            (14, Some(of(&asked.per_node))),
            (16, Some(of(&asked.job))),
            (18, large),
        ] {
            let text = match number {
                None => "-".to_owned(),
                Some(number) if show(number).len() < width => show(number),
                Some(number) => format!("{:.2e}", number as f64),
            };
            write!(out, "{text:>width$}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// What the numbers mean, a sentence each.
fn remarks(told: &Told) -> Vec<String> {
    let mut remarks = Vec::new();
    let BreakEven {
        xrc_as_many_qps_at,
        xrc_fewer_qps_from,
        xrc_less_memory_from,
        srq_less_memory_from,
        ..
    } = told.break_even;
    let from = |at: Option<u32>| match at {
        Some(at) => format!("from {at} on"),
        None => "never".to_owned(),
    };
    remarks.push("By processes per node, on as many nodes:".to_owned());
    remarks.push(match xrc_as_many_qps_at {
        Some(at) => format!(
            "  XRC has as many QPs as RC at {at}, and fewer {}",
            from(xrc_fewer_qps_from)
        ),
        None => format!("  XRC has fewer QPs than RC: {}", from(xrc_fewer_qps_from)),
    });
    remarks.push(format!(
        "  XRC takes less memory than RC + SRQ: {}",
        from(xrc_less_memory_from)
    ));
    remarks.push(format!(
        "  RC + SRQ takes less memory than RC: {}",
        from(srq_less_memory_from)
    ));
    let large = told.at_100000.iter();
    for (name, needs) in large.flat_map(|plan| [("RC", plan.rc), ("XRC", plan.xrc)]) {
        let qps = needs.per_node.qps;
        if qps > QP_NUMBERS {
            remarks.push(format!(
                "At 100,000 processes {name} has {} QPs on a node, more than 24 bits number",
                grouped(qps)
            ));
        }
    }
    remarks
}

/// A number with its digits in groups of three.
fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Bytes in the largest binary unit of which there is at least one.
fn binary(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = bytes as f64 / 1024.0;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", units[unit])
}
