//! Where a device is known to do something else than a check asserts, and why.

/// A known difference, with its cause.
#[derive(Debug)]
pub struct Difference {
    /// A short name for the table of results.
    pub name: &'static str,
    /// The driver, by how its device names begin.
    pub driver: &'static str,
    /// The checks, by name; `*` stands for anything.
    pub checks: &'static [&'static str],
    /// What the trouble's text holds.
    pub says: &'static str,
    /// File and function of the kernel or of rdma-core.
    pub source: &'static str,
    /// What happens there.
    pub reason: &'static str,
}

/// All of them. One that explains nothing any more fails the run, and is to be taken out.
pub const DIFFERENCES: &[Difference] = &[];

impl Difference {
    /// Which of its patterns names this check, on a device of this name.
    #[must_use]
    pub fn covers(&self, device: &str, check: &str) -> Option<usize> {
        let covers = |pattern: &&'static str| matches(pattern, check);
        (device.starts_with(self.driver))
            .then(|| self.checks.iter().position(covers))
            .flatten()
    }
}

/// Whether a name is one of a pattern, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, wanted) in [
            ("srq/limit", "srq/limit", true),
            ("srq/limit", "srq/limits", false),
            ("matrix/RC/*", "matrix/RC/SEND/One", true),
            ("matrix/RC/*", "matrix/UC/SEND/One", false),
            ("matrix/*/One", "matrix/UC/SEND/One", true),
            ("matrix/*/SEND/*inline", "matrix/UC/SEND/One/inline", true),
            ("matrix/*/SEND/*inline", "matrix/UC/SEND/One", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
