use super::*;

#[test]
fn psn_is_24_bits() {
    assert_eq!(Psn::new(0xff_ffff).unwrap().get(), 0xff_ffff);
    let refused = Psn::new(0x100_0000).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "psn is 16777216, but must be in 0..=16777215 (24 bits)"
    );
}

#[test]
fn random_psns_differ() {
    let drawn: std::collections::HashSet<u32> =
        (0..64).map(|_| Psn::random().unwrap().get()).collect();
    assert!(drawn.len() > 32);
}

#[test]
fn counts_above_seven_are_refused_with_the_range() {
    assert!(RetryCount::new(7).is_ok());
    assert!(
        RetryCount::new(20)
            .unwrap_err()
            .to_string()
            .contains("retry_cnt is 20, but must be in 0..=7")
    );
    assert!(RnrRetry::times(7).is_err());
    assert!(AckTimeout::from_code(32).is_err());
    assert!(RnrTimer::from_code(32).is_err());
}

/// The intervals as ibv_modify_qp(3) lists them.
#[test]
fn rnr_codes_mean_what_the_manual_says() {
    for (code, micros) in [
        (0, 655_360),
        (1, 10),
        (5, 60),
        (12, 640),
        (13, 960),
        (14, 1280),
        (27, 122_880),
        (31, 491_520),
    ] {
        assert_eq!(
            RnrTimer::from_code(code).unwrap().interval(),
            Duration::from_micros(micros),
            "code {code}"
        );
    }
    assert_eq!(RnrTimer::at_least(Duration::ZERO).code(), 1);
    assert_eq!(RnrTimer::at_least(Duration::from_micros(11)).code(), 2);
    assert_eq!(
        RnrTimer::at_least(Duration::from_micros(491_520)).code(),
        31
    );
    assert_eq!(RnrTimer::at_least(Duration::from_micros(491_521)).code(), 0);
}

#[test]
fn timeouts_double() {
    assert_eq!(
        AckTimeout::from_code(14).unwrap().interval(),
        Some(Duration::from_nanos(67_108_864))
    );
    assert_eq!(AckTimeout::INFINITE.interval(), None);
    assert_eq!(AckTimeout::at_least(Duration::from_millis(67)).code(), 14);
    assert_eq!(AckTimeout::at_least(Duration::MAX).code(), 31);
}

#[test]
fn mtu_codes_and_bytes() {
    assert_eq!(PathMtu::from_bytes(4096), Some(PathMtu::Mtu4096));
    assert_eq!(PathMtu::from_code(3), Some(PathMtu::Mtu1024));
    assert_eq!(PathMtu::from_bytes(1500), None);
    assert_eq!(PathMtu::from_code(0), None);
    assert_eq!(PathMtu::Mtu4096.code(), 5);
}

#[test]
fn jitter_counts_and_one_hiccup_does_not() {
    let (half, hiccup) = (Duration::from_micros(500), Duration::from_secs(1));
    let steady = Rtt {
        max: hiccup,
        ..half.into()
    };
    assert_eq!(Timing::from_rtt(steady).timeout.code(), 12);
    // 4 x 10 ms is above 16.8 ms and 33.6 ms, codes 12 and 13.
    let shaky = Rtt {
        p90: Duration::from_millis(10),
        ..steady
    };
    assert_eq!(Timing::from_rtt(shaky).timeout.code(), 14);
    assert_eq!(Timing::from_rtt(Duration::MAX).timeout.code(), 31);
}

#[test]
fn budgets_stay_below_two_seconds() {
    assert_eq!(
        Timing::default().budget(),
        Some(Duration::from_nanos(67_108_864 * 7))
    );
    for rtt in [
        Duration::ZERO,
        Duration::from_micros(500),
        Duration::from_millis(8),
    ] {
        let timing = Timing::from_rtt(rtt);
        assert!(timing.timeout.interval().unwrap() >= rtt * 16);
        assert!(timing.budget().unwrap() < Duration::from_secs(2), "{rtt:?}");
    }
    assert_eq!(
        Timing {
            timeout: AckTimeout::INFINITE,
            ..Timing::default()
        }
        .budget(),
        None
    );
}
