//! One end of a conversation between two devices: every operation of RC, UC and UD, in both directions.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use conformance::Tally;
use conformance::device::{Device, Source};
use conformance::interop::{Control, DIFFERENCES, Difference, Plan, Session};

#[derive(Clone, Parser)]
#[command(
    about = "One end of a conversation between two devices: every operation of RC, UC and UD, in both directions"
)]
#[command(group = ArgGroup::new("role").required(true))]
struct Options {
    /// Wait for the other end at this address.
    #[arg(long, group = "role", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Connect to the other end, say what is tried, and print the table.
    #[arg(long, group = "role", value_name = "ADDRESS:PORT")]
    connect: Option<SocketAddr>,
    /// Where the verbs come from.
    #[arg(long, value_enum)]
    verbs: Source,
    /// The device [default: the first one].
    #[arg(long)]
    device: Option<String>,
    /// The GID to use, by its index at port 1.
    #[arg(long, default_value_t = 0)]
    gid_index: u8,
    /// A path MTU in bytes, may be given several times (connecting end).
    #[arg(long = "mtu", value_name = "BYTES", default_values_t = [256, 512, 1024, 2048, 4096])]
    mtus: Vec<u32>,
    /// Fewer lengths (connecting end).
    #[arg(long)]
    quick: bool,
    /// Bytes of the longest message, at most 1 MiB (connecting end).
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    longest: u32,
    /// The wire loses packets (connecting end).
    #[arg(long)]
    lossy: bool,
    /// The acknowledgement timeout, 4.096 us x 2^n (connecting end).
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    timeout: u8,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(tally) => tally.exit_code(),
        Err(error) => {
            eprintln!("interop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<Tally, String> {
    let device = Device::open(options.verbs, options.device.as_deref())?;
    let (control, plan) = match (options.listen, options.connect) {
        (_, Some(peer)) => {
            let Options {
                mtus,
                quick,
                longest,
                lossy,
                timeout,
                ..
            } = options.clone();
            let longest = longest as usize;
            (
                Control::connect(peer)?,
                Some(Plan {
                    mtus,
                    quick,
                    longest,
                    lossy,
                    timeout,
                }),
            )
        }
        (Some(here), None) => (Control::listen(here)?, None),
        (None, None) => return Err("neither --listen nor --connect".to_owned()),
    };
    let leads = plan.is_some();
    let mut session = Session::new(control, leads, &device, options.gid_index)?;
    if options.verbs == Source::System {
        session.join_group()?;
    }
    let tally = session.run(plan)?;
    drop(session);
    if let (Source::Soft, Some(counters)) = (options.verbs, rdma_soft::counters(device.name())) {
        let all = counters.engine.all().chain(counters.link.all());
        let some: Vec<_> = (all.filter(|&(_, count)| count != 0))
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!("{}: {}", device.name(), some.join(", "));
    }
    if leads {
        for Difference {
            name,
            source,
            reason,
            ..
        } in DIFFERENCES
            .iter()
            .filter(|d| tally.expected != 0 && d.lossy <= options.lossy)
        {
            println!("difference {name}: {reason} ({source})");
        }
        println!("{tally}");
    }
    Ok(tally)
}
