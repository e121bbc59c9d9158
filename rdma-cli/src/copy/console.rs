//! What people see: lines, a progress bar below them, and each step of the Queue Pairs.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::term::{Style, WIDTH, folded};

/// Where the lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output, for people.
    Output,
    /// Standard error, for people: standard output carries the report.
    Errors,
    /// Standard output, bare: another `qp copy` reads them and shows them as its own.
    Parent,
}

/// The terminal of one process.
#[derive(Debug)]
pub struct Console {
    sink: Sink,
    style: Style,
    end: &'static str,
    bar: ProgressBar,
}

impl Console {
    /// The terminal of the process that is the end called `end`: `sender` or `receiver`.
    pub fn new(sink: Sink, end: &'static str) -> Console {
        let style = match sink {
            Sink::Errors => Style::of(&io::stderr()),
            _ => Style::of(&io::stdout()),
        };
        Console {
            sink,
            style,
            end,
            bar: ProgressBar::hidden(),
        }
    }

    /// How to style what is shown.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Shows a line.
    pub fn line(&self, text: impl std::fmt::Display) {
        // Nobody to read it is no reason to stop the copy.
        self.bar.suspend(|| {
            let _ = match self.sink {
                Sink::Errors => writeln!(io::stderr(), "{text}"),
                _ => writeln!(io::stdout(), "{text}"),
            };
        });
    }

    /// Shows a step of this end.
    pub fn step(&self, text: &str) {
        if self.sink == Sink::Parent {
            self.line(text);
        } else {
            self.step_of(self.end, text);
        }
    }

    /// Shows a step of the end called `end`.
    pub fn step_of(&self, end: &str, text: &str) {
        let end = format!("{:<8}", self.style.cyan(end));
        // At once: the other end's steps are shown by another thread.
        let lines = folded(text, WIDTH - 12).join(&format!("\n{:12}", ""));
        self.line(format_args!("  {end}  {lines}"));
    }

    /// Begins the progress bar of `total` bytes, where standard error is a terminal.
    pub fn begin(&self, total: u64) {
        if self.sink == Sink::Parent {
            return;
        }
        let template =
            "  {bar:26.cyan/dim}  {bytes:>10} of {total_bytes}  {binary_bytes_per_sec:>12}  {left}";
        if let Ok(look) = ProgressStyle::with_template(template) {
            let look = look.with_key("left", |state: &ProgressState, out: &mut dyn fmt::Write| {
                // Before anything came, nobody can tell.
                if state.pos() > 0 {
                    let _ = write!(out, "{:#} left", HumanDuration(state.eta()));
                }
            });
            self.bar.set_style(look.progress_chars("━━─"));
        }
        self.bar.set_length(total);
        self.bar
            .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        self.bar.reset();
    }

    /// Moves the progress bar to `done` bytes.
    pub fn progress(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Shows that something else takes its time.
    pub fn wait(&self, what: &'static str) {
        if self.sink == Sink::Parent {
            return;
        }
        if let Ok(look) = ProgressStyle::with_template("  {spinner:.cyan} {msg}") {
            self.bar.set_style(look);
        }
        self.bar
            .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        self.bar.reset();
        self.bar.set_message(what);
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    /// Takes the progress bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Turns what the libraries tell `tracing` into lines of the console.
#[derive(Debug)]
pub struct Narrator(pub std::sync::Arc<Console>);

impl<S: Subscriber> Layer<S> for Narrator {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut told = Told::default();
        event.record(&mut told);
        if *event.metadata().level() == Level::INFO
            && let Told {
                qp: Some(qp),
                from: Some(from),
                to: Some(to),
                mask,
            } = told
        {
            self.0
                .step(&step(&qp, &from, &to, &mask.unwrap_or_default()));
        }
    }
}

/// One transition, as a line shows it.
fn step(qp: &str, from: &str, to: &str, mask: &str) -> String {
    let names: Vec<&str> = mask
        .split(", ")
        .map(|name| name.strip_prefix("IBV_QP_").unwrap_or(name))
        .filter(|name| *name != "STATE")
        .collect();
    format!("{qp}  {from:>5} → {to:<5}  {}", names.join(" "))
        .trim_end()
        .to_owned()
}

/// The fields of an event that are shown.
#[derive(Debug, Default)]
struct Told {
    qp: Option<String>,
    from: Option<String>,
    to: Option<String>,
    mask: Option<String>,
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let place = match field.name() {
            "qp" => &mut self.qp,
            "from" => &mut self.from,
            "to" => &mut self.to,
            "mask" => &mut self.mask,
            _ => return,
        };
        *place = Some(format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_is_one_short_line() {
        assert_eq!(
            step(
                "soft1/1 QP 0x4f",
                "RESET",
                "INIT",
                "IBV_QP_STATE, IBV_QP_PKEY_INDEX, IBV_QP_PORT"
            ),
            "soft1/1 QP 0x4f  RESET → INIT   PKEY_INDEX PORT"
        );
        assert_eq!(
            step("soft1/1 QP 0x4f", "RTS", "ERR", "IBV_QP_STATE"),
            "soft1/1 QP 0x4f    RTS → ERR"
        );
    }
}
