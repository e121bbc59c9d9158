//! A run: rounds, in each of which all parts take their turns.

use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use crate::samples::Samples;

/// What the parts need to know of the run that they are part of.
#[derive(Debug)]
pub struct Run {
    /// Little of everything: to see that it runs.
    pub quick: bool,
    /// This round, from 0.
    pub round: u32,
    /// What was measured.
    pub samples: Samples,
}

impl Run {
    /// The numbers of so many passes of this round.
    pub fn passes(&self, count: u32) -> Range<u32> {
        let count = if self.quick { 2 } else { count };
        self.round * 1000..self.round * 1000 + count
    }

    /// `SPEED_ONLY="udp bandwidth,SEND,1048576"`: only this is measured of the parts `inside`, `udp` and `shm`, for a profiler.
    pub fn wants(&self, measure: &str, way: &str, x: usize) -> bool {
        let name = format!("{measure},{way},{x}");
        ONLY.as_ref().is_none_or(|only| name.starts_with(only))
    }

    /// `count`, or where little is wanted, that divided by `divisor`.
    pub fn less(&self, count: u32, divisor: u32) -> u32 {
        if self.quick { count / divisor } else { count }
    }
}

static ONLY: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("SPEED_ONLY").ok());

/// `SPEED_CLOCK=cpu`: what one thread does alone is measured in its own processor time. On a machine that does something
/// else, too, that says more; it leaves out what the device's thread does meanwhile.
static PROCESSOR_TIME: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("SPEED_CLOCK").is_some_and(|clock| clock == "cpu"));

/// A moment, for what one thread does alone.
#[derive(Clone, Copy, Debug)]
pub struct Moment(Duration);

impl Moment {
    /// This one.
    pub fn now() -> Moment {
        let clock = match *PROCESSOR_TIME {
            true => libc::CLOCK_THREAD_CPUTIME_ID,
            false => libc::CLOCK_MONOTONIC,
        };
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the structure is a live value of the type that clock_gettime(2) writes; both clocks are always there.
        unsafe { libc::clock_gettime(clock, &mut time) };
        Moment(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Seconds since then.
    pub fn seconds(self) -> f64 {
        (Moment::now().0 - self.0).as_secs_f64()
    }
}
