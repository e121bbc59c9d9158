//! What a dump says of a live QP, what the lint finds, and the round trip that both look at.

mod common;
mod fake;

use std::time::Duration;

use common::*;
use fake::Fake;
use rdma_core_sys::*;
use rdma_qp::dump::{Dump, Failed, Wrong};
use rdma_qp::exchange::{Exchange, from_fn, shm, tcp};
use rdma_qp::lint::Finding;
use rdma_qp::{
    Access, AckTimeout, Device, GidKind, LinkLayer, PathMtu, QpRef, RetryCount, RnrRetry, RnrTimer,
    Timing, ToErr, ToInit, ToReset,
};
use rdma_soft::Profile;

/// A dump that went through its text.
fn dump(end: &End) -> Dump {
    let text = end.qp.dump().to_json();
    let read = Dump::from_json(&text).unwrap();
    assert_eq!(read.to_json(), text);
    assert_eq!(read.missing, [""; 0]);
    read
}

fn codes(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(Finding::code).collect()
}

#[test]
fn a_dump_grows_with_the_states() {
    let device = device(Profile::default());
    let (mut p, mut q) = (End::new(&device, 64), End::new(&device, 64));
    let fresh = dump(&p);
    assert_eq!(
        (&fresh.qp.state[..], &fresh.qp.transport[..]),
        ("RESET", "RC")
    );
    assert_eq!(
        (fresh.qp.number, fresh.taken.pid),
        (p.qp.qp_num(), std::process::id())
    );
    assert_eq!(
        (&fresh.device.name[..], fresh.device.ports),
        (device.name(), 1)
    );
    assert_eq!(fresh.device.guid, format!("{:016x}", device.guid()));
    assert_eq!(
        (&fresh.port, &fresh.endpoint, fresh.last_error),
        (&None, &None, None)
    );
    assert_eq!(fresh.qp.attributes, Default::default());
    let cap = fresh.qp.cap.unwrap();
    assert!(cap.max_send_wr >= 32 && cap.max_recv_wr >= 32 && cap.max_inline_data >= 64);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(fresh.taken.unix_ms <= now && fresh.taken.unix_ms + 60_000 > now);

    let (of_p, of_q) = (p.describe(&device), q.describe(&device));
    p.qp.init().unwrap();
    let init = dump(&p);
    assert_eq!(init.qp.state, "INIT");
    let attributes = &init.qp.attributes;
    assert_eq!(
        (attributes.port_num, attributes.qp_access_flags),
        (Some(1), Some(all().bits()))
    );
    assert_eq!(
        (attributes.dest_qp_num, &attributes.path, attributes.timeout),
        (None, &None, None)
    );
    let port = init.port.as_ref().unwrap();
    assert_eq!((port.number, &port.state[..]), (1, "IBV_PORT_ACTIVE"));
    assert_eq!(
        (port.link_layer, port.active_mtu),
        (Some(LinkLayer::Ethernet), Some(PathMtu::Mtu4096))
    );
    assert_eq!(
        (init.gids[0].kind, init.gids[0].gid),
        (GidKind::RoceV2, of_p.endpoint.gid)
    );
    let ends = init.endpoint.as_ref().unwrap();
    assert_eq!((&ends.here, &ends.there), (&of_p.endpoint, &None));

    let timing = Timing::default();
    let agreed = p.qp.connect_begin(&of_q, timing).unwrap();
    let rtr = dump(&p);
    let attributes = &rtr.qp.attributes;
    assert_eq!(attributes.dest_qp_num, Some(of_q.endpoint.qp_num));
    assert_eq!(
        (attributes.rq_psn, attributes.sq_psn),
        (Some(of_q.endpoint.psn), None)
    );
    assert_eq!(
        (attributes.min_rnr_timer, attributes.timeout),
        (Some(12), None)
    );
    assert_eq!(rtr.source(), rtr.gids.first());
    let global = attributes.path.as_ref().unwrap().global.as_ref().unwrap();
    assert_eq!((global.dgid, global.hop_limit), (of_q.endpoint.gid, 64));

    let also = q.qp.connect_begin(&of_p, timing).unwrap();
    p.qp.connect_finish(agreed, timing).unwrap();
    q.qp.connect_finish(also, timing).unwrap();
    let rts = dump(&p);
    let attributes = &rts.qp.attributes;
    assert_eq!(
        (
            attributes.timeout,
            attributes.retry_cnt,
            attributes.rnr_retry
        ),
        (Some(14), Some(6), Some(7))
    );
    assert_eq!(attributes.sq_psn, Some(of_p.endpoint.psn));
    let ends = rts.endpoint.as_ref().unwrap();
    assert_eq!(
        (&ends.here, ends.there.as_ref()),
        (&of_p.endpoint, Some(&of_q.endpoint))
    );
    // The two ends' dumps speak of one connection.
    let other = dump(&q);
    assert_eq!(other.endpoint.unwrap().there, Some(of_p.endpoint));

    // What it was connected with stays to be seen in ERR, and is gone with RESET.
    p.qp.to(ToErr).unwrap();
    let err = dump(&p);
    assert_eq!(
        (&err.qp.state[..], err.qp.attributes.timeout),
        ("ERR", Some(14))
    );
    assert!(err.endpoint.is_some());
    p.qp.to(ToReset).unwrap();
    let reset = dump(&p);
    assert_eq!(
        (reset.qp.attributes, reset.endpoint),
        (Default::default(), None)
    );
}

#[test]
fn a_dump_has_the_books_and_the_last_error() {
    let device = device(Profile::default());
    let ((mut p, there), (mut q, _)) = pair(&device, 64);
    let refused =
        p.qp.to(ToInit {
            port: 1,
            pkey_index: 0,
            access: Access::empty(),
        })
        .unwrap_err();
    let error = dump(&p).last_error.unwrap();
    assert_eq!(error.text, refused.to_string());
    let expected = Failed::Modify {
        from: Some("RTS".into()),
        to: "INIT".into(),
        errno: 22,
        called: false,
        problems: vec![Wrong {
            code: refused.problems[0].code().into(),
            text: refused.problems[0].to_string(),
        }],
    };
    assert_eq!(error.what, expected);

    let good =
        p.qp.write(p.mr.slice(0, 8).unwrap(), there.region(0).unwrap().at(0))
            .unwrap();
    p.cq.wait(&good, LIMIT).unwrap();
    let mut wrong = there.region(0).unwrap().at(0);
    wrong.rkey ^= 1;
    let bad = p.qp.write(p.mr.slice(0, 8).unwrap(), wrong).unwrap();
    let flushed =
        p.qp.write(p.mr.slice(0, 8).unwrap(), there.region(0).unwrap().at(0));
    let flushed = flushed.unwrap();
    assert!(p.cq.wait(&bad, LIMIT).is_err() && p.cq.wait(&flushed, LIMIT).is_err());
    let broken = dump(&p);
    let books = broken.accounts.unwrap().send;
    assert_eq!(
        (books.accepted, books.succeeded, books.failed, books.flushed),
        (3, 1, 1, 1)
    );
    let error = broken.last_error.unwrap();
    let Failed::Request {
        operation,
        status,
        status_name,
        ..
    } = &error.what
    else {
        panic!("{error:?}");
    };
    assert_eq!((&operation[..], *status), ("RDMA WRITE", 10));
    assert_eq!(
        status_name.as_deref(),
        Some("IBV_WC_REM_ACCESS_ERR"),
        "the flush is no error of its own"
    );
    assert!(
        error.text.contains(&there.endpoint.gid.to_string()),
        "{}",
        error.text
    );
    // It outlives the life that it is of.
    p.qp.to(ToReset).unwrap();
    assert_eq!(dump(&p).last_error, Some(error));
    q.qp.to(ToErr).unwrap();
    assert_eq!(dump(&q).last_error, None);
}

#[test]
fn a_dump_of_a_broken_device_says_what_is_missing() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let mut end = End::new(&device, 64);
    end.describe(&device);
    end.qp.init().unwrap();
    fake.fail("query_qp", 5);
    fake.fail("query_port 1", 5);
    fake.fail("query_port 1", 19);
    let broken = Dump::from_json(&end.qp.dump().to_json()).unwrap();
    assert_eq!(
        (&broken.qp.state[..], &broken.port, broken.gids.len()),
        ("", &None, 0)
    );
    let [qp, state, table] = &broken.missing[..] else {
        panic!("{:?}", broken.missing);
    };
    assert!(qp.contains("cannot be queried: EIO (5)"), "{qp}");
    assert!(
        state.contains("the state of fake0/1 cannot be queried: EIO (5)"),
        "{state}"
    );
    assert!(
        table.contains("fake0/1") && table.contains("ENODEV (19)"),
        "{table}"
    );
    // The next one finds out again.
    let whole = end.qp.dump();
    assert_eq!((&whole.qp.state[..], whole.missing.len()), ("INIT", 0));
    assert_eq!(
        whole
            .gids
            .iter()
            .map(|entry| entry.index)
            .collect::<Vec<_>>(),
        [0, 2, 3]
    );
}

/// A QP that the program owns: the device says the same of it, and nobody here knows its books.
#[test]
fn a_qp_of_the_program_has_a_dump_without_books() {
    let device = device(Profile::default());
    let ((mut p, _), (_q, _)) = pair(&device, 64);
    for state in ["RTS", "ERR"] {
        let own = dump(&p);
        // SAFETY: the QP lives until the end of this test, which makes no other call with it meanwhile.
        let foreign = unsafe { QpRef::from_raw(rdma_soft::verbs(), p.qp.as_ptr()) }.unwrap();
        let foreign_dump = foreign.dump();
        assert_eq!(
            (&foreign_dump.qp.state[..], foreign_dump.qp.number),
            (state, p.qp.qp_num())
        );
        // What it was told first is known of a QP of this library only.
        let mut known = own.qp.attributes;
        assert_eq!(
            (known.first_sq_psn.take(), known.first_rq_psn.take()),
            (known.sq_psn, known.rq_psn)
        );
        assert_eq!(foreign_dump.qp.attributes, known);
        assert!(
            foreign_dump.qp.attributes.timeout.is_some(),
            "it came as far as RTS"
        );
        assert_eq!((foreign_dump.port, foreign_dump.gids), (own.port, own.gids));
        assert_eq!((foreign_dump.accounts, foreign_dump.qp.cap), (None, None));
        assert_eq!(foreign.lint(None), []);
        drop(foreign);
        if state == "RTS" {
            p.qp.to(ToErr).unwrap();
        }
    }
}

/// UC repeats nothing and has no READs, so its dump has none of that and the lint does not look for it.
#[test]
fn a_transport_shows_what_it_has() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let mut p = pd.uc(&cq).create().unwrap();
    let mut q = pd.uc(&cq).create().unwrap();
    let peer = |endpoint| rdma_qp::Peer {
        endpoint,
        regions: vec![],
    };
    let (of_p, of_q) = (p.endpoint(&gid).unwrap(), q.endpoint(&gid).unwrap());
    let worst = Timing {
        timeout: AckTimeout::INFINITE,
        retry_cnt: RetryCount::new(0).unwrap(),
        rnr_retry: RnrRetry::times(0).unwrap(),
        min_rnr_timer: RnrTimer::from_code(0).unwrap(),
    };
    let agreed = p.connect_begin(&peer(of_q), worst).unwrap();
    let also = q.connect_begin(&peer(of_p), worst).unwrap();
    p.connect_finish(agreed, worst).unwrap();
    q.connect_finish(also, worst).unwrap();
    let dump = p.dump();
    assert_eq!((&dump.qp.transport[..], &dump.qp.state[..]), ("UC", "RTS"));
    let attributes = &dump.qp.attributes;
    assert!(attributes.sq_psn.is_some() && attributes.path_mtu.is_some());
    assert_eq!(
        (
            attributes.timeout,
            attributes.rnr_retry,
            attributes.min_rnr_timer
        ),
        (None, None, None)
    );
    assert_eq!(p.lint(None), []);
}

#[test]
fn harmful_settings_of_a_live_qp_are_found() {
    let mut profile = Profile::default();
    profile.ports[0].up = false;
    let device = device(profile);
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let mut p = pd.rc(&cq).send_depth(1).recv_depth(1).create().unwrap();
    let mut q = pd.rc(&cq).create().unwrap();
    let peer = |endpoint| rdma_qp::Peer {
        endpoint,
        regions: vec![],
    };
    let (of_p, of_q) = (p.endpoint(&gid).unwrap(), q.endpoint(&gid).unwrap());
    let worst = Timing {
        timeout: AckTimeout::INFINITE,
        retry_cnt: RetryCount::new(0).unwrap(),
        rnr_retry: RnrRetry::times(0).unwrap(),
        min_rnr_timer: RnrTimer::from_code(0).unwrap(),
    };
    let agreed = p.connect_begin(&peer(of_q), worst).unwrap();
    let also = q.connect_begin(&peer(of_p), worst).unwrap();
    // Before RTS what is sent is not set yet.
    assert!(!codes(&p.lint(None)).contains(&"timeout-infinite"));
    p.connect_finish(agreed, worst).unwrap();
    q.connect_finish(also, worst).unwrap();
    let found = p.lint(None);
    for code in [
        "port-down",
        "timeout-infinite",
        "retry-cnt-zero",
        "rnr-retry-zero",
        "rnr-timer-longest",
    ] {
        assert!(codes(&found).contains(&code), "{code}: {found:?}");
    }
}

/// Each way of exchanging measures a round trip and connects.
#[test]
fn every_exchange_measures_and_connects() {
    let device = device(Profile::default());
    let (left, right) = shm::pair().unwrap();
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (to_b, from_a) = std::sync::mpsc::channel::<Vec<u8>>();
    let (to_a, from_b) = std::sync::mpsc::channel::<Vec<u8>>();
    let both = &std::sync::Barrier::new(2);
    let end = |exchange: &mut dyn Exchange| {
        let mut end = End::new(&device, 64);
        let rtt = exchange.measure_rtt(16).unwrap();
        assert!(Duration::ZERO < rtt.min && rtt.min <= rtt.p90 && rtt.p90 <= rtt.max);
        let here = end.describe(&device);
        let there = exchange.swap(&here.endpoint, &here.regions).unwrap();
        end.qp.init().unwrap();
        let receive = end.qp.recv(end.mr.slice(0, 8).unwrap()).unwrap();
        end.qp
            .connect(&there, exchange, Timing::from_rtt(rtt))
            .unwrap();
        let send = end.qp.send(end.mr.slice(8, 8).unwrap()).unwrap();
        end.cq.wait(&send, LIMIT).unwrap();
        end.cq.wait(&receive, LIMIT).unwrap();
        // Nobody leaves before the other is done.
        exchange.barrier().unwrap();
    };
    std::thread::scope(|s| {
        s.spawn(|| end(&mut left.join(LIMIT).unwrap()));
        s.spawn(|| end(&mut right.join(LIMIT).unwrap()));
        s.spawn(|| end(&mut listener.accept(LIMIT).unwrap()));
        s.spawn(|| end(&mut tcp::connect(address, LIMIT).unwrap()));
        s.spawn(move || {
            end(&mut from_fn(
                |mine| {
                    to_b.send(mine.to_vec())?;
                    Ok(from_b.recv_timeout(LIMIT)?)
                },
                || {
                    both.wait();
                    Ok(())
                },
            ));
        });
        s.spawn(move || {
            end(&mut from_fn(
                |mine| {
                    to_a.send(mine.to_vec())?;
                    Ok(from_a.recv_timeout(LIMIT)?)
                },
                || {
                    both.wait();
                    Ok(())
                },
            ));
        });
    });
}

/// The trouble of a timeout that is too short, made large enough for a busy machine: 100 ms each way, and code 8, which is
/// 1.05 ms. Every state is right, and the first request dies. What the measured round trip gives cures it.
#[test]
fn a_timeout_below_the_round_trip_is_found_and_cured_by_the_measured_one() {
    let way = Duration::from_millis(100);
    let slow = || {
        let mut profile = Profile::default();
        profile.faults.delay = way;
        device(profile)
    };
    let (a, b) = (slow(), slow());
    let meet = |timing| {
        let (mut p, mut q) = (End::new(&a, 64), End::new(&b, 64));
        connect((&mut p, &a), (&mut q, &b), timing);
        (p, q)
    };
    let patient = Timing {
        timeout: AckTimeout::from_code(20).unwrap(),
        ..Timing::default()
    };
    let (mut p, _q) = meet(patient);
    let rtt = p.qp.measure_rtt(&p.cq, 3, LIMIT).unwrap();
    assert!(rtt.min >= 2 * way, "{rtt}");
    assert_eq!(p.qp.lint(Some(rtt)), []);

    let short = Timing {
        timeout: AckTimeout::from_code(8).unwrap(),
        retry_cnt: RetryCount::new(1).unwrap(),
        ..Timing::default()
    };
    let (mut p, _q) = meet(short);
    assert_eq!(p.qp.state().unwrap(), IBV_QPS_RTS);
    assert_eq!(p.qp.lint(None), [], "the settings alone look fine");
    assert_eq!(codes(&p.qp.lint(Some(rtt))), ["timeout-short"]);
    let error = p.qp.measure_rtt(&p.cq, 1, LIMIT).unwrap_err();
    assert!(
        error.to_string().contains("IBV_WC_RETRY_EXC_ERR"),
        "{error}"
    );

    let (mut p, _q) = meet(Timing::from_rtt(rtt));
    p.qp.measure_rtt(&p.cq, 2, LIMIT).unwrap();
    assert_eq!(p.qp.lint(Some(rtt)), []);
}
