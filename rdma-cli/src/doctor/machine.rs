//! `qp doctor env` and `qp doctor abi`: the machine, and its verbs library.

use std::io::{self, Write};
use std::mem::size_of;
use std::path::Path;

use rdma_core_sys::*;
use rdma_qp::doctor::{Evidence, Library, Machine, Memlock, diagnose};
use serde::Serialize;

use super::print;
use crate::failure::Failure;
use crate::term::Style;

/// Options of `qp doctor env`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The adapter that is to be used; the software device, which needs none of it, if not given
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Print one JSON object, for machines
    #[arg(long)]
    pub json: bool,
}

/// Options of `qp doctor abi`.
#[derive(Debug, clap::Args)]
pub struct AbiArgs {
    /// Print one JSON object, for machines
    #[arg(long)]
    pub json: bool,
}

/// Modules that matter, as /sys/module names them.
const MODULES: &[&str] = &[
    "ib_core",
    "ib_uverbs",
    "rdma_ucm",
    "mlx4_ib",
    "mlx5_ib",
    "irdma",
    "bnxt_re",
    "efa",
    "rdma_rxe",
    "siw",
];

/// Kernels from this on copy pinned pages at fork by themselves (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK came with it).
const COPIES_ON_FORK: (u32, u32) = (5, 12);

/// Gathers what is known of the machine.
pub fn look(chosen: Option<String>) -> Machine {
    let mut machine = Machine::default();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    machine.memlock = Some(Memlock {
        soft: limit.current,
        hard: limit.maximum,
    });
    machine.container = container();
    machine.uverbs = names("/dev/infiniband", "uverbs")
        .into_iter()
        .map(|name| {
            let path = format!("/dev/infiniband/{name}");
            let open = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
            let allowed = rustix::fs::access(&path, open).is_ok();
            (path, allowed)
        })
        .collect();
    machine.modules = MODULES
        .iter()
        .map(|name| {
            (
                (*name).to_owned(),
                Path::new("/sys/module").join(name).exists(),
            )
        })
        .collect();
    machine.adapters = names("/sys/class/infiniband", "");
    machine.library = Some(library().map(|(_, library)| library));
    let count = |path: &str| std::fs::read_to_string(path).ok();
    machine.mappings = count("/proc/self/maps")
        .zip(count("/proc/sys/vm/max_map_count"))
        .and_then(|(maps, most)| Some((maps.lines().count() as u64, most.trim().parse().ok()?)));
    machine.fork_is_safe = count("/proc/sys/kernel/osrelease").and_then(|release| {
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok());
        Some((numbers.next()?, numbers.next()?) >= COPIES_ON_FORK)
    });
    machine.chosen = chosen;
    machine
}

/// Names in a directory that begin so, in order.
fn names(dir: &str, begin: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(begin))
        .collect();
    names.sort();
    names
}

/// What speaks for a container.
fn container() -> Option<String> {
    let file = ["/.dockerenv", "/run/.containerenv"]
        .into_iter()
        .find(|file| Path::new(file).exists());
    if let Some(file) = file {
        return Some(format!("{file} is there"));
    }
    if let Ok(kind) = std::env::var("container") {
        return Some(format!("the variable container is {kind:?}"));
    }
    let groups = std::fs::read_to_string("/proc/1/cgroup").ok()?;
    let known = ["docker", "kubepods", "lxc", "podman"]
        .into_iter()
        .find(|name| groups.contains(name));
    known.map(|name| format!("the first process is in a control group of {name}"))
}

/// The library, and what is to be told of it.
fn library() -> Result<(Verbs, Library), String> {
    let verbs = Verbs::open().map_err(|error| {
        let why = std::error::Error::source(&error)
            .map_or_else(String::new, |source| format!(" ({source})"));
        format!("{error}{why}")
    })?;
    let mut library = Library::default();
    library.missing = verbs
        .missing()
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect();
    let lacks = |name: &str| library.missing.iter().any(|(missing, _)| missing == name);
    let number = |version: &str| -> Option<(u32, u32)> {
        let (major, minor) = version.strip_prefix("IBVERBS_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let versions = Verbs::SYMBOLS
        .iter()
        .filter(|(name, ..)| !lacks(name))
        .map(|(_, version, _)| *version);
    library.newest = versions
        .max_by_key(|version| number(version))
        .map(str::to_owned);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libibverbs.so").then(|| path.to_owned())
    });
    library.release = path
        .as_deref()
        .and_then(|path| path.split_once(".so."))
        .map(|(_, release)| release.to_owned());
    library.path = path;
    Ok((verbs, library))
}

/// `qp doctor env`.
///
/// # Errors
/// [`Failure::Found`] if something stands in the way of the chosen adapter.
pub fn env(args: &Args) -> Result<(), Failure> {
    let machine = look(args.device.clone());
    let mut evidence = Evidence::default();
    evidence.machine = Some(machine.clone());
    let found = diagnose(&evidence);
    if args.json {
        #[derive(Serialize)]
        struct Report<'a> {
            machine: &'a Machine,
            findings: &'a [rdma_qp::doctor::Finding],
        }
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(
            &mut out,
            &Report {
                machine: &machine,
                findings: &found,
            },
        )
        .map_err(io::Error::from)?;
        writeln!(out)?;
        return if found.is_empty() {
            Ok(())
        } else {
            Err(Failure::Found)
        };
    }
    let mut out = io::stdout().lock();
    write(&mut out, Style::of(&io::stdout()), &machine)?;
    if found.is_empty() {
        let chosen = machine.chosen.as_deref().unwrap_or("the software device");
        let text = format!("nothing stands in the way of {chosen}");
        writeln!(out, "{}", Style::of(&io::stdout()).green(text))?;
        return Ok(());
    }
    drop(out);
    print::findings(&found, None, false)
}

fn write(out: &mut impl Write, style: Style, machine: &Machine) -> io::Result<()> {
    let mut line = |name: &str, text: String| {
        let head = format!("{name:<16}");
        print::paragraph(out, &head, &text, str::to_owned)
    };
    line(
        "to be used",
        machine
            .chosen
            .clone()
            .unwrap_or_else(|| "the software device".to_owned()),
    )?;
    let bytes = |limit: Option<u64>| {
        limit.map_or_else(
            || "unlimited".to_owned(),
            |bytes| format!("{} KiB", bytes >> 10),
        )
    };
    if let Some(limit) = machine.memlock {
        let matters = match (limit.soft, &machine.chosen) {
            (Some(_), None) => "; matters to adapters, not to the software device",
            _ => "",
        };
        line(
            "locked memory",
            format!(
                "{} now, {} at most{matters}",
                bytes(limit.soft),
                bytes(limit.hard)
            ),
        )?;
    }
    line(
        "container",
        machine
            .container
            .clone()
            .unwrap_or_else(|| "no sign of one".to_owned()),
    )?;
    let listed = |all: Vec<String>, none: &str| {
        if all.is_empty() {
            none.to_owned()
        } else {
            all.join(", ")
        }
    };
    line("adapters", listed(machine.adapters.clone(), "none"))?;
    let access = machine.uverbs.iter().map(|(path, open)| {
        format!(
            "{path} ({})",
            if *open {
                "may be opened"
            } else {
                "may not be opened"
            }
        )
    });
    line(
        "access",
        listed(access.collect(), "nothing in /dev/infiniband"),
    )?;
    let there = machine
        .modules
        .iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| name.clone());
    line(
        "modules",
        listed(there.collect(), "none of the kernel's RDMA modules"),
    )?;
    let library = match &machine.library {
        Some(Ok(library)) => format!(
            "{} ({})",
            library.path.as_deref().unwrap_or("linked"),
            library.newest.as_deref().unwrap_or("?")
        ),
        Some(Err(error)) => error.clone(),
        None => "not looked for".to_owned(),
    };
    line("libibverbs", library)?;
    if let Some((now, most)) = machine.mappings {
        line("mappings", format!("{now} of this process, at most {most}"))?;
    }
    if let Some(safe) = machine.fork_is_safe {
        let text = if safe {
            "the kernel copies pinned pages: ibv_fork_init is not needed"
        } else {
            "call ibv_fork_init, or do not fork"
        };
        line("fork", text.to_owned())?;
    }
    writeln!(out, "{}", style.dim(""))
}

/// What `qp doctor abi` tells.
#[derive(Serialize)]
struct Abi {
    /// Version of the installed headers, as pkg-config files have it.
    headers: Option<String>,
    library: Option<Library>,
    /// Why there is no library.
    error: Option<String>,
    /// Optional functions that are there.
    optional: Vec<&'static str>,
    /// Sizes of structs that this program uses, in bytes.
    sizes: Vec<(&'static str, usize)>,
}

/// The version of the installed headers.
fn headers() -> Option<String> {
    let places = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ];
    places.iter().find_map(|place| {
        let text = std::fs::read_to_string(format!("{place}/pkgconfig/libibverbs.pc")).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("Version:"))
            .map(|version| version.trim().to_owned())
    })
}

/// The numbers of a version: of `1.14.44.0` those four.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|n| n.parse().ok()).collect()
}

/// `qp doctor abi`.
///
/// # Errors
/// The output cannot be written. That there is no library is told, and is no failure: the software device needs none.
pub fn abi(args: &AbiArgs) -> Result<(), Failure> {
    let (library, error) = match library() {
        Ok((_, library)) => (Some(library), None),
        Err(error) => (None, Some(error)),
    };
    let lacks = |name: &str| {
        library
            .as_ref()
            .is_none_or(|l| l.missing.iter().any(|(missing, _)| missing == name))
    };
    let optional = Verbs::SYMBOLS
        .iter()
        .filter(|(name, _, required)| !required && !lacks(name))
        .map(|(name, ..)| *name)
        .collect();
    macro_rules! sizes {
        ($($name:ident),*) => { vec![$((stringify!($name), size_of::<$name>())),*] };
    }
    let sizes = sizes!(
        ibv_device_attr,
        ibv_port_attr,
        ibv_gid_entry,
        ibv_qp_init_attr,
        ibv_qp_attr,
        ibv_send_wr,
        ibv_recv_wr,
        ibv_wc
    );
    let abi = Abi {
        headers: headers(),
        library,
        error,
        optional,
        sizes,
    };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &abi).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    let mut line = |name: &str, text: &str| {
        print::paragraph(&mut out, &format!("{name:<16}"), text, str::to_owned)
    };
    line(
        "headers",
        abi.headers
            .as_deref()
            .unwrap_or("not installed, and not needed"),
    )?;
    match (&abi.library, &abi.error) {
        (Some(library), _) => {
            if let (Some(headers), Some(release)) = (&abi.headers, &library.release)
                && numbers(headers) > numbers(release)
            {
                line(
                    "note",
                    "the headers are newer than the library: a program that was built with them may ask for functions that are not there",
                )?;
            }
            line(
                "libibverbs",
                library
                    .path
                    .as_deref()
                    .unwrap_or("linked into this program"),
            )?;
            line("release", library.release.as_deref().unwrap_or("not known"))?;
            line(
                "newest symbol",
                library.newest.as_deref().unwrap_or("not known"),
            )?;
            line("optional", &format!("has {}", abi.optional.join(", ")))?;
            let missing: Vec<_> = library
                .missing
                .iter()
                .map(|(name, version)| format!("{name} ({version})"))
                .collect();
            let text = if missing.is_empty() {
                "nothing".to_owned()
            } else {
                format!("{}: what needs them answers EOPNOTSUPP", missing.join(", "))
            };
            line("lacks", &text)?;
        }
        (None, error) => line("libibverbs", error.as_deref().unwrap_or("not known"))?,
    }
    let sizes: Vec<_> = abi
        .sizes
        .iter()
        .map(|(name, size)| format!("{name} {size}"))
        .collect();
    line("struct sizes", &sizes.join(", "))?;
    Ok(out.flush()?)
}
