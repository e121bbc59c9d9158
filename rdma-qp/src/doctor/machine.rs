//! The machine: limits, access, and the verbs library.

use serde::Serialize;

use super::{Finding, Refusal, Weight};

/// What a machine allows and has. Nothing of it stands in the way of the software device, which needs neither locked memory
/// nor a kernel driver nor a library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The limits on locked memory.
    pub memlock: Option<Memlock>,
    /// Signs that this is a container.
    pub container: Option<String>,
    /// Devices below /dev/infiniband, and whether this user may open them for reading and writing.
    pub uverbs: Vec<(String, bool)>,
    /// Kernel modules, and whether they are there.
    pub modules: Vec<(String, bool)>,
    /// Adapters that the kernel has.
    pub adapters: Vec<String>,
    /// libibverbs; the error text if it cannot be loaded.
    pub library: Option<Result<Library, String>>,
    /// Memory mappings of this process, and the most that one may have.
    pub mappings: Option<(u64, u64)>,
    /// Whether the kernel copies pinned pages at fork by itself, so that `ibv_fork_init` is not needed.
    pub fork_is_safe: Option<bool>,
    /// The adapter that is to be used; `None` is the software device.
    pub chosen: Option<String>,
}

/// Limits on locked memory, in bytes; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// What holds now.
    pub soft: Option<u64>,
    /// How far this user may raise it.
    pub hard: Option<u64>,
}

/// libibverbs as it is on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Library {
    /// Its file.
    pub path: Option<String>,
    /// The release of its file name, such as `1.14.44.0`.
    pub release: Option<String>,
    /// Version of the newest symbol that it has, such as `IBVERBS_1.14`.
    pub newest: Option<String>,
    /// Optional functions that it lacks, with the version that has them.
    pub missing: Vec<(String, String)>,
}

/// Locked memory that programs with an adapter need at least; below it even a CQ may be too large.
const LITTLE: u64 = 16 << 20;

impl Machine {
    /// What stands in the way of the chosen adapter, and what a refused call may have met.
    pub(super) fn look(&self, refusals: &[Refusal], found: &mut Vec<Finding>) {
        let mut tell =
            |code: &str, weight: Weight, cause: String, evidence: Vec<String>, cure: &str| {
                found.push(Finding {
                    code: code.to_owned(),
                    weight,
                    end: None,
                    cause,
                    evidence,
                    cure: cure.to_owned(),
                });
            };
        const RAISE: &str = "raise it: `ulimit -l unlimited` as root, memlock in /etc/security/limits.conf, LimitMEMLOCK of a \
                             service, --ulimit memlock=-1 of a container";
        let soft = self.memlock.and_then(|limit| limit.soft);
        let shown = |soft: u64| {
            format!(
                "locked memory is limited to {soft} bytes (ulimit -l {})",
                soft >> 10
            )
        };
        // ENOMEM of a real device.
        for refusal in refusals
            .iter()
            .filter(|refusal| refusal.errno == 12 && !refusal.software)
        {
            let (Some(size), Some(soft)) = (refusal.size, soft) else {
                continue;
            };
            // What is locked already counts, too, and rounds up to pages: half of the limit is suspect.
            if size >= soft / 2 {
                let call = refusal.call.as_deref().unwrap_or("a call");
                let cause = format!("{call} asked for {size} bytes, more than may be locked");
                tell(
                    "memlock",
                    Weight::Likely,
                    cause,
                    vec![shown(soft), "errno ENOMEM (12)".to_owned()],
                    RAISE,
                );
            }
        }
        if let Some((now, most)) = self.mappings.filter(|(now, most)| now * 5 > most * 4) {
            tell(
                "mappings",
                Weight::Risk,
                "this process has nearly as many memory mappings as it may have: fork protection splits one with each registration".to_owned(),
                vec![format!("{now} of {most}")],
                "raise vm.max_map_count, register large regions once, or leave ibv_fork_init out where the kernel does without",
            );
        }
        let Some(chosen) = &self.chosen else { return };
        if let Some(Err(error)) = &self.library {
            tell(
                "no-library",
                Weight::Certain,
                "libibverbs cannot be loaded".to_owned(),
                vec![error.clone()],
                "install it (Debian: libibverbs1 and ibverbs-providers)",
            );
        }
        if !self.adapters.contains(chosen) {
            let there = if self.adapters.is_empty() {
                "there is none".to_owned()
            } else {
                format!("there are {}", self.adapters.join(", "))
            };
            let cause = format!("the kernel has no adapter {chosen}");
            tell(
                "no-device",
                Weight::Certain,
                cause,
                vec![there],
                "load its driver; in a container, pass the device in",
            );
            return;
        }
        if !self.uverbs.iter().any(|(_, open)| *open) {
            let seen = self
                .uverbs
                .iter()
                .map(|(name, _)| format!("{name} cannot be opened"))
                .collect::<Vec<_>>();
            let seen = if seen.is_empty() {
                vec!["there is nothing in /dev/infiniband".to_owned()]
            } else {
                seen
            };
            tell(
                "no-access",
                Weight::Certain,
                "this user may not use the adapter".to_owned(),
                seen,
                "load ib_uverbs; give the user read and write access to /dev/infiniband/uverbs*; in a container, pass /dev/infiniband in",
            );
        }
        if let Some(soft) = soft.filter(|soft| *soft < LITTLE) {
            tell(
                "memlock",
                Weight::Risk,
                "little memory may be locked: regions and queues of an adapter need it".to_owned(),
                vec![shown(soft)],
                RAISE,
            );
        }
    }
}
