//! A call that was refused.

use std::borrow::Cow;

use rustix::io::Errno;

use super::modify::ModifyError;

/// A call that was refused: the error number that verbs give, and what to change, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct CallError {
    /// What the verbs call gives.
    pub errno: Errno,
    /// What is wrong, with the values.
    pub why: Cow<'static, str>,
}

impl CallError {
    /// An error with a text of its own.
    pub fn new(errno: Errno, why: impl Into<Cow<'static, str>>) -> CallError {
        CallError {
            errno,
            why: why.into(),
        }
    }

    /// `EINVAL`, and why.
    pub fn invalid(why: impl Into<Cow<'static, str>>) -> CallError {
        CallError::new(Errno::INVAL, why)
    }

    /// `EBUSY`, and who has it.
    pub fn busy(why: impl Into<Cow<'static, str>>) -> CallError {
        CallError::new(Errno::BUSY, why)
    }
}

impl From<Errno> for CallError {
    fn from(errno: Errno) -> CallError {
        CallError::new(errno, errno.to_string())
    }
}

impl From<ModifyError> for CallError {
    fn from(error: ModifyError) -> CallError {
        CallError::new(error.errno(), error.to_string())
    }
}
