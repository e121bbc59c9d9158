//! What a copy amounted to, for people and for machines.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use rdma_soft::Snapshot;
use serde::{Deserialize, Serialize};

use super::file::Counts;
use crate::term::{Harmless, Style, counted};

/// One end of a copy that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Name of its device.
    pub device: String,
    /// The address that its GID stands for.
    pub address: String,
    /// Its GID.
    pub gid: String,
    /// Number of its QP.
    pub qpn: u32,
    /// What its device counted, after the last frame; `None` for a device that is not the software device.
    pub counters: Option<BTreeMap<String, u64>>,
    /// What its link counted.
    pub link: Option<BTreeMap<String, u64>>,
    /// What the faults on its link did to the frames that it sent; `None` without faults.
    pub faults: Option<BTreeMap<String, u64>>,
    /// Seed of the faults.
    pub fault_seed: Option<u64>,
    /// Bytes over the control channel, both ways, until this report.
    pub side_channel_bytes: u64,
    /// The most memory that the process had resident.
    pub max_resident_bytes: u64,
}

impl End {
    /// Takes over what the software device counted.
    pub fn count(&mut self, all: &Snapshot) {
        let named = |name: &str, value| (name.to_owned(), value);
        self.counters = Some(
            all.engine
                .all()
                .map(|(name, value)| named(name, value))
                .collect(),
        );
        self.link = Some(
            all.link
                .all()
                .map(|(name, value)| named(name, value))
                .collect(),
        );
        self.faults = all.faults.map(|faults| {
            (faults.all().chain([("held", all.held)]))
                .map(|(name, value)| named(name, value))
                .collect()
        });
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters
            .as_ref()
            .and_then(|all| all.get(name))
            .copied()
            .unwrap_or(0)
    }
}

/// The most memory that this process had resident so far, in bytes; 0 if the system does not tell.
pub fn max_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| {
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kilobytes.unwrap_or(0) * 1024
}

/// A copy that succeeded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Where the copy is, as its end calls it.
    pub destination: String,
    /// Length of the file; of a tree, of all its files and the listing of it.
    pub bytes: u64,
    /// Bytes of it that went through the Queue Pairs; the rest is zeros, or was there.
    pub bytes_moved: u64,
    /// Bytes that a copy which broke off had left, and that were right.
    pub bytes_resumed: u64,
    /// What is in it, of a tree.
    pub tree: Option<Counts>,
    /// From the first byte read to the last byte written.
    pub seconds: f64,
    /// `bytes` by `seconds`.
    pub bytes_per_second: f64,
    /// To bring everything to the disk and read it back from there.
    pub verify_seconds: f64,
    /// The digest of the source, and of what was read back.
    pub sha256: String,
    /// Bytes over the control channel, both ways.
    pub side_channel_bytes: u64,
    /// (retry_cnt + 1) x 4.096 us x 2^timeout; `None` is for ever.
    pub retry_budget_seconds: Option<f64>,
    /// The path MTU in bytes.
    pub path_mtu: u32,
    /// The end that sent; `None` if it went away before its last word.
    pub sender: Option<End>,
    /// The end that received; `None` likewise.
    pub receiver: Option<End>,
}

impl Report {
    /// The lines for people.
    pub fn lines(&self, style: Style) -> Vec<String> {
        let rate = BinaryBytes(self.bytes_per_second as u64);
        let size = BinaryBytes(self.bytes);
        let took = short(Duration::from_secs_f64(self.seconds));
        let verify = short(Duration::from_secs_f64(self.verify_seconds));
        let mut lines = vec![format!(
            "{} {} in {took}, {}",
            style.green("✓"),
            style.bold(size),
            style.bold(format!("{rate}/s"))
        )];
        if let Some(counts) = self.tree {
            lines.push(format!("  {}", in_words(counts)));
        }
        if self.bytes_resumed > 0 {
            let resumed = BinaryBytes(self.bytes_resumed);
            lines.push(format!("  {resumed} of it were there already, and right"));
        }
        let zeros = self.bytes - self.bytes_moved - self.bytes_resumed;
        if zeros > 0 {
            let zeros = BinaryBytes(zeros);
            lines.push(format!(
                "  {zeros} of it are zeros, which did not have to travel"
            ));
        }
        lines.push(format!("{} sha256 {}", style.green("✓"), self.sha256));
        lines.push(format!(
            "  {} {verify}",
            style.dim(format!(
                "of {}, synced and read back from its disk in",
                Harmless(&self.destination)
            ))
        ));
        for (name, end) in [("sender", &self.sender), ("receiver", &self.receiver)] {
            if let Some(end) = end.as_ref().filter(|end| end.counters.is_some()) {
                lines.push(
                    style
                        .dim(format!("  {name:<8}  {}", frames(end)))
                        .to_string(),
                );
            }
        }
        lines.push(
            style
                .dim(format!(
                    "  {} went over TCP",
                    counted(self.side_channel_bytes, "byte", "bytes")
                ))
                .to_string(),
        );
        lines
    }
}

/// What is in a tree, in one line.
pub fn in_words(counts: Counts) -> String {
    let mut text = format!(
        "{}, {}, {}",
        counted(counts.files, "file", "files"),
        counted(counts.directories, "directory", "directories"),
        counted(counts.links, "link", "links")
    );
    if counts.skipped > 0 {
        text += &format!(
            "; {} left out (pipes, sockets, devices)",
            HumanCount(counts.skipped)
        );
    }
    text
}

/// What happened to an end's frames, in one line.
fn frames(end: &End) -> String {
    let count = |name| HumanCount(end.counter(name));
    let mut text = format!(
        "{} sent, {} received",
        counted(end.counter("tx_frames"), "frame", "frames"),
        count("rx_frames")
    );
    let faults = end.faults.as_ref();
    for (name, words) in [
        ("dropped", "lost"),
        ("duplicated", "duplicated"),
        ("reordered", "reordered"),
        ("corrupted", "corrupted"),
    ] {
        if let Some(n) = faults
            .and_then(|faults| faults.get(name))
            .filter(|n| **n > 0)
        {
            text += &format!(", {} {words}", HumanCount(*n));
        }
    }
    for (name, words) in [
        ("tx_retransmitted", "sent again"),
        ("timeouts", "times no answer in time"),
    ] {
        if end.counter(name) > 0 {
            text += &format!(", {} {words}", count(name));
        }
    }
    text
}

/// A time with three digits or so.
pub fn short(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (nanos, text) in [
            (1_073_741_824, "1.07 s"),
            (134_217_728, "134.2 ms"),
            (4096, "4 µs"),
            (123_000_000_000, "123 s"),
        ] {
            assert_eq!(short(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn this_process_has_some_memory() {
        assert!(max_resident_bytes() > 1 << 20);
    }
}
