//! One check, and how it came out.

use std::fmt;

use rdma_core_sys::rules::Kind;

use super::Arm;
use crate::device::Failed;

/// One check of the suite: a body that takes any device.
pub struct Check {
    /// Its name: group, then what it is about, with slashes between.
    pub name: String,
    /// Who else is expected to pass it.
    pub kind: Kind,
    body: Box<dyn Fn(&Arm) -> Outcome>,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({}, {:?})", self.name, self.kind)
    }
}

impl Check {
    /// A check of this kind.
    pub fn of(
        kind: Kind,
        name: impl Into<String>,
        body: impl Fn(&Arm) -> Outcome + 'static,
    ) -> Check {
        Check {
            name: name.into(),
            kind,
            body: Box::new(body),
        }
    }

    /// A check of what every device must do.
    pub fn rule(name: impl Into<String>, body: impl Fn(&Arm) -> Outcome + 'static) -> Check {
        Check::of(Kind::VerbsRule, name, body)
    }

    /// A check of what our device promises beyond the rules of verbs.
    pub fn ours(name: impl Into<String>, body: impl Fn(&Arm) -> Outcome + 'static) -> Check {
        Check::of(Kind::StricterByUs, name, body)
    }

    /// What it is counted with: the first part of its name, and the transport of a request of the table.
    #[must_use]
    pub fn group(&self) -> &str {
        let parts = if self.name.starts_with("matrix/") {
            2
        } else {
            1
        };
        let end = self.name.match_indices('/').nth(parts - 1);
        end.map_or(&self.name[..], |(at, _)| &self.name[..at])
    }

    /// Runs it once.
    ///
    /// # Errors
    /// What is wrong, or why it could not run.
    pub fn run(&self, arm: &Arm) -> Outcome {
        (self.body)(arm)
    }
}

/// How a check came out.
pub type Outcome = Result<Done, Trouble>;

/// A check that ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// What is legal works.
    Passed,
    /// What is illegal was refused.
    Refused,
}

/// A check that did not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The device does something else than it must.
    Wrong(String),
    /// A message did not arrive, on a transport that may lose some.
    Lost(String),
    /// It could not run, and why.
    Skip(String),
}

impl From<String> for Trouble {
    fn from(text: String) -> Trouble {
        Trouble::Wrong(text)
    }
}

impl From<&str> for Trouble {
    fn from(text: &str) -> Trouble {
        Trouble::Wrong(text.to_owned())
    }
}

impl From<Failed> for Trouble {
    /// A call that is not supported skips the check.
    fn from(failed: Failed) -> Trouble {
        match failed.errno {
            libc::EOPNOTSUPP => Trouble::Skip(format!("the device has no {}", failed.call)),
            _ => Trouble::Wrong(failed.to_string()),
        }
    }
}

/// Fails a check unless two things are equal.
///
/// # Errors
/// Both, with what they are.
pub fn expect<T: PartialEq + fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), Trouble> {
    match found == wanted {
        true => Ok(()),
        false => Err(Trouble::Wrong(format!(
            "{what} is {found:?} instead of {wanted:?}"
        ))),
    }
}

/// Fails a check unless a call was refused with one of these errno values; a call that is not supported skips it.
///
/// # Errors
/// What it did instead.
pub fn refused(what: &str, result: Result<(), Failed>, errnos: &[i32]) -> Outcome {
    match result {
        Err(failed) if errnos.contains(&failed.errno) => Ok(Done::Refused),
        Err(failed) if failed.errno == libc::EOPNOTSUPP => Err(failed.into()),
        Err(failed) => Err(Trouble::Wrong(format!(
            "{what} is refused with errno {} instead of {errnos:?}",
            failed.errno
        ))),
        Ok(()) => Err(Trouble::Wrong(format!("{what} is accepted"))),
    }
}
