//! `qp devices`: every device, its ports, and each filled GID table entry.

use std::io::{self, Write};

use indicatif::BinaryBytes;
use rdma_core_sys::Verbs;
use rdma_qp::{Device, Errno, GidEntry, GidError, LinkLayer, OpenError, Port, PortInfo, Verdict};
use serde::Serialize;

use crate::doctor::print::paragraph;
use crate::failure::Failure;
use crate::term::{Style, WIDTH};

/// ENOSYS: what rdma-core says where the kernel has no RDMA at all.
pub const NO_RDMA: i32 = 38;

/// Options of `qp devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line of the GID table is an address of a port: its index (sgid_index of
verbs), its type, its network interface, and whether commands and the library
would choose it, or why not.

Status: 0, also where there is no device: a note says why.")]
pub struct Args {
    /// Print one JSON object, for machines: MTUs and sizes are bytes
    #[arg(long)]
    json: bool,
}

/// All devices, and what kept others from being found.
#[derive(Debug, Serialize)]
struct Listing {
    devices: Vec<DeviceEntry>,
    notes: Vec<String>,
}

/// A device.
#[derive(Debug, Serialize)]
struct DeviceEntry {
    name: String,
    /// `rdma-core` or `software`.
    provider: &'static str,
    guid: String,
    ports: Vec<PortEntry>,
    /// Why there is nothing more about it.
    error: Option<String>,
}

/// A port.
#[derive(Debug, Serialize)]
struct PortEntry {
    port: u8,
    state: String,
    link_layer: &'static str,
    max_mtu: Option<u32>,
    active_mtu: Option<u32>,
    lid: u16,
    max_msg_sz: u32,
    gids: Vec<Entry>,
    /// Index of the GID that would be used.
    best_gid_index: Option<u32>,
    /// Why there is nothing more about it, or why no GID can be used.
    error: Option<String>,
}

/// A filled GID table entry.
#[derive(Debug, Serialize)]
struct Entry {
    index: u32,
    gid: String,
    #[serde(rename = "type")]
    kind: String,
    address: String,
    netdev: Option<String>,
    /// Whether it would be used, and why not.
    verdict: String,
}

/// Runs the command.
///
/// # Errors
/// The output cannot be written. A device that cannot be looked at says so in its place.
pub fn run(args: &Args) -> Result<(), Failure> {
    let listing = look();
    let mut out = io::stdout().lock();
    let written = if args.json {
        serde_json::to_writer_pretty(&mut out, &listing)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        write(&mut out, Style::of(&io::stdout()), &listing)
    };
    Ok(written.and_then(|()| out.flush())?)
}

fn look() -> Listing {
    let mut listing = Listing {
        devices: Vec::new(),
        notes: Vec::new(),
    };
    match Verbs::open() {
        Ok(verbs) => listing.add("rdma-core", &verbs),
        Err(error) => listing
            .notes
            .push(format!("no devices of rdma-core: {error}")),
    }
    match rdma_soft::Profile::from_env() {
        Ok(_) => listing.add("software", rdma_soft::verbs()),
        Err(error) => listing.notes.push(format!("no software device: {error}")),
    }
    listing
}

impl Listing {
    fn add(&mut self, provider: &'static str, verbs: &Verbs) {
        let listed = match Device::list(verbs) {
            Ok(listed) => listed,
            Err(OpenError::List(errno)) if errno.raw_os_error() == NO_RDMA => {
                let cure = "with an adapter in this machine, load its driver and ib_uverbs";
                self.notes.push(format!(
                    "no devices of {provider}: this kernel has no RDMA; {cure}"
                ));
                return;
            }
            Err(error) => {
                self.notes.push(format!(
                    "no devices of {provider}: {error}{}",
                    cause(&error)
                ));
                return;
            }
        };
        if listed.is_empty() {
            self.notes.push(format!("{provider} knows no device"));
        }
        for info in listed {
            let (ports, error) = match Device::open(verbs, &info.name) {
                Ok(device) => (device.ports().iter().map(PortEntry::new).collect(), None),
                Err(error) => (Vec::new(), Some(format!("{error}{}", cause(&error)))),
            };
            let guid = format!(
                "{:04x}:{:04x}:{:04x}:{:04x}",
                info.guid >> 48,
                info.guid >> 32 & 0xffff,
                info.guid >> 16 & 0xffff,
                info.guid & 0xffff
            );
            self.devices.push(DeviceEntry {
                name: info.name,
                provider,
                guid,
                ports,
                error,
            });
        }
    }
}

/// What the system says to the error's number, to go behind the error.
fn cause(error: &OpenError) -> String {
    let errno = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Errno>());
    errno.map_or_else(String::new, |errno| {
        format!(": {}", io::Error::from(*errno))
    })
}

impl PortEntry {
    fn new(port: &Port) -> PortEntry {
        match port.query() {
            Ok(info) => {
                let (gids, best_gid_index, error) = gids(port);
                PortEntry {
                    port: port.number(),
                    state: state(&info),
                    link_layer: match info.link_layer {
                        LinkLayer::Ethernet => "Ethernet",
                        LinkLayer::InfiniBand => "InfiniBand",
                        _ => "unspecified",
                    },
                    max_mtu: info.max_mtu.map(|mtu| mtu.bytes()),
                    active_mtu: info.active_mtu.map(|mtu| mtu.bytes()),
                    lid: info.lid,
                    max_msg_sz: info.max_msg_sz,
                    gids,
                    best_gid_index,
                    error,
                }
            }
            Err(error) => PortEntry {
                port: port.number(),
                state: "unknown".into(),
                link_layer: "unspecified",
                max_mtu: None,
                active_mtu: None,
                lid: 0,
                max_msg_sz: 0,
                gids: Vec::new(),
                best_gid_index: None,
                error: Some(error.to_string()),
            },
        }
    }
}

/// `active`, `down`, `init` ... as verbs.h names them.
pub fn state(info: &PortInfo) -> String {
    let name = format!("{:?}", info.state);
    name.strip_prefix("IBV_PORT_")
        .map_or(name.clone(), str::to_lowercase)
}

/// The filled entries with what speaks for and against each, the index of the best, and why there is none.
fn gids(port: &Port) -> (Vec<Entry>, Option<u32>, Option<String>) {
    let (verdicts, best, error) = match port.best_gid() {
        Ok(choice) => (choice.verdicts().to_vec(), Some(choice.entry().index), None),
        Err(GidError::NoneUsable(none)) => {
            let why = none.to_string();
            let first = why.lines().next().unwrap_or_default().to_owned();
            (none.verdicts, None, Some(first))
        }
        Err(error) => (Vec::new(), None, Some(error.to_string())),
    };
    let filled = verdicts.iter().filter(|(entry, _)| !entry.gid.is_zero());
    (
        filled
            .map(|(entry, verdict)| Entry::new(entry, *verdict))
            .collect(),
        best,
        error,
    )
}

impl Entry {
    fn new(entry: &GidEntry, verdict: Verdict) -> Entry {
        Entry {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.kind.to_string(),
            address: entry.gid.ip().to_string(),
            netdev: interface(entry.ifindex),
            verdict: verdict.to_string(),
        }
    }
}

/// The name of the network interface with this index; 0 is none.
fn interface(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let interfaces = std::fs::read_dir("/sys/class/net").ok()?;
    interfaces.flatten().find_map(|interface| {
        let text = std::fs::read_to_string(interface.path().join("ifindex")).ok()?;
        (text.trim().parse() == Ok(index))
            .then(|| interface.file_name().to_string_lossy().into_owned())
    })
}

fn write(out: &mut impl Write, style: Style, listing: &Listing) -> io::Result<()> {
    for device in &listing.devices {
        let kind = match device.provider {
            "software" => "software device",
            _ => "adapter, through rdma-core",
        };
        writeln!(
            out,
            "{}  {}",
            style.bold(&device.name),
            style.dim(format!("{kind}, node GUID {}", device.guid))
        )?;
        for port in &device.ports {
            write_port(out, style, port)?;
        }
        if let Some(error) = &device.error {
            paragraph(out, "  ", error, |line| style.red(line).to_string())?;
        }
        writeln!(out)?;
    }
    listing
        .notes
        .iter()
        .try_for_each(|note| paragraph(out, "note: ", note, |line| style.dim(line).to_string()))
}

fn write_port(out: &mut impl Write, style: Style, port: &PortEntry) -> io::Result<()> {
    let mtu = |mtu: Option<u32>| mtu.map_or_else(|| "?".to_owned(), |mtu| mtu.to_string());
    let state = if port.state == "active" {
        style.green(&port.state)
    } else {
        style.red(&port.state)
    };
    write!(
        out,
        "  port {}  {state}  {}  MTU {} of {}",
        port.port,
        port.link_layer,
        mtu(port.active_mtu),
        mtu(port.max_mtu)
    )?;
    if port.lid != 0 {
        write!(out, "  LID {}", port.lid)?;
    }
    writeln!(
        out,
        "  messages up to {}",
        BinaryBytes(port.max_msg_sz.into())
    )?;
    let width = |text: fn(&Entry) -> usize| port.gids.iter().map(text).max().unwrap_or(0);
    let (gids, kinds) = (
        width(|entry| entry.gid.len()),
        width(|entry| entry.kind.len()),
    );
    let places = width(|entry| entry.place().len());
    for entry in &port.gids {
        let Entry {
            index,
            gid,
            kind,
            verdict,
            ..
        } = entry;
        let place = match places {
            0 => String::new(),
            _ => format!("{:<places$}  ", entry.place()),
        };
        let head = format!("    GID {index:>3}  {gid:<gids$}  {kind:<kinds$}  {place}");
        // Addresses and names of interfaces may be long.
        let room = head.chars().count() + verdict.chars().count() <= WIDTH;
        let head = match room {
            true => head,
            false => {
                writeln!(out, "{}", head.trim_end())?;
                " ".repeat(13)
            }
        };
        paragraph(out, &head, verdict, |line| {
            let chosen = Some(*index) == port.best_gid_index;
            match chosen {
                true => style.green(line).to_string(),
                false => style.dim(line).to_string(),
            }
        })?;
    }
    match &port.error {
        Some(error) => paragraph(out, "    ", error, |line| style.red(line).to_string()),
        None => Ok(()),
    }
}

impl Entry {
    /// Where it is: its network interface, or its address, where that is not what the GID says already.
    fn place(&self) -> &str {
        let address = (self.address != self.gid).then_some(&*self.address);
        (self.netdev.as_deref()).or(address).unwrap_or_default()
    }
}
