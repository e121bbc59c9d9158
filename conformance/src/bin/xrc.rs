//! One end of XRC between two software devices: two initiators here, two targets and two SRQs there.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use conformance::Tally;
use conformance::device::{Device, Source};
use conformance::interop::{Control, xrc};

#[derive(Parser)]
#[command(
    about = "One end of XRC between two software devices: two initiators here, two targets and two SRQs there"
)]
#[command(group = ArgGroup::new("role").required(true))]
struct Options {
    /// Wait for the other end at this address, with the targets and the SRQs.
    #[arg(long, group = "role", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Connect to the other end with the initiators, say what is tried, and print the table.
    #[arg(long, group = "role", value_name = "ADDRESS:PORT")]
    connect: Option<SocketAddr>,
    /// The GID to use, by its index at port 1.
    #[arg(long, default_value_t = 0)]
    gid_index: u8,
    /// A path MTU in bytes, may be given several times (connecting end).
    #[arg(long = "mtu", value_name = "BYTES", default_values_t = [256, 1024, 4096])]
    mtus: Vec<u32>,
    /// The wire loses packets (connecting end).
    #[arg(long)]
    lossy: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(tally) => tally.exit_code(),
        Err(error) => {
            eprintln!("xrc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<Tally, String> {
    let device = Device::open(Source::Soft, None)?;
    let tally = match (options.listen, options.connect) {
        (_, Some(peer)) => {
            let plan = Some((&options.mtus[..], options.lossy));
            let tally = xrc::run(Control::connect(peer)?, plan, &device, options.gid_index)?;
            println!("{tally}");
            tally
        }
        (Some(here), None) => xrc::run(Control::listen(here)?, None, &device, options.gid_index)?,
        (None, None) => return Err("neither --listen nor --connect".to_owned()),
    };
    Ok(tally)
}
