//! `qp bw`: how much goes through.

use serde::Serialize;

use crate::failure::Failure;
use crate::perf::args::{Common, World};
use crate::perf::plan::{Figure, Plan};
use crate::perf::plot::{Line, Plot};
use crate::perf::report::{self, Row, digits, short};
use crate::perf::runner::Measured;

/// Options of `qp bw`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
qp bw [OPTIONS]
       qp bw [OPTIONS] --listen ADDR
       qp bw [OPTIONS] ADDR")]
#[command(after_help = "\
What counts is what arrived, in the time from the first post to the last
completion. The peak is the best stretch of 10 ms. MiB are 1048576 bytes, Gb are
10^9 bits. Over UC and UD messages carry a number as immediate data, by which
the lost ones are counted.

Examples:
  qp bw                               both ends in this process: the first try
  qp bw -a --op write --plot bw.svg   every size, and a picture
  qp bw -s 64 -l 16 -q 4 -D 5         small messages by 4 Queue Pairs, 5 s
  qp bw -c ud --check -n 1000         what is lost; is the rest right?
  qp bw --listen 0.0.0.0:7472         on one host: answers whoever comes
  qp bw -b 192.0.2.7:7472             on another: both ways at the same time

The two ends meet over TCP at ADDR; what is measured is said at the end that
asks. Between two hosts the software device needs an address at each:
RDMA_SOFT_ADDR names it; an adapter is chosen by -d at each.

Status: 0 something was measured, 1 nothing was, or something failed, 2 wrong
options, 130 interrupted before anything was measured.")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Requests that each Queue Pair has under way
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 128,
        conflicts_with = "listen"
    )]
    tx_depth: u32,
    /// Receives that each Queue Pair has posted
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 512,
        conflicts_with = "listen"
    )]
    rx_depth: u32,
    /// Requests that are posted with one call
    #[arg(
        short = 'l',
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "listen"
    )]
    post_list: u32,
    /// One request of so many has a completion; if not given, each above 8 KiB, and of smaller ones a quarter of the depth
    #[arg(short = 'Q', long, value_name = "N", conflicts_with = "listen")]
    cq_mod: Option<u32>,
    /// Queue Pairs
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "listen"
    )]
    qp: u32,
    /// Both ends send at the same time; figures are the sum of both
    #[arg(short, long, conflicts_with = "listen")]
    bidirectional: bool,
    #[command(flatten)]
    world: World,
}

/// Runs the command.
///
/// # Errors
/// Nothing was measured; the ends did not meet; the device cannot be used.
pub fn run(args: &Args) -> Result<(), Failure> {
    report::run::<Bandwidth>(&args.common, &args.world, |opened, choice| {
        Ok(Plan {
            tx_depth: args.tx_depth,
            rx_depth: args.rx_depth,
            post_list: args.post_list,
            cq_mod: args.cq_mod,
            qps: args.qp,
            bidirectional: args.bidirectional,
            ..args.common.plan(Figure::Bw, 64 << 10, opened, choice)?
        })
    })
}

/// The bandwidth of one size.
#[derive(Serialize)]
struct Bandwidth {
    size: u32,
    /// Messages that arrived.
    count: u64,
    /// Messages that did not.
    lost: u64,
    /// From the first post to the last completion.
    seconds: f64,
    bytes_per_second: f64,
    /// Within 10 ms.
    peak_bytes_per_second: f64,
    messages_per_second: f64,
}

impl Bandwidth {
    fn mib(bytes: f64) -> f64 {
        bytes / f64::from(1 << 20)
    }
}

impl Row for Bandwidth {
    fn head(plan: &Plan) -> String {
        let lost = if plan.numbers() { "      lost" } else { "" };
        format!(
            "{:>9}{:>10}{lost}{:>11}{:>12}{:>10}{:>14}",
            "bytes", "count", "MiB/s", "peak MiB/s", "Gb/s", "messages/s"
        )
    }

    fn of(measured: &Measured, plan: &Plan) -> Bandwidth {
        let [mine, theirs] = &measured.outcomes;
        let (mut count, mut rate) = (0, 0.0);
        for (from, to) in [(mine, theirs), (theirs, mine)] {
            let arrived = if plan.tells() { to.arrived } else { from.sent };
            if from.sent > 0 {
                count += arrived;
                rate += arrived as f64 / from.seconds.max(1e-9);
            }
        }
        let size = f64::from(measured.size);
        Bandwidth {
            size: measured.size,
            count,
            lost: measured.lost,
            seconds: mine.seconds.max(theirs.seconds),
            bytes_per_second: rate * size,
            peak_bytes_per_second: (mine.peak + theirs.peak) * size,
            messages_per_second: rate,
        }
    }

    fn line(&self, plan: &Plan) -> String {
        let mut line = format!("{:>9}{:>10}", self.size, self.count);
        if plan.numbers() {
            line.push_str(&format!("{:>10}", self.lost));
        }
        line.push_str(&format!(
            "{:>11}{:>12}{:>10}{:>14}",
            digits(Bandwidth::mib(self.bytes_per_second)),
            digits(Bandwidth::mib(self.peak_bytes_per_second)),
            digits(self.bytes_per_second * 8.0 / 1e9),
            short(self.messages_per_second)
        ));
        line
    }

    fn is_something(&self) -> bool {
        self.count > 0
    }

    fn plot(rows: &[Bandwidth], plan: &Plan) -> Plot {
        let line = |name, figure: fn(&Bandwidth) -> f64| Line {
            name,
            points: (rows.iter().filter(|row| row.count > 0))
                .map(|row| (row.size, Bandwidth::mib(figure(row))))
                .collect(),
        };
        Plot {
            title: plan.title(),
            y: "MiB/s",
            lines: vec![
                line("average", |row| row.bytes_per_second),
                line("peak", |row| row.peak_bytes_per_second),
            ],
        }
    }
}
