//! Compares a device with the rules of Queue Pairs: every move that can be tried, with every mask one bit away from an
//! allowed one, and with values out of range.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use conformance::Tally;
use conformance::device::{Device, Source};
use conformance::states::{Bench, EINVAL, EOPNOTSUPP, EXCEPTIONS, Outcome, Verdict};
use rdma_core_sys::rules::Transport;

#[derive(Parser)]
#[command(about = "Compares a device with the rules of Queue Pairs")]
struct Options {
    /// Where the verbs come from.
    #[arg(long, value_enum)]
    verbs: Source,
    /// The device [default: the first one].
    #[arg(long)]
    device: Option<String>,
    /// The GID that the Queue Pairs use, by its index at port 1.
    #[arg(long, default_value_t = 0)]
    gid_index: u8,
    /// An iWARP device: only the moves of a QP that need no connection.
    #[arg(long)]
    iwarp: bool,
    /// Write every try to this file, as tab-separated values.
    #[arg(long)]
    tsv: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(tally) => {
            println!("{tally}");
            tally.exit_code()
        }
        Err(error) => {
            eprintln!("state-table: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_xrc(transport: Transport) -> bool {
    matches!(transport, Transport::XrcIni | Transport::XrcTgt)
}

fn run(options: &Options) -> Result<Tally, String> {
    let device = Device::open(options.verbs, options.device.as_deref())?;
    let bench = Bench::new(&device, options.gid_index).map_err(|e| e.to_string())?;
    if options.iwarp {
        println!("on {}, {}", device.name(), bench.platform());
        return bench.bare_moves().map_err(|e| e.to_string());
    }
    let mut lines = Vec::new();
    let mut differences = BTreeMap::<String, u64>::new();
    let mut all = Tally::default();
    println!(
        "transport  tried  agree  exceptions  unexplained  on {}, {}",
        device.name(),
        bench.platform()
    );
    let transports = [
        Transport::Rc,
        Transport::Uc,
        Transport::Ud,
        Transport::XrcIni,
        Transport::XrcTgt,
    ];
    for transport in transports {
        match bench.qp(transport) {
            Ok(_) => {}
            // (EINVAL: the kernel's device before Linux 6.1.)
            Err(error)
                if error.errno == EOPNOTSUPP || (is_xrc(transport) && error.errno == EINVAL) =>
            {
                println!("SKIP {transport}-on-{}: the device has none", device.name());
                all.skipped += 1;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        }
        let tally = bench.run(transport, &mut |outcome: &Outcome| {
            if options.tsv.is_some() {
                lines.push(outcome.tsv());
            }
            match &outcome.verdict {
                Verdict::Agrees => {}
                Verdict::Exception(name) => {
                    *differences.entry((*name).to_owned()).or_default() += 1
                }
                Verdict::StricterByUs(field) => {
                    *differences
                        .entry(format!("stricter-by-us: {field}"))
                        .or_default() += 1;
                }
                Verdict::Unexplained(_) => println!("{}", outcome.tsv()),
            }
        })?;
        let Tally {
            passed,
            failed,
            expected,
            ..
        } = tally;
        let tried = passed + failed + expected;
        println!("{transport:<9}  {tried:>5}  {passed:>5}  {expected:>10}  {failed:>11}");
        all += tally;
    }
    for (name, count) in &differences {
        match EXCEPTIONS.iter().find(|e| e.name == name) {
            Some(e) => println!(
                "exception {name} ({count} times): {} ({})",
                e.reason, e.source
            ),
            None => {
                println!("{name} ({count} times): the device takes what only this library refuses")
            }
        }
    }
    for gone in (bench.exceptions()).filter(|e| !differences.contains_key(e.name)) {
        println!(
            "FAILED exception/{}: it explains nothing any more: take it out",
            gone.name
        );
        all.failed += 1;
    }
    if let Some(path) = &options.tsv {
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            writeln!(file, "{}", Outcome::TSV_HEAD)?;
            lines.iter().try_for_each(|line| writeln!(file, "{line}"))?;
            file.flush()
        };
        write().map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(all)
}
