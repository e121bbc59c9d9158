//! How many things were tried, and how they came out.

use std::fmt;
use std::process::ExitCode;

/// How many things were tried, and how they came out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// As the rules say.
    pub passed: u64,
    /// Not as the rules say, and nobody knows why.
    pub failed: u64,
    /// Could not be tried; a line `SKIP name: reason` said why.
    pub skipped: u64,
    /// Not as the rules say, for a reason that has a name.
    pub expected: u64,
}

impl Tally {
    /// Success where nothing failed.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.failed != 0))
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.expected += other.expected;
    }
}

impl fmt::Display for Tally {
    /// The form that `ci/matrix.sh` adds up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tally: {} passed, {} failed, {} skipped, {} expected differences",
            self.passed, self.failed, self.skipped, self.expected
        )
    }
}
