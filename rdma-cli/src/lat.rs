//! `qp lat`: how long a message takes.

use serde::Serialize;

use crate::failure::Failure;
use crate::perf::args::{Common, World};
use crate::perf::plan::{Figure, PING_PONG_DEPTH, PING_PONG_RECEIVES, Plan};
use crate::perf::plot::{Line, Plot};
use crate::perf::report::{self, Row, digits};
use crate::perf::runner::Measured;
use crate::perf::times::Percentiles;

/// Options of `qp lat`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
qp lat [OPTIONS]
       qp lat [OPTIONS] --listen ADDR
       qp lat [OPTIONS] ADDR")]
#[command(after_help = "\
SEND and WRITE: half of the time from a post to the answer, which the other end
gives with the same operation. READ, cas and faa: the time from the post to the
completion. p50 is the median, which perftest calls typical. Over UC and UD
messages carry a number as immediate data, by which the lost ones are counted.

Examples:
  qp lat                              both ends in this process: the first try
  qp lat -a --plot lat.svg            every size, and a picture
  qp lat --op read -s 64,4K,1M -D 2s  2 seconds for each of three sizes
  qp lat --listen 0.0.0.0:7472        on one host: answers whoever comes
  qp lat -c ud 192.0.2.7:7472         on another

The two ends meet over TCP at ADDR; what is measured is said at the end that
asks. Between two hosts the software device needs an address at each:
RDMA_SOFT_ADDR names it; an adapter is chosen by -d at each.

Status: 0 something was measured, 1 nothing was, or something failed, 2 wrong
options, 130 interrupted before anything was measured.")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    world: World,
}

/// Runs the command.
///
/// # Errors
/// Nothing was measured; the ends did not meet; the device cannot be used.
pub fn run(args: &Args) -> Result<(), Failure> {
    report::run::<Latency>(&args.common, &args.world, |opened, choice| {
        let mut plan = args.common.plan(Figure::Lat, 2, opened, choice)?;
        (plan.tx_depth, plan.rx_depth) = (PING_PONG_DEPTH, PING_PONG_RECEIVES);
        Ok(plan)
    })
}

/// The latency of one size.
#[derive(Serialize)]
struct Latency {
    size: u32,
    /// Round trips that were measured.
    count: u64,
    /// Messages without an answer.
    lost: u64,
    /// Microseconds.
    us: Option<Percentiles>,
}

impl Row for Latency {
    fn head(plan: &Plan) -> String {
        let lost = if plan.numbers() { "   lost" } else { "" };
        format!(
            "{:>9}{:>9}{lost}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "bytes", "count", "min", "p50", "avg", "p99", "p99.9", "max"
        )
    }

    fn of(measured: &Measured, plan: &Plan) -> Latency {
        let parts = if plan.op.returns() { 1 } else { 2 };
        let times = measured.times.as_ref();
        Latency {
            size: measured.size,
            count: times.map_or(0, |times| times.len()),
            lost: measured.lost,
            us: times.and_then(|times| times.percentiles(parts)),
        }
    }

    fn line(&self, plan: &Plan) -> String {
        let mut line = format!("{:>9}{:>9}", self.size, self.count);
        if plan.numbers() {
            line.push_str(&format!("{:>7}", self.lost));
        }
        if let Some(us) = self.us {
            for time in [us.min, us.p50, us.avg, us.p99, us.p99_9, us.max] {
                line.push_str(&format!("{:>9}", digits(time)));
            }
        }
        line
    }

    fn is_something(&self) -> bool {
        self.us.is_some()
    }

    fn plot(rows: &[Latency], plan: &Plan) -> Plot {
        let line = |name, figure: fn(&Percentiles) -> f64| {
            let measured = rows
                .iter()
                .filter_map(|row| Some((row.size, row.us.as_ref()?)));
            Line {
                name,
                points: measured.map(|(size, us)| (size, figure(us))).collect(),
            }
        };
        Plot {
            title: plan.title(),
            y: "µs",
            lines: vec![
                line("min", |us| us.min),
                line("p50", |us| us.p50),
                line("p99", |us| us.p99),
                line("p99.9", |us| us.p99_9),
            ],
        }
    }
}
