//! What people see while it goes on, where standard error is a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::control::{Limit, Run};
use crate::failure::{Failure, told};

/// The progress of the runs, and whether the user has had enough.
pub struct Progress {
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
}

impl Progress {
    /// Shows nothing, and hears no signal: for the end that answers.
    pub fn hidden() -> Progress {
        Progress {
            bar: ProgressBar::hidden(),
            interrupted: Arc::default(),
        }
    }

    /// Shows a bar, and takes an interruption for the wish to end.
    ///
    /// # Errors
    /// The system takes no handler for the signals.
    pub fn shown() -> Result<Progress, Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone()).map_err(told)?;
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(look) = ProgressStyle::with_template("  {msg}  {bar:30.cyan/dim}  {percent:>3} %")
        {
            bar.set_style(look.progress_chars("━━─"));
        }
        Ok(Progress { bar, interrupted })
    }

    /// A run begins: the `place`th of `sizes` sizes.
    pub fn begin(&self, run: &Run, place: usize, sizes: usize) {
        self.bar.reset();
        self.bar.set_length(match run.limit {
            Limit::Count(count) => count,
            Limit::Time(time) => time.as_millis() as u64,
        });
        self.bar.set_message(match sizes {
            1 => format!("{} bytes", run.size),
            _ => format!("{:>9} bytes, {} of {sizes} sizes", run.size, place + 1),
        });
    }

    /// So far it has come: messages, or milliseconds. Called at most each few milliseconds.
    pub fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Whether the user has interrupted it.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}
