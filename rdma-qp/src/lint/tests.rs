use super::*;

use rdma_core_sys::{IBV_PORT_DOWN, IBV_PORT_INIT};

fn codes(settings: &Settings) -> Vec<&'static str> {
    check(settings).iter().map(Finding::code).collect()
}

fn timeout(code: u8) -> Option<AckTimeout> {
    Some(AckTimeout::from_code(code).unwrap())
}

fn millis(n: u64) -> Option<Rtt> {
    Some(Duration::from_millis(n).into())
}

/// What nothing is known of is not judged, and what people usually set is fine.
#[test]
fn good_settings_and_unknown_ones_give_no_finding() {
    assert_eq!(check(&Settings::default()), []);
    for transport in Transport::ALL {
        let usual = Settings {
            path_mtu: Some(PathMtu::Mtu4096),
            hop_limit: Some(64),
            send_depth: Some(128),
            recv_depth: Some(0),
            port: Some((1, IBV_PORT_ACTIVE)),
            interface: Some((9000, true)),
            rtt: Some(Duration::from_micros(50).into()),
            ..Settings::of(transport, Timing::default())
        };
        assert_eq!(check(&usual), [], "{transport}");
    }
    for rtt in [0, 1, 10, 100, 1000] {
        let derived = Settings {
            rtt: millis(rtt),
            ..Settings::of(Transport::Rc, Timing::from_rtt(Duration::from_millis(rtt)))
        };
        assert_eq!(check(&derived), [], "{rtt} ms");
    }
}

/// 4.096 us x 2^8 is 1.05 ms, which is more than the round trip of 0.5 ms and less than four of it.
#[test]
fn a_timeout_needs_four_round_trips() {
    let with = |code, rtt_us| Settings {
        timeout: timeout(code),
        rtt: Some(Duration::from_micros(rtt_us).into()),
        ..Settings::default()
    };
    let found = check(&with(8, 500));
    assert_eq!(
        found[0].to_string(),
        "timeout 8 (1.048576ms) is below 4 round trips of 500µs: an answer that is a little late counts as lost, and \
         requests end in IBV_WC_RETRY_EXC_ERR on a good network; set timeout to 12 (16.777216ms)"
    );
    // What was measured is told to three digits.
    let measured = check(&Settings {
        rtt: Some(Duration::from_nanos(5_873_664).into()),
        ..with(8, 0)
    });
    let told = measured[0].to_string();
    assert!(told.contains("round trips of 5.87ms:"), "{told}");
    assert_eq!(codes(&with(14, 500)), [""; 0]);
    // The border: 4 x 262.144 us is code 8 exactly.
    assert_eq!(codes(&with(8, 262)), [""; 0]);
    assert_eq!(codes(&with(8, 263)), ["timeout-short"]);
    // Jitter counts, by what nine of ten stay within.
    let jitter = Rtt {
        min: Duration::from_micros(50),
        p90: Duration::from_millis(2),
        max: Duration::from_secs(1),
    };
    let shaky = Settings {
        rtt: Some(jitter),
        ..with(10, 0)
    };
    assert_eq!(codes(&shaky), ["timeout-short"]);
    assert_eq!(
        codes(&Settings {
            timeout: timeout(11),
            ..shaky
        }),
        [""; 0]
    );
}

#[test]
fn codes_that_mean_something_else_than_they_look_like() {
    let zero = Timing {
        timeout: AckTimeout::INFINITE,
        retry_cnt: RetryCount::new(0).unwrap(),
        rnr_retry: RnrRetry::times(0).unwrap(),
        min_rnr_timer: RnrTimer::from_code(0).unwrap(),
    };
    let of = |transport| codes(&Settings::of(transport, zero));
    let sends = ["timeout-infinite", "retry-cnt-zero", "rnr-retry-zero"];
    assert_eq!(
        of(Transport::Rc),
        [&sends[..], &["rnr-timer-longest"]].concat()
    );
    // The initiator of XRC receives nothing, its target sends nothing, and UC and UD repeat nothing.
    assert_eq!(of(Transport::XrcIni), sends);
    assert_eq!(of(Transport::Uc), [""; 0]);
    assert_eq!(of(Transport::Ud), [""; 0]);
    let found = check(&Settings::of(Transport::Rc, zero));
    let text = found.last().unwrap().to_string();
    assert!(
        text.contains("655.36 ms") && text.contains("set min_rnr_timer to 12 (640µs)"),
        "{text}"
    );
    // A forgotten round trip changes nothing about for ever.
    let slow = Settings {
        rtt: millis(5),
        ..Settings::of(Transport::Rc, zero)
    };
    assert_eq!(codes(&slow)[..3], sends);
}

#[test]
fn queues_ports_and_hops() {
    let settings = Settings {
        hop_limit: Some(1),
        send_depth: Some(1),
        recv_depth: Some(1),
        port: Some((2, IBV_PORT_DOWN)),
        ..Settings::default()
    };
    assert_eq!(
        codes(&settings),
        ["port-down", "hop-limit", "depth-one", "depth-one"]
    );
    let text: Vec<_> = check(&settings).iter().map(ToString::to_string).collect();
    assert!(
        text[0].starts_with("port 2 is IBV_PORT_DOWN: nothing leaves it"),
        "{}",
        text[0]
    );
    assert!(text[1].ends_with("set hop_limit to 64"), "{}", text[1]);
    assert!(text[2].starts_with("the SQ holds 1 request"), "{}", text[2]);
    assert!(text[3].starts_with("the RQ holds 1 request"), "{}", text[3]);
    for hop_limit in [0, 2] {
        let settings = Settings {
            hop_limit: Some(hop_limit),
            port: Some((1, IBV_PORT_INIT)),
            ..Settings::default()
        };
        let expected: &[&str] = match hop_limit {
            0 => &["port-down", "hop-limit"],
            _ => &["port-down"],
        };
        assert_eq!(codes(&settings), expected);
    }
}

/// An IPv4 packet of 4096 bytes: 20 IP, 8 UDP, 12 BTH, 16 RETH, 4 immediate, 4 ICRC, so 4160.
#[test]
fn an_interface_carries_the_path_mtu_and_the_headers() {
    let with = |path_mtu, interface, ipv4| Settings {
        path_mtu: Some(path_mtu),
        interface: Some((interface, ipv4)),
        ..Settings::default()
    };
    assert_eq!(codes(&with(PathMtu::Mtu4096, 4160, true)), [""; 0]);
    assert_eq!(
        codes(&with(PathMtu::Mtu4096, 4159, true)),
        ["mtu-over-interface"]
    );
    assert_eq!(
        codes(&with(PathMtu::Mtu4096, 4160, false)),
        ["mtu-over-interface"]
    );
    let text = check(&with(PathMtu::Mtu4096, 1500, true))[0].to_string();
    assert!(
        text.starts_with("path_mtu 4096 makes packets of up to 4160 bytes, but the network interface carries 1500")
            && text.ends_with("an MTU of 4160, or set path_mtu to 1024"),
        "{text}"
    );
    let text = check(&with(PathMtu::Mtu256, 100, true))[0].to_string();
    assert!(text.ends_with("an MTU of 320"), "{text}");
}

#[test]
fn both_ends_send_in_one_class() {
    let here = Endpoint {
        qp_num: 1,
        psn: Default::default(),
        gid: Default::default(),
        lid: 0,
        link_layer: crate::endpoint::LinkLayer::Ethernet,
        mtu: PathMtu::Mtu1024,
        initiator_depth: 1,
        responder_depth: 1,
        traffic_class: 104,
        service_level: 3,
        flow_label: 7,
        hop_limit: 64,
        port: 1,
        pkey: 0xffff,
        qkey: None,
    };
    // Flow labels are each end's own.
    let there = Endpoint {
        flow_label: 8,
        ..here.clone()
    };
    let with = |there| Settings {
        ends: Some((here.clone(), there)),
        ..Settings::default()
    };
    assert_eq!(codes(&with(there.clone())), [""; 0]);
    let plain = Endpoint {
        traffic_class: 0,
        ..there
    };
    let text = check(&with(plain))[0].to_string();
    assert!(
        text.starts_with("traffic_class is 104 here and 0 at the peer"),
        "{text}"
    );
}
