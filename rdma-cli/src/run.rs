//! `qp run`: an unmodified verbs program on the software device.
//!
//! The program gets the preload library, and what the device is to be like in its environment; then it takes the place of this
//! process, so its exit status, its signals and its terminal are its own.

mod program;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rdma_soft::Profile;
use rdma_soft::profile::variables;

use crate::failure::Failure;
use program::Program;

/// Options of `qp run`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "qp run [OPTIONS] -- PROGRAM ARGS")]
#[command(after_help = "\
Examples:
  qp run -- ibv_rc_pingpong -g 0                in one terminal,
  qp run -- ibv_rc_pingpong -g 0 127.0.0.1      and in another
  qp run --faults loss=1%,seed=7 --counters counters.json -- ib_write_bw
  qp run --set caps=max_qp=16 --set strict=poison -- ./program

The program finds the software device as soft0, behind the real devices if
there are any. Each process is a node of its own, on a free address of
127.0.0.0/8 unless --addr names one; processes find one another by these
addresses, which are their GIDs.

Status: that of the program; 127 there is none of that name, 126 it cannot be
run so, 2 wrong options, 1 anything else.")]
pub struct Args {
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        help_heading = "Arguments"
    )]
    command: Vec<OsString>,

    #[command(flatten)]
    device: SoftDevice,
}

/// What the software device of a program is to be like.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "The software device of the program")]
pub struct SoftDevice {
    /// IP addresses of the ports, commas between them and a semicolon between ports
    #[arg(long, value_name = "ADDRS")]
    addr: Option<OsString>,
    /// Number of ports
    #[arg(long, value_name = "N")]
    ports: Option<OsString>,
    /// Active MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES")]
    mtu: Option<OsString>,
    /// What goes wrong on the link, such as loss=1%,delay=200us,seed=7; also duplicate, reorder, corrupt and jitter
    #[arg(long, value_name = "FAULTS")]
    faults: Option<OsString>,
    /// Record every frame; %p in the name is the process number
    #[arg(long, value_name = "FILE")]
    pcap: Option<OsString>,
    /// Append the counters of each process when it ends, one JSON object a line; %p in the name is the process number
    #[arg(long, value_name = "FILE")]
    counters: Option<OsString>,
    /// A file of settings, one name = value a line; options win over it
    #[arg(long, value_name = "FILE")]
    profile: Option<OsString>,
    /// Why verbs calls are refused goes to standard error
    #[arg(long)]
    explain: bool,
    /// Any other setting of the device, such as caps=max_qp=16; the names are those of a file of settings
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<OsString>,
    /// Show no paths of the device below /dev/infiniband and /sys/class/infiniband
    #[arg(long)]
    no_facade: bool,
}

/// The library that stands in front of libibverbs.
const LIBRARY: &str = "librdma_soft_preload.so";

/// Runs the command. It returns only if the program cannot be run.
///
/// # Errors
/// Settings that make no sense; a program that is not there or cannot have a library preloaded; no preload library.
pub fn run(args: Args) -> Result<(), Failure> {
    let error = prepare(&args.device, &args.command, &[])?.exec();
    let name = args.command[0].to_string_lossy();
    Err(Failure::CannotRun(format!("cannot run {name}: {error}")))
}

/// The program as it is to be started: with the preload library, and in its environment what the device is to be like. `more`
/// are variables that win over the options.
///
/// # Errors
/// Settings that make no sense; a program that is not there or cannot have a library preloaded; no preload library.
pub fn prepare(
    device: &SoftDevice,
    command: &[OsString],
    more: &[(&str, &OsStr)],
) -> Result<Command, Failure> {
    let mut settings = device.settings()?;
    settings.extend(
        more.iter()
            .map(|(name, value)| ((*name).into(), (*value).to_owned())),
    );
    let environment = std::env::vars_os().chain(settings.iter().cloned());
    // The last of a name wins, as it will in the program.
    let environment: std::collections::BTreeMap<_, _> = environment.collect();
    Profile::from_vars(&environment)
        .map_err(|error| Failure::Usage(device.as_given(&error.to_string())))?;

    let Some((name, arguments)) = command.split_first() else {
        return Err(Failure::Usage("name a program to run".into()));
    };
    let program = Program::find(name)?;
    program.check()?;
    let mut command = Command::new(&program.path);
    command
        .arg0(name)
        .args(arguments)
        .envs(settings)
        .env("LD_PRELOAD", preload(&library()?)?);
    Ok(command)
}

impl SoftDevice {
    /// The variables that options of their own stand for, without `RDMA_SOFT_`, and what they are to be.
    fn named(&self) -> [(&'static str, Option<OsString>); 9] {
        let flag = |on: bool, value: &str| on.then(|| OsString::from(value));
        [
            ("PROFILE", self.profile.clone()),
            ("PORTS", self.ports.clone()),
            ("ADDR", self.addr.clone()),
            ("MTU", self.mtu.clone()),
            ("FAULTS", self.faults.clone()),
            ("PCAP", absolute(&self.pcap)),
            ("COUNTERS", absolute(&self.counters)),
            ("EXPLAIN", flag(self.explain, "1")),
            ("FACADE", flag(self.no_facade, "0")),
        ]
    }

    /// What is said of a variable, said of the option that was given instead.
    fn as_given(&self, sentence: &str) -> String {
        let given = self
            .named()
            .into_iter()
            .filter(|(_, value)| value.is_some());
        let options = given.map(|(name, _)| (format!("RDMA_SOFT_{name}="), name.to_lowercase()));
        let known = options.into_iter().find_map(|(variable, option)| {
            Some(format!("--{option} {}", sentence.strip_prefix(&variable)?))
        });
        known.unwrap_or_else(|| sentence.to_owned())
    }

    /// The environment variables that say so.
    fn settings(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        let mut settings: Vec<(OsString, OsString)> = self
            .named()
            .into_iter()
            .filter_map(|(name, value)| Some((format!("RDMA_SOFT_{name}").into(), value?)))
            .collect();
        for setting in &self.settings {
            let text = setting.to_string_lossy();
            let Some((name, value)) = text.split_once('=') else {
                return Err(Failure::Usage(format!(
                    "--set {text}: there is no =; write NAME=VALUE"
                )));
            };
            let variable = format!("RDMA_SOFT_{}", name.trim().to_ascii_uppercase());
            if !variables().iter().any(|known| known.name == variable) {
                let names: Vec<_> = (variables().iter())
                    .filter_map(|v| v.name.strip_prefix("RDMA_SOFT_"))
                    .map(str::to_ascii_lowercase)
                    .collect();
                return Err(Failure::Usage(format!(
                    "--set {text}: there is no setting {name}; there are {}",
                    names.join(", ")
                )));
            }
            settings.push((variable.into(), value.trim().into()));
        }
        Ok(settings)
    }
}

/// The file where it is now, wherever the program may go.
fn absolute(path: &Option<OsString>) -> Option<OsString> {
    let path = path.as_ref()?;
    Some(std::path::absolute(path).map_or_else(|_| path.clone(), PathBuf::into_os_string))
}

/// Where the preload library is: beside this program, or in lib/ beside its directory.
fn library() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .map_err(|error| Failure::told(format!("cannot tell where qp is: {error}")))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)];
    match places.iter().find(|place| place.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(Failure::told(format!(
            "{LIBRARY} is not in {} nor in ../lib from there: build it with `cargo build --release -p rdma-soft-preload`, or \
             install it there",
            beside.display()
        ))),
    }
}

/// The library, before others that are to be preloaded.
fn preload(library: &Path) -> Result<OsString, Failure> {
    let text = library.as_os_str().to_string_lossy();
    if text.contains([' ', ':', '\t', '\n']) {
        return Err(Failure::told(format!(
            "the dynamic linker cannot preload {text:?}: move it to a path without spaces and colons"
        )));
    }
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(all)
}
