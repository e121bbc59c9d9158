//! The conformance suite: runs its checks on the software device, or on a device of libibverbs.
#![deny(unsafe_code)]

use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::rc::Rc;

use clap::Parser;
use conformance::Platform;
use conformance::device::{Device, Source};
use conformance::suite::{self, Arm, DIFFERENCES, Report, Verdict};
use rdma_soft::Profile;

#[derive(Parser)]
#[command(about = "Checks a verbs device, the software device of this process by default")]
struct Options {
    /// Run only checks whose name holds one of these texts.
    names: Vec<String>,
    /// Where the verbs come from.
    #[arg(long, value_enum, default_value_t = Source::Soft)]
    source: Source,
    /// The device of libibverbs [default: the first one].
    #[arg(long)]
    device: Option<String>,
    /// A second device of libibverbs, on the same network as the first: an arm more.
    #[arg(long)]
    peer: Option<String>,
    /// The GID to use on devices of libibverbs, by its index at port 1; may be given several times.
    #[arg(long = "gid-index", value_name = "INDEX", default_values_t = [0])]
    gid_indices: Vec<u8>,
    /// Run only arms whose name holds this text.
    #[arg(long, value_name = "TEXT")]
    arm: Option<String>,
    /// Two IPv6 addresses of this machine for the software device [default: a network namespace is made for them].
    #[arg(long, value_name = "ADDRESS,ADDRESS", value_delimiter = ',')]
    ipv6: Vec<Ipv6Addr>,
    /// Fewer lengths.
    #[arg(long)]
    quick: bool,
    /// Print all results as one JSON object.
    #[arg(long)]
    json: bool,
    /// Print the names of the checks and do nothing.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.source == Source::Soft && options.ipv6.is_empty() && !options.list {
        in_a_namespace();
    }
    match run(&options) {
        Ok(report) => report.tally().exit_code(),
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Two addresses that mean something only in a namespace of their own.
const ADDRESSES: [&str; 2] = ["fd52:646d:6121::1", "fd52:646d:6121::2"];

/// Starts this program again in a network namespace with two IPv6 addresses; returns where that cannot be.
fn in_a_namespace() {
    let [a, b] = ADDRESSES;
    // The last one brings multicast to the loopback interface (rdma_soft::link::UdpLink).
    let set_up = format!(
        "ip link set lo up && ip addr add {a}/128 dev lo && ip addr add {b}/128 dev lo && \
         ip -6 route add local ff00::/8 dev lo table local"
    );
    let unshare = |script: &str, more: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .arg("--net")
            .args(more)
            .args(["sh", "-c", script, "sh"]);
        command
    };
    // As root, or as somebody who may be root in a namespace of users.
    let possible = [&[][..], &["--map-root-user"]].into_iter().find(|more| {
        let tried = unshare(&format!("{set_up} 2>&1"), more).output();
        tried.is_ok_and(|output| output.status.success())
    });
    if let (Some(more), Ok(program)) = (possible, std::env::current_exe()) {
        let error = unshare(&format!("{set_up} && exec \"$@\""), more)
            .arg(program)
            .args(["--ipv6", &ADDRESSES.join(",")])
            .args(std::env::args_os().skip(1))
            .exec();
        eprintln!("unshare: {error}");
    }
}

/// An arm that is to be run.
struct Plan {
    name: String,
    /// One device or two; or why it cannot run.
    devices: Result<Vec<Where>, &'static str>,
    gid_index: u8,
}

/// A device.
#[derive(Clone)]
enum Where {
    /// The software device at this address, or at a free one; with or without shared memory.
    Soft(Option<IpAddr>, bool),
    /// The device of libibverbs of this name, or the first one.
    System(Option<String>),
}

impl Where {
    fn open(&self) -> Result<Rc<Device>, String> {
        match self {
            Where::Soft(address, shm) => soft(*address, *shm),
            Where::System(name) => Device::open(Source::System, name.as_deref()),
        }
    }
}

impl Plan {
    fn arm(&self, quick: bool) -> Result<Arm, String> {
        let places = self.devices.as_ref().map_err(|why| (*why).to_owned())?;
        let devices = places
            .iter()
            .map(Where::open)
            .collect::<Result<Vec<_>, _>>()?;
        let (Some(first), Some(last)) = (devices.first(), devices.last()) else {
            return Err("no device".to_owned());
        };
        let ends = [first, last].map(|device| (device, self.gid_index));
        let strict = matches!(places[..], [Where::Soft(..), ..]);
        Arm::new(&self.name[..], ends, quick, strict).map_err(|e| e.to_string())
    }
}

fn run(options: &Options) -> Result<Report, String> {
    let mut checks = suite::checks(options.quick);
    if !options.names.is_empty() {
        checks.retain(|check| options.names.iter().any(|n| check.name.contains(&n[..])));
    }
    if checks.is_empty() {
        return Err(format!(
            "no check's name holds {}",
            options.names.join(" or ")
        ));
    }
    if options.list {
        checks.iter().for_each(|check| println!("{}", check.name));
        return Ok(Report::default());
    }
    let mut report = Report::default();
    for plan in plans(options)? {
        if options
            .arm
            .as_ref()
            .is_some_and(|arm| !plan.name.contains(&arm[..]))
        {
            continue;
        }
        if let Err(why) = plan.devices {
            report.arm(&plan.name, Verdict::Skipped(why.to_owned()));
            continue;
        }
        match plan.arm(options.quick) {
            Ok(arm) => suite::run(&arm, &checks, DIFFERENCES, &mut report),
            Err(why) => report.arm(&plan.name, Verdict::Failed(why)),
        }
    }
    if options.source == Source::System && !options.json {
        println!("on {}", Platform::here());
    }
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{report}");
        println!("{}", report.tally());
        println!("{}", report.last_line());
    }
    Ok(report)
}

fn plans(options: &Options) -> Result<Vec<Plan>, String> {
    let mut plans = Vec::new();
    let mut plan = |name, devices, gid_index| {
        plans.push(Plan {
            name,
            devices,
            gid_index,
        });
    };
    match options.source {
        Source::Soft => {
            let free = |shm| Where::Soft(None, shm);
            plan("self IPv4".to_owned(), Ok(vec![free(true)]), 0);
            plan("shm IPv4".to_owned(), Ok(vec![free(true), free(true)]), 0);
            plan("udp IPv4".to_owned(), Ok(vec![free(false), free(false)]), 0);
            let six = |address: &Ipv6Addr| Where::Soft(Some(IpAddr::V6(*address)), false);
            let one = options.ipv6.first().unwrap_or(&Ipv6Addr::LOCALHOST);
            plan("self IPv6".to_owned(), Ok(vec![six(one)]), 0);
            let two = match &options.ipv6[..] {
                [a, b] => Ok(vec![six(a), six(b)]),
                _ => Err(
                    "no network namespace with two IPv6 addresses could be made (by unshare and ip), and --ipv6 names none",
                ),
            };
            plan("udp IPv6".to_owned(), two, 0);
        }
        Source::System => {
            let first = Where::System(options.device.clone());
            let device = first.open()?;
            for &index in &options.gid_indices {
                let gid = device.gid(suite::PORT, index).map_err(|e| e.to_string())?;
                let name = format!("{} {gid}", device.name());
                plan(name, Ok(vec![first.clone()]), index);
                if let Some(peer) = &options.peer {
                    let name = format!("{}-{peer} {gid}", device.name());
                    let second = Where::System(Some(peer.clone()));
                    plan(name, Ok(vec![first.clone(), second]), index);
                }
            }
        }
    }
    Ok(plans)
}

/// A software device with the environment's profile, at this address or a free one.
fn soft(address: Option<IpAddr>, shm: bool) -> Result<Rc<Device>, String> {
    let mut profile = Profile::from_env().map_err(|e| e.to_string())?;
    profile.shm &= shm;
    if let Some(address) = address {
        profile.ports[0].addresses = vec![address];
    }
    let name = rdma_soft::add_device(profile).map_err(|e| e.to_string())?;
    Device::open(Source::Soft, Some(&name)).map_err(|error| match rdma_soft::open_error(&name) {
        Some(why) => why.to_string(),
        None => error,
    })
}
