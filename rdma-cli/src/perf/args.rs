//! Options that `qp lat` and `qp bw` have in common.

use std::path::PathBuf;
use std::time::Duration;

use rdma_soft::link::parse_duration;

use super::end::datagram_limit;
use super::plan::{Figure, Plan};
use super::{Op, Transport};
use crate::device::{DeviceArgs, DeviceChoice, FaultArgs, Opened, TimingArgs};
use crate::failure::Failure;
use crate::units::parse_size;

/// What is measured, and where.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// HOST:PORT of the end that answers; both ends are in this process if there is none
    #[arg(value_name = "ADDR")]
    pub address: Option<String>,
    /// Answer at this HOST:PORT whoever comes with `qp ping`, `qp lat` or `qp bw`; port 0 takes a free one
    #[arg(long, value_name = "ADDR", conflicts_with_all = [
        "address", "transport", "op", "size", "all", "iterations", "duration", "warmup", "inline", "events", "check", "wait",
        "json", "plot", "timeout", "retry_cnt",
    ])]
    pub listen: Option<String>,
    /// With --listen: answer one peer and end
    #[arg(long, requires = "listen")]
    pub once: bool,
    /// rc, uc, ud or xrc
    #[arg(
        short = 'c',
        long,
        value_enum,
        default_value = "rc",
        ignore_case = true,
        hide_possible_values = true
    )]
    transport: Transport,
    /// send, write, read, cas or faa
    #[arg(
        short,
        long,
        value_enum,
        default_value = "send",
        ignore_case = true,
        hide_possible_values = true
    )]
    op: Op,
    /// Bytes of a message, such as 64 or 4K; several after commas
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = parse_size)]
    size: Vec<u32>,
    /// All powers of two from 2 bytes to 8 MiB, or to the path MTU
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Requests of each size; usually 1000, or 5000 for the bandwidth of SEND and WRITE, fewer of large ones
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    iterations: Option<u64>,
    /// Instead: go on for so long with each size; a number without unit means seconds
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Requests before those that count; a tenth of them if not given
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Send messages of up to so many bytes inline
    #[arg(
        short = 'I',
        long,
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true
    )]
    inline: u32,
    /// Sleep until there are completions, instead of polling
    #[arg(short, long)]
    events: bool,
    /// Compare every byte that arrives with what was sent; in rounds, so it takes longer
    #[arg(long)]
    check: bool,
    /// UC and UD: how long to wait for a message before it counts as lost
    #[arg(short = 'W', long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    wait: Duration,
    /// Print one JSON document, for machines: sizes are bytes, and other fields name their unit
    #[arg(long)]
    pub json: bool,
    /// Draw the figures over the sizes
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// What the device is to be like.
#[derive(Debug, clap::Args)]
pub struct World {
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub timing: TimingArgs,
    #[command(flatten)]
    pub faults: FaultArgs,
}

impl Common {
    /// The plan that these options make; `usual` is the size where none is given.
    ///
    /// # Errors
    /// They do not go together.
    pub fn plan(
        &self,
        figure: Figure,
        usual: u32,
        opened: &Opened,
        choice: &DeviceChoice,
    ) -> Result<Plan, Failure> {
        let most = datagram_limit(opened, self.transport, choice.mtu)?;
        let sizes = if self.op.is_atomic() && self.size.is_empty() && !self.all {
            vec![8]
        } else if self.all {
            let powers = (1..=23).map(|power| 1 << power);
            powers
                .filter(|size| most.is_none_or(|most| *size <= most))
                .collect()
        } else if self.size.is_empty() {
            vec![most.map_or(usual, |most| usual.min(most))]
        } else {
            self.size.clone()
        };
        Ok(Plan {
            figure,
            transport: self.transport,
            op: self.op,
            sizes,
            iterations: self.iterations,
            duration: self.duration,
            warmup: self.warmup,
            tx_depth: 1,
            rx_depth: 1,
            post_list: 1,
            cq_mod: None,
            qps: 1,
            bidirectional: false,
            inline: self.inline,
            events: self.events,
            check: self.check,
            wait: self.wait,
        })
    }

    /// What can be refused before a device is opened.
    ///
    /// # Errors
    /// The transport has no such operation.
    pub fn check(&self) -> Result<(), Failure> {
        match self.transport.lacks(self.op) {
            Some(lacking) => Err(Failure::Usage(lacking)),
            None => Ok(()),
        }
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse_duration(text).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_is_seconds() {
        assert_eq!(parse_seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_seconds("150ms"), Ok(Duration::from_millis(150)));
    }
}
