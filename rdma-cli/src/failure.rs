//! How the command fails: one sentence that says what to change, and an exit status.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Why the command ends without having done what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something went wrong; the sentence says what, where, and what to change.
    #[error("{0}")]
    Told(String),
    /// Options that do not go together: status 2, as for options that do not parse.
    #[error("{0}")]
    Usage(String),
    /// The user interrupted it.
    #[error("interrupted: nothing was left under the final name")]
    Interrupted,
    /// The user interrupted the sender when only the receiver's word was missing.
    #[error(
        "interrupted before the receiver said that all is well: if it found so, the copy is there and whole"
    )]
    InterruptedLate,
    /// The user interrupted a measurement that has no result yet; its report, if one was asked for, says so.
    #[error("interrupted before anything was measured")]
    InterruptedEarly,
    /// Something was found, and has been printed: no failure of the command, but status 1.
    #[error("something was found")]
    Found,
    /// There is no such program to run: status 127, as of a shell.
    #[error("{0}")]
    NoProgram(String),
    /// The program is there, and cannot be run so: status 126, as of a shell.
    #[error("{0}")]
    CannotRun(String),
    /// It could not be looked at what was to be looked at: status 2.
    #[error("{0}")]
    CouldNotLook(String),
    /// Whoever read the output is gone: no reason to complain.
    #[error("nobody reads the output")]
    OutputClosed,
}

impl Failure {
    /// A failure with this sentence.
    pub fn told(sentence: impl Into<String>) -> Failure {
        Failure::Told(sentence.into())
    }

    /// The exit status: 1, 2 for wrong usage and for what could not be looked at, 130 after an interruption, 126 and 127
    /// where a program could not be run.
    pub fn status(&self) -> ExitCode {
        match self {
            Failure::Told(_) | Failure::Found => ExitCode::FAILURE,
            Failure::Usage(_) | Failure::CouldNotLook(_) => ExitCode::from(2),
            Failure::Interrupted | Failure::InterruptedLate | Failure::InterruptedEarly => {
                ExitCode::from(130)
            }
            Failure::CannotRun(_) => ExitCode::from(126),
            Failure::NoProgram(_) => ExitCode::from(127),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

/// Prints a failure for machines: people read it on standard error, whether or not this can be written.
pub fn print_json(failure: &Failure) -> io::Result<()> {
    let error = serde_json::json!({ "error": failure.to_string() });
    writeln!(io::stdout(), "{error}")
}

/// A failure that is what the library says.
pub fn told(error: impl Display) -> Failure {
    Failure::told(error.to_string())
}

/// An error in writing the output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Told(format!("cannot write the output: {error}")),
        }
    }
}
