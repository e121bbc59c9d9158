//! Amounts as people write them: "1%", "200us".

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A probability: a number in 0..=1, written as percentage ("1%", "0.1%") or as fraction ("0.01").
///
/// ```
/// use rdma_soft::link::Probability;
///
/// assert_eq!("1%".parse::<Probability>(), "0.01".parse());
/// assert_eq!("0.01".parse::<Probability>().unwrap().to_string(), "1%");
/// assert!("2".parse::<Probability>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probability(f64);

impl Probability {
    /// Never.
    pub const NEVER: Probability = Probability(0.0);
    /// Always.
    pub const ALWAYS: Probability = Probability(1.0);

    /// The probability `fraction`, or `None` if that is not in 0..=1.
    pub fn new(fraction: f64) -> Option<Probability> {
        (0.0..=1.0)
            .contains(&fraction)
            .then_some(Probability(fraction))
    }

    /// The number, in 0..=1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Probability, AmountError> {
        let number = |text: &str| text.parse::<f64>().ok();
        let fraction = match text.strip_suffix('%') {
            Some(percent) => number(percent).map(|p| p / 100.0),
            None => number(text),
        };
        fraction
            .and_then(Probability::new)
            .ok_or_else(|| AmountError {
                text: text.to_owned(),
                accepted: "0% to 100%, or 0 to 1",
            })
    }
}

impl fmt::Display for Probability {
    /// As percentage where that is exact, else as fraction: it parses to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.0 * 1e11).round() / 1e9;
        if percent / 100.0 == self.0 {
            write!(f, "{percent}%")
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// Why a text is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not accepted here: write {accepted}")]
pub struct AmountError {
    /// What was written.
    pub text: String,
    /// What would be accepted.
    pub accepted: &'static str,
}

/// Units of time with their nanoseconds, the smallest first.
const UNITS: [(&str, u64); 4] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// The time that `text` says, such as `200us`, `1.5ms`, `2s` or `0`; it may be used as a
/// command line's value parser.
///
/// # Errors
/// [`AmountError`] if there is no number, no unit (`ns`, `us`, `ms`, `s`), or the time is
/// negative or above 3600 s.
pub fn parse_duration(text: &str) -> Result<Duration, AmountError> {
    const MOST: f64 = 3600e9;
    let (number, unit) = match text {
        "0" => ("0", 1),
        _ => UNITS
            .iter()
            .find_map(|&(name, nanos)| {
                let number = text.strip_suffix(name)?;
                number
                    .ends_with(|c: char| c.is_ascii_digit() || c == '.')
                    .then_some((number, nanos))
            })
            .unwrap_or(("", 0)),
    };
    let nanos = number.parse::<f64>().ok().map(|n| n * unit as f64);
    match nanos {
        Some(nanos) if (0.0..=MOST).contains(&nanos) => {
            Ok(Duration::from_nanos(nanos.round() as u64))
        }
        _ => Err(AmountError {
            text: text.to_owned(),
            accepted: "a time with its unit, such as 200us, 1.5ms or 2s, at most 3600s",
        }),
    }
}

/// `time` as [`parse_duration`] reads it: whole, in the largest unit that allows it.
pub fn display_duration(time: Duration) -> impl fmt::Display {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (name, unit) = (UNITS.iter().rev())
        .find(|(_, unit)| nanos.is_multiple_of(*unit))
        .unwrap_or(&UNITS[0]);
    format!("{}{name}", nanos / unit)
}
