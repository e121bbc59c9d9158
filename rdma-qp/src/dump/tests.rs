use super::*;

use std::time::Duration;

use serde_json::{Value, json};

/// A document as the format says, written by hand.
const DOCUMENT: &str = include_str!("../../tests/fixtures/dump-v1.json");

fn changed(change: impl FnOnce(&mut Value)) -> Result<Dump, ReadDumpError> {
    let mut document: Value = serde_json::from_str(DOCUMENT).unwrap();
    change(&mut document);
    Dump::from_json(&document.to_string())
}

#[test]
fn a_document_is_read_field_by_field() {
    let dump = Dump::from_json(DOCUMENT).unwrap();
    assert_eq!(dump.taken.host.as_deref(), Some("node7"));
    assert_eq!(
        (&dump.device.name[..], dump.device.max_qp_rd_atom),
        ("mlx5_0", 16)
    );
    let port = dump.port.as_ref().unwrap();
    assert_eq!(
        (port.number, port.link_layer),
        (1, Some(LinkLayer::Ethernet))
    );
    assert_eq!(port.active_mtu, Some(PathMtu::Mtu1024));
    assert_eq!(dump.gids[0].kind, GidKind::RoceV1);
    let source = dump.source().unwrap();
    let gid: Gid = std::net::Ipv4Addr::new(10, 0, 0, 5).into();
    assert_eq!((source.index, source.gid), (3, gid));
    let attributes = &dump.qp.attributes;
    assert_eq!(attributes.sq_psn.unwrap().get(), 0xff_fffe);
    assert_eq!((attributes.timeout, attributes.qkey), (Some(8), None));
    let books = dump.accounts.as_ref().unwrap().send;
    let ended = books.succeeded + books.failed + books.flushed + books.discarded;
    assert_eq!(books.accepted, ended + books.pending);
    assert_eq!(dump.counters["counters/port_rcv_data"], u64::MAX);
    let ends = dump.endpoint.as_ref().unwrap();
    assert_eq!((ends.here.pkey, &ends.there), (0xffff, &None));
    let error = dump.last_error.as_ref().unwrap();
    assert!(
        matches!(&error.what, Failed::Request { status: 12, operation, .. } if operation == "RDMA WRITE")
    );
}

#[test]
fn what_is_read_is_written_again() {
    let dump = Dump::from_json(DOCUMENT).unwrap();
    assert_eq!(dump.to_json(), DOCUMENT.trim_end());
    let refused = changed(|document| {
        document["last_error"] = json!({
            "unix_ms": 1, "text": "INIT -> RTR refused", "of": "modify",
            "from": "INIT", "to": "RTR", "errno": 22, "called": false,
        });
    });
    let refused = refused.unwrap();
    let what = &refused.last_error.as_ref().unwrap().what;
    assert!(
        matches!(
            what,
            Failed::Modify {
                errno: 22,
                called: false,
                ..
            }
        ),
        "{what:?}"
    );
    assert_eq!(Dump::from_json(&refused.to_json()).unwrap(), refused);
}

/// As a later release may write it, and as a writer may that knows less.
#[test]
fn more_fields_and_fewer_sections_are_fine() {
    let plain = Dump::from_json(DOCUMENT).unwrap();
    let more = changed(|document| {
        document["weather"] = json!({"rain": true});
        document["device"]["color"] = json!("green");
        document["qp"]["attributes"]["rate_limit"] = json!(5);
        document["gids"][0]["label"] = json!([1]);
        document["last_error"]["moon"] = json!("full");
    });
    assert_eq!(more.unwrap(), plain);
    let newer = changed(|document| {
        document["last_error"]["of"] = json!("weather");
        document["gids"][1]["type"] = json!("RoCE v3");
        document["port"]["link_layer"] = json!("Carrier pigeons");
    });
    let newer = newer.unwrap();
    assert_eq!(newer.last_error.unwrap().what, Failed::Unknown);
    assert_eq!(newer.gids[1].kind, GidKind::Unknown);
    let fewer = changed(|document| {
        let document = document.as_object_mut().unwrap();
        for section in [
            "port",
            "gids",
            "accounts",
            "counters",
            "endpoint",
            "last_error",
            "missing",
            "library",
        ] {
            document.remove(section).unwrap();
        }
        document["qp"]["attributes"] = json!({});
    });
    let fewer = fewer.unwrap();
    assert_eq!((fewer.port, fewer.gids.len()), (None, 0));
    assert_eq!(fewer.qp.attributes, Attributes::default());
}

#[test]
fn other_documents_are_refused_by_name() {
    let refused = |change: fn(&mut Value)| changed(change).unwrap_err().to_string();
    let text = refused(|document| document["version"] = json!(2));
    assert_eq!(
        text,
        "this dump has version 2; this release reads version 1: use the release that wrote it, or a later one"
    );
    let text = refused(|document| document["format"] = json!("core-dump"));
    assert!(
        text.contains("its \"format\" is \"core-dump\", not \"rdma-qp-dump\""),
        "{text}"
    );
    let text = Dump::from_json("[1, 2]").unwrap_err().to_string();
    assert!(text.contains("its \"format\" is missing"), "{text}");
    let text = Dump::from_json("QP 0x4f: RTS").unwrap_err().to_string();
    assert!(text.starts_with("this is no JSON document"), "{text}");
    let text = refused(|document| document["version"] = json!("one"));
    assert!(text.starts_with("this dump is damaged"), "{text}");
    let text = refused(|document| document["qp"]["attributes"]["sq_psn"] = json!(1 << 24));
    assert!(
        text.contains("psn is 16777216, but must be in 0..=16777215"),
        "{text}"
    );
    let text = refused(|document| document["gids"][0]["gid"] = json!("10.0.0"));
    assert!(text.starts_with("this dump is damaged"), "{text}");
    let text = refused(|document| {
        document["qp"].as_object_mut().unwrap().remove("state");
    });
    assert!(text.contains("missing field `state`"), "{text}");
}

#[test]
fn every_cut_and_many_flips_are_answered_without_a_panic() {
    for cut in 0..DOCUMENT.trim_end().len() {
        assert!(Dump::from_json(&DOCUMENT[..cut]).is_err(), "cut at {cut}");
    }
    for at in (0..DOCUMENT.len()).step_by(2) {
        for byte in [b'9', b'"'] {
            let mut bytes = DOCUMENT.as_bytes().to_vec();
            bytes[at] = byte;
            let Ok(text) = std::str::from_utf8(&bytes) else {
                continue;
            };
            if let Ok(dump) = Dump::from_json(text) {
                let _ = crate::lint::check(&dump.settings(None));
                assert_eq!(Dump::from_json(&dump.to_json()).unwrap(), dump);
            }
        }
    }
}

/// The document has a short timeout, hop limit 1, and is fine otherwise: 1024 + 64 fits an interface of 1500.
#[test]
fn the_settings_of_a_dump_are_judged() {
    let codes = |dump: &Dump, rtt: Option<Rtt>| {
        let found = crate::lint::check(&dump.settings(rtt));
        found
            .iter()
            .map(|finding| finding.code())
            .collect::<Vec<_>>()
    };
    let dump = Dump::from_json(DOCUMENT).unwrap();
    assert_eq!(codes(&dump, None), ["hop-limit"]);
    let rtt = Rtt::from(Duration::from_micros(500));
    assert_eq!(codes(&dump, Some(rtt)), ["timeout-short", "hop-limit"]);
    let worse = changed(|document| {
        document["port"]["state"] = json!("IBV_PORT_DOWN");
        document["gids"][1]["netdev_mtu"] = json!(1000);
        document["qp"]["cap"]["max_send_wr"] = json!(1);
        document["qp"]["attributes"]["min_rnr_timer"] = json!(0);
        document["endpoint"]["there"] = document["endpoint"]["here"].clone();
        document["endpoint"]["there"]["traffic_class"] = json!(0);
    });
    assert_eq!(
        codes(&worse.unwrap(), None),
        [
            "port-down",
            "mtu-over-interface",
            "rnr-timer-longest",
            "hop-limit",
            "depth-one",
            "paths-differ"
        ]
    );
    // On InfiniBand one subnet needs no hop limit.
    let fabric = changed(|document| document["port"]["link_layer"] = json!("InfiniBand"));
    assert_eq!(codes(&fabric.unwrap(), None), [""; 0]);
}
