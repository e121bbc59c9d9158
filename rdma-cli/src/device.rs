//! Which device a command uses, and how: the options, and opening it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rdma_core_sys::Verbs;
use rdma_qp::exchange::tcp;
use rdma_qp::{AckTimeout, Device, Gid, GidEntry, OpenError, PathMtu, RetryCount, Timing};
use rdma_soft::Profile;
use rdma_soft::link::{Faults, Probability, parse_duration};

use crate::devices::{self, NO_RDMA};
use crate::failure::{Failure, told};
use crate::term::hung;

/// Which device, and how to use it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    /// An RDMA device as `qp devices` names it, instead of the software device
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Its port, counted from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    port: u8,
    /// The GID table entry to use, instead of the best one
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u32>,
    /// Largest path MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// Record every frame that the software device sends and receives
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// When to give up.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Retry budget, (retry_cnt + 1) x 4.096 us x 2^timeout")]
pub struct TimingArgs {
    /// Exponent of the acknowledgement timeout, 0 (for ever) to 31
    #[arg(long, value_name = "EXP", default_value_t = TIMEOUT)]
    timeout: u8,
    /// Repetitions without an acknowledgement, 0 to 7
    #[arg(long, value_name = "N", default_value_t = Timing::default().retry_cnt.get())]
    retry_cnt: u8,
}

/// 4.096 us x 2^15 = 134 ms; with 6 repetitions a dead peer is an error after 0.94 s.
const TIMEOUT: u8 = 15;

/// What the software device does wrong on purpose.
#[derive(Debug, Clone, clap::Args)]
#[command(
    next_help_heading = "Faults of the software device, at both ends that this command starts"
)]
pub struct FaultArgs {
    /// Lose so many frames, such as 1%
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0",
        hide_default_value = true
    )]
    loss: Probability,
    /// Deliver so many frames twice
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0",
        hide_default_value = true
    )]
    duplicate: Probability,
    /// Deliver so many frames late, behind others
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0",
        hide_default_value = true
    )]
    reorder: Probability,
    /// Flip a bit in so many frames
    #[arg(
        long,
        value_name = "RATE",
        default_value = "0",
        hide_default_value = true
    )]
    corrupt: Probability,
    /// Hold every frame back for so long, such as 200us
    #[arg(long, value_name = "TIME", default_value = "0", hide_default_value = true, value_parser = parse_duration)]
    delay: Duration,
    /// Hold every frame back for up to so much longer
    #[arg(long, value_name = "TIME", default_value = "0", hide_default_value = true, value_parser = parse_duration)]
    jitter: Duration,
    /// Seed of the faults: the same seed makes the same draws; random if not given, and printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().ok().and_then(PathMtu::from_bytes);
    bytes.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Which device, and how to use it.
#[derive(Debug, Clone)]
pub struct DeviceChoice {
    /// A device of rdma-core; `None` is the software device.
    pub name: Option<String>,
    /// Port, counted from 1.
    pub port: u8,
    /// GID table entry; `None` is the best one.
    pub gid_index: Option<u32>,
    /// Largest path MTU.
    pub mtu: Option<PathMtu>,
    /// Capture file.
    pub pcap: Option<PathBuf>,
    /// Faults; `None` leaves them as the environment says.
    pub faults: Option<Faults>,
    /// It is for the second of two ends that one command starts. What is said of one software device is said of the first
    /// one's: addresses, GIDs and seed, and the capture, which has both directions.
    pub second: bool,
}

impl DeviceArgs {
    /// What the options amount to.
    ///
    /// # Errors
    /// Options that do not go together.
    pub fn choice(&self, faults: &FaultArgs) -> Result<DeviceChoice, Failure> {
        let faults = faults.check()?;
        if let (Some(name), true) = (&self.device, faults.is_some() || self.pcap.is_some()) {
            let why = format!(
                "faults and --pcap are of the software device: leave them out, or leave out --device {name}"
            );
            return Err(Failure::Usage(why));
        }
        Ok(DeviceChoice {
            name: self.device.clone(),
            port: self.port,
            gid_index: self.gid_index,
            mtu: self.mtu,
            pcap: self.pcap.clone(),
            faults,
            second: false,
        })
    }
}

impl TimingArgs {
    /// What the options amount to.
    ///
    /// # Errors
    /// A value out of its range.
    pub fn check(&self) -> Result<Timing, Failure> {
        let wrong = |error: rdma_qp::OutOfRange| Failure::Usage(error.to_string());
        Ok(Timing {
            timeout: AckTimeout::from_code(self.timeout).map_err(wrong)?,
            retry_cnt: RetryCount::new(self.retry_cnt).map_err(wrong)?,
            ..Timing::default()
        })
    }
}

impl FaultArgs {
    /// What the options amount to.
    ///
    /// # Errors
    /// A seed for nothing.
    pub fn check(&self) -> Result<Option<Faults>, Failure> {
        let FaultArgs {
            loss,
            duplicate,
            reorder,
            corrupt,
            delay,
            jitter,
            seed,
        } = *self;
        let faults = Faults {
            loss,
            duplicate,
            reorder,
            corrupt,
            delay,
            jitter,
            seed,
        };
        match (faults.is_none(), seed) {
            (true, Some(_)) => Err(Failure::Usage(
                "--seed without any fault has no effect: give --loss or another one".into(),
            )),
            (true, None) => Ok(None),
            (false, Some(_)) => Ok(Some(faults)),
            (false, None) => Ok(Some(Faults {
                seed: Some(random_seed()?),
                ..faults
            })),
        }
    }
}

/// A seed that a person can type again.
///
/// # Errors
/// The system has no random bytes.
pub fn random_seed() -> Result<u64, Failure> {
    let mut bytes = [0u8; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::told(format!("no random seed: {error}")))?;
    Ok(u32::from_ne_bytes(bytes).into())
}

/// A device that is open, and the GID that it is used by.
#[derive(Debug)]
pub struct Opened {
    /// The device.
    pub device: Device,
    /// The GID that it is reached by.
    pub gid: GidEntry,
    /// Faults of its link, if there are any.
    pub faults: Option<Faults>,
}

/// Faults, as people read them: in lines of their own.
pub fn shown(faults: &Faults) -> Vec<String> {
    hung("  faults ", &faults.to_string().replace(',', ", "))
}

/// Opens the device.
///
/// # Errors
/// It is not there or cannot be used, or it has no GID that peers can reach.
pub fn open(choice: &DeviceChoice) -> Result<Opened, Failure> {
    let (device, faults) = match &choice.name {
        Some(name) => (open_real(name)?, None),
        None => open_soft(choice)?,
    };
    let port = device.port(choice.port).map_err(told)?;
    let info = port.query().map_err(told)?;
    if !info.is_active() {
        let (name, state) = (device.name(), devices::state(&info));
        return Err(Failure::told(format!(
            "{name}/{} is {state}, not active: choose another --port, or bring the link up",
            choice.port
        )));
    }
    // The index that was asked for is one of the first one's table.
    let own_table = choice.second && choice.name.is_none();
    let gid = match choice.gid_index {
        Some(index) if !own_table => port.gid(index).map_err(told)?,
        _ => port.best_gid().map_err(told)?.entry(),
    };
    Ok(Opened {
        device,
        gid,
        faults,
    })
}

/// Says whether two ends that have met over TCP can reach one another by their GIDs: loopback addresses reach nobody beyond the
/// own host (and network namespace), where an address that one end is seen by is that of the other, too.
///
/// # Errors
/// They cannot.
pub fn check_reach(here: Gid, there: Gid, met: &tcp::Channel) -> Result<(), Failure> {
    let near = met.local_addr().map_err(told)?.ip();
    reach(here, there, near, met.peer_addr().ip())
}

fn reach(here: Gid, there: Gid, near: IpAddr, far: IpAddr) -> Result<(), Failure> {
    let (near, far) = (near.to_canonical(), far.to_canonical());
    if far.is_loopback() || far == near {
        return Ok(());
    }
    match (is_loopback(here), is_loopback(there)) {
        (false, false) => Ok(()),
        (true, _) => Err(Failure::told(format!(
            "the device's address here, {here}, is a loopback address, and the other end is on another host, {far}: name an \
             address of this host's in RDMA_SOFT_ADDR, such as {near}, or choose an adapter by --device"
        ))),
        (false, true) => Err(Failure::told(format!(
            "the device's address of the other end, {there}, is a loopback address there: name an address of that host's in its \
             RDMA_SOFT_ADDR, such as {far}, or choose an adapter by its --device"
        ))),
    }
}

/// Whether it is an address that reaches this host only.
pub fn is_loopback(gid: Gid) -> bool {
    gid.ip().to_canonical().is_loopback()
}

/// Opens a device of rdma-core.
///
/// # Errors
/// There is no such device, or no rdma-core.
pub fn open_real(name: &str) -> Result<Device, Failure> {
    let verbs = Verbs::open().map_err(|error| {
        Failure::told(format!(
            "{error}; without --device the software device is used, which needs no library"
        ))
    })?;
    Device::open(&verbs, name).map_err(|error| match error {
        OpenError::List(errno) | OpenError::Refused { source: errno, .. } if errno.raw_os_error() == NO_RDMA => {
            Failure::told(format!("there is no device {name}: this kernel has no RDMA; load the adapter's driver and ib_uverbs"))
        }
        error => told(error),
    })
}

/// Opens the software device; gives the faults of its link too.
fn open_soft(choice: &DeviceChoice) -> Result<(Device, Option<Faults>), Failure> {
    let mut profile = Profile::from_env().map_err(told)?;
    if let Some(faults) = &choice.faults {
        profile.faults = faults.clone();
    }
    if let Some(path) = &choice.pcap {
        profile.pcap = Some(path.clone());
    }
    if choice.second {
        (profile.pcap, profile.seed) = (None, None);
        for port in &mut profile.ports {
            (port.addresses, port.gids) = (Vec::new(), None);
        }
    }
    let faulty = !profile.faults.is_none();
    if faulty && profile.faults.seed.is_none() {
        profile.faults.seed = Some(random_seed()?);
    }
    let faults = faulty.then(|| profile.faults.clone());
    let name = rdma_soft::add_device(profile).map_err(told)?;
    let opened = Device::open(rdma_soft::verbs(), &name).map_err(|error| {
        match (&error, rdma_soft::open_error(&name)) {
            // The number alone says little; the device says more.
            (OpenError::Refused { .. }, Some(why)) => {
                Failure::told(format!("the software device cannot start: {why}"))
            }
            _ => told(error),
        }
    });
    Ok((opened?, faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_reach_only_who_is_on_this_host() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let gid = |text: &str| Gid::from(ip(text));
        let [node, other, lan] = ["127.3.4.5", "127.6.7.8", "10.0.0.1"].map(gid);
        // One host: over loopback, or by an address that is this host's own.
        reach(node, other, ip("127.0.0.1"), ip("127.0.0.1")).unwrap();
        reach(node, other, ip("10.0.0.1"), ip("10.0.0.1")).unwrap();
        reach(node, lan, ip("::1"), ip("::1")).unwrap();
        // Two hosts, of which each has an address that the other reaches.
        reach(lan, gid("10.0.0.2"), ip("10.0.0.1"), ip("10.0.0.2")).unwrap();
        reach(lan, gid("fe80::2"), ip("::ffff:10.0.0.1"), ip("10.0.0.2")).unwrap();
        // Two hosts, and an address that ends at one of them: whose, and what could be named there.
        for there in [other, lan] {
            let why = reach(node, there, ip("10.0.0.1"), ip("10.0.0.2")).unwrap_err();
            let why = why.to_string();
            assert!(
                why.contains("here, ::ffff:127.3.4.5,") && why.contains("such as 10.0.0.1,"),
                "{why}"
            );
        }
        let why = reach(lan, other, ip("10.0.0.1"), ip("::ffff:10.0.0.2")).unwrap_err();
        let why = why.to_string();
        assert!(
            why.contains("other end, ::ffff:127.6.7.8,") && why.contains("such as 10.0.0.2,"),
            "{why}"
        );
    }
}
