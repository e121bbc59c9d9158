use std::time::Duration;

use proptest::prelude::*;

use crate::link::{Faults, FaultsError, Probability, display_duration, parse_duration};

#[test]
fn probabilities() {
    for (text, value, shown) in [
        ("1%", 0.01, "1%"),
        ("0.01", 0.01, "1%"),
        ("0.1%", 0.001, "0.1%"),
        ("100%", 1.0, "100%"),
        ("1", 1.0, "100%"),
        ("0", 0.0, "0%"),
        ("7%", 0.07, "7%"),
        ("1e-9", 1e-9, "0.000000001"),
    ] {
        let p: Probability = text.parse().unwrap();
        assert_eq!(p.get(), value, "{text}");
        assert_eq!(p.to_string(), shown, "{text}");
    }
    for text in ["", "%", "-1%", "101%", "1.5", "NaN", "inf", "1 %", "one"] {
        let error = text.parse::<Probability>().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{text:?} is not accepted here: write 0% to 100%, or 0 to 1")
        );
    }
}

#[test]
fn durations() {
    for (text, nanos, shown) in [
        ("200us", 200_000, "200us"),
        ("1.5ms", 1_500_000, "1500us"),
        ("2s", 2_000_000_000, "2s"),
        ("17ns", 17, "17ns"),
        ("1000us", 1_000_000, "1ms"),
        ("0", 0, "0s"),
        ("0s", 0, "0s"),
        ("3600s", 3_600_000_000_000, "3600s"),
    ] {
        let time = parse_duration(text).unwrap();
        assert_eq!(time, Duration::from_nanos(nanos), "{text}");
        assert_eq!(display_duration(time).to_string(), shown, "{text}");
    }
    for text in [
        "", "200", "us", "-1us", "1m", "infs", "NaNs", "3601s", "1 us", "1e3us us",
    ] {
        assert!(parse_duration(text).is_err(), "{text:?}");
    }
}

#[test]
fn lists_of_faults() {
    let text = "loss=1%,duplicate=2%,reorder=3%,corrupt=0.1%,delay=200us,jitter=50us,seed=7";
    let faults: Faults = text.parse().unwrap();
    assert_eq!(faults.loss.get(), 0.01);
    assert_eq!(faults.duplicate.get(), 0.02);
    assert_eq!(faults.reorder.get(), 0.03);
    assert_eq!(faults.corrupt.get(), 0.001);
    assert_eq!(faults.delay, Duration::from_micros(200));
    assert_eq!(faults.jitter, Duration::from_micros(50));
    assert_eq!(faults.seed, Some(7));
    assert_eq!(faults.to_string(), text);
    assert!(!faults.is_none());

    assert_eq!("".parse(), Ok(Faults::default()));
    assert!("loss=0,seed=3".parse::<Faults>().unwrap().is_none());

    for (text, message) in [
        (
            "los=1%",
            "\"los=1%\" is no fault: write loss, duplicate, reorder, corrupt, delay, jitter or seed, then = and the amount",
        ),
        (
            "loss=1%,reorder",
            "\"reorder\" is no fault: write loss, duplicate, reorder, corrupt, delay, jitter or seed, then = and the amount",
        ),
        (
            "loss=2",
            "loss: \"2\" is not accepted here: write 0% to 100%, or 0 to 1",
        ),
        (
            "delay=200",
            "delay: \"200\" is not accepted here: write a time with its unit, such as 200us, 1.5ms or 2s, at most 3600s",
        ),
        (
            "seed=-1",
            "seed: \"-1\" is not accepted here: write a whole number from 0 to 18446744073709551615",
        ),
    ] {
        let error: FaultsError = text.parse::<Faults>().unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

proptest! {
    #[test]
    fn what_is_shown_parses_to_the_same(
        p in prop::collection::vec(0.0..=1.0f64, 4),
        delay in 0..3_600_000_000_000u64,
        jitter in 0..1_000_000u64,
        seed in any::<Option<u64>>(),
    ) {
        let p = |i: usize| Probability::new(p[i]).unwrap();
        let faults = Faults {
            loss: p(0),
            duplicate: p(1),
            reorder: p(2),
            corrupt: p(3),
            delay: Duration::from_nanos(delay),
            jitter: Duration::from_nanos(jitter),
            seed,
        };
        let text = faults.to_string();
        prop_assert_eq!(text.parse(), Ok(faults), "{}", text);
    }
}
