//! Options of `qp copy`, and what they amount to.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rdma_qp::Timing;

use crate::device::{DeviceArgs, DeviceChoice, FaultArgs, TimingArgs};
use crate::failure::Failure;

/// Options of `qp copy`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
qp copy [OPTIONS] SRC DST
       qp copy [OPTIONS] --listen ADDR DIR
       qp copy [OPTIONS] SRC ADDR")]
#[command(after_help = "\
Examples:
  qp copy big.bin /mnt/copy.bin            both ends on this machine
  qp copy photos /mnt                      a directory with all that is in it
  qp copy --listen 127.0.0.1:7471 inbox/   in one terminal: receive one of them,
  qp copy big.bin 127.0.0.1:7471           and in another: send it there
  qp copy --resume --listen HOST:PORT DIR  go on where the last one broke off

A directory arrives with names, permissions, times and links as they are, under
its final name only when all of it is there and right; it replaces nothing.
Owners do not come along, and pipes, sockets and devices are left out.

With --resume, what has come is kept when a copy breaks off, and what is there
is compared by its SHA-256 before the rest is sent. The sender needs no option.

DST is taken as HOST:PORT if it ends in a colon and a number and has no slash;
for a file of such a name write ./name:1. The software device takes a free
address of 127.0.0.0/8 for itself; RDMA_SOFT_ADDR chooses another, as it must
at both ends of a copy between two hosts.

Status: 0 it arrived, 1 it did not, 2 wrong options, 130 interrupted.")]
pub struct Args {
    /// The file or directory, and its copy: a name, a directory to put it into, or the HOST:PORT of a waiting receiver.
    /// With --listen: the directory to receive into
    #[arg(value_name = "PATH", required = true, num_args = 1..=2)]
    paths: Vec<OsString>,
    /// Wait at this HOST:PORT for a sender; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Replace a file that exists; to be given where it is received
    #[arg(long)]
    force: bool,
    /// Go on with a copy that broke off, and keep what has come if this one does; to be given where it is received
    #[arg(long)]
    resume: bool,
    /// Print one JSON object, for machines, and everything else on standard error; of a failure it has the `error`
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    timing: TimingArgs,
    #[command(flatten)]
    faults: FaultArgs,

    /// Started by another `qp copy`: PATH is the destination itself
    #[arg(long, hide = true, requires = "listen")]
    child: bool,
}

/// What to do.
#[derive(Debug)]
pub enum Role {
    /// Send to a receiver that this process starts.
    Both {
        /// The file.
        source: PathBuf,
        /// Its copy, or the directory for it.
        destination: PathBuf,
    },
    /// Send to a receiver that waits.
    Send {
        /// The file.
        source: PathBuf,
        /// Where the receiver waits.
        address: String,
    },
    /// Receive one file or directory.
    Receive {
        /// Where to wait.
        address: String,
        /// The directory to receive into; the destination itself for a child.
        place: PathBuf,
    },
}

/// The options, checked.
#[derive(Debug)]
pub struct Plan {
    /// What to do.
    pub role: Role,
    /// Which device, and how.
    pub device: DeviceChoice,
    /// When to give up.
    pub timing: Timing,
    /// Existing files may be replaced.
    pub force: bool,
    /// What a copy that broke off has left is gone on with.
    pub resume: bool,
    /// A report for machines is wanted.
    pub json: bool,
    /// Another `qp copy` started this one.
    pub child: bool,
}

impl Args {
    /// What the options amount to.
    ///
    /// # Errors
    /// Options that do not go together.
    pub fn plan(self) -> Result<Plan, Failure> {
        let timing = self.timing.check()?;
        let device = DeviceChoice {
            second: self.child,
            ..self.device.choice(&self.faults)?
        };
        let mut paths = self.paths.into_iter();
        let role = match (self.listen, paths.next(), paths.next()) {
            (Some(address), Some(place), None) => Role::Receive {
                address,
                place: place.into(),
            },
            (Some(_), _, _) => {
                return Err(Failure::Usage(
                    "--listen ADDR goes with one path: the directory to receive into".into(),
                ));
            }
            (None, Some(source), Some(destination)) => match address_in(&destination) {
                Some(_) if self.force => {
                    let why =
                        "--force is for the side that receives: give it to `qp copy --listen`";
                    return Err(Failure::Usage(why.into()));
                }
                Some(_) if self.resume => {
                    let why =
                        "--resume is for the side that receives: give it to `qp copy --listen`";
                    return Err(Failure::Usage(why.into()));
                }
                Some(address) => Role::Send {
                    source: source.into(),
                    address,
                },
                None => Role::Both {
                    source: source.into(),
                    destination: destination.into(),
                },
            },
            _ => {
                let why = "a copy needs two paths: qp copy SRC DST, or qp copy --listen ADDR DIR to receive";
                return Err(Failure::Usage(why.into()));
            }
        };
        Ok(Plan {
            role,
            device,
            timing,
            force: self.force,
            resume: self.resume,
            json: self.json,
            child: self.child,
        })
    }
}

/// `text` as HOST:PORT, unless it can only be a path.
fn address_in(text: &OsStr) -> Option<String> {
    let text = text.to_str()?;
    let (host, port) = text.rsplit_once(':')?;
    let is_address = !text.contains('/') && !host.is_empty() && port.parse::<u16>().is_ok();
    (is_address && !Path::new(text).exists()).then(|| text.to_owned())
}

impl Plan {
    /// The options for the receiving process that this one starts.
    pub fn child_options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> = ["copy", "--listen", "127.0.0.1:0", "--child"]
            .map(Into::into)
            .to_vec();
        let mut option =
            |name: &str, value: String| options.push(format!("--{name}={value}").into());
        let DeviceChoice {
            name,
            port,
            gid_index,
            mtu,
            pcap: _,
            faults,
            second: _,
        } = &self.device;
        if let Some(name) = name {
            option("device", name.clone());
        }
        option("port", port.to_string());
        if let Some(index) = gid_index {
            option("gid-index", index.to_string());
        }
        if let Some(mtu) = mtu {
            option("mtu", mtu.bytes().to_string());
        }
        option("timeout", self.timing.timeout.code().to_string());
        option("retry-cnt", self.timing.retry_cnt.get().to_string());
        if let Some(faults) = faults {
            // Faults are written as name=value with commas between them, in the names of these options.
            for (name, value) in faults
                .to_string()
                .split(',')
                .filter_map(|entry| entry.split_once('='))
            {
                option(name, value.to_owned());
            }
        }
        for (given, option) in [(self.force, "--force"), (self.resume, "--resume")] {
            if given {
                options.push(option.into());
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("copy").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.args.plan().map_err(|failure| failure.to_string())
    }

    #[test]
    fn roles_follow_from_the_paths() {
        let role = |line| plan(line).unwrap().role;
        assert!(matches!(role("a b"), Role::Both { .. }));
        assert!(matches!(role("a b:c"), Role::Both { .. }));
        assert!(matches!(role("a ./b:1"), Role::Both { .. }));
        assert!(matches!(role("a :1"), Role::Both { .. }));
        assert!(matches!(role("a b:99999"), Role::Both { .. }));
        assert!(matches!(role("a host:1"), Role::Send { address, .. } if address == "host:1"));
        assert!(matches!(role("a [::1]:1"), Role::Send { address, .. } if address == "[::1]:1"));
        assert!(matches!(
            role("--listen 127.0.0.1:0 dir"),
            Role::Receive { .. }
        ));
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_a_cure() {
        for (line, word) in [
            ("a", "two paths"),
            ("--listen 127.0.0.1:0 a b", "one path"),
            ("a host:1 --force", "--listen"),
            ("a b --seed 7", "--loss"),
            ("a b --device mlx5_0 --loss 1%", "software device"),
            ("a b --retry-cnt 8", "0..=7"),
            ("a b --timeout 32", "0..=31"),
            ("a b --mtu 1500", "1024"),
            ("a b --loss 2", "0% to 100%"),
            ("a b --delay 5", "unit"),
        ] {
            let told = plan(line).unwrap_err();
            assert!(told.contains(word), "{line}: {told}");
        }
    }

    /// 3 times the budget is how long a dead peer may stay unnoticed; the budget is to be at most 2 s.
    #[test]
    fn the_default_budget_is_at_most_two_seconds() {
        assert!(plan("a b").unwrap().timing.budget().unwrap() <= Duration::from_secs(2));
    }

    #[test]
    fn a_child_gets_the_same_options() {
        let line = "a b --loss 1% --delay 200us --jitter 1ms --seed 7 --mtu 1024 --timeout 12 --retry-cnt 3 --port 2 \
                    --gid-index 4 --force --pcap file";
        let parent = plan(line).unwrap();
        let mut words: Vec<String> = parent
            .child_options()
            .iter()
            .map(|word| word.to_str().unwrap().to_owned())
            .collect();
        words.remove(0);
        let child = plan(&format!("{} b", words.join(" "))).unwrap();
        assert!(child.child && child.force);
        assert_eq!(child.timing, parent.timing);
        assert_eq!(child.device.pcap, None, "one capture has both directions");
        assert_eq!(
            (child.device.faults, child.device.mtu),
            (parent.device.faults, parent.device.mtu)
        );
        assert_eq!((child.device.port, child.device.gid_index), (2, Some(4)));
    }
}
