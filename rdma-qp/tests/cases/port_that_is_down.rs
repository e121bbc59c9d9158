//! The port was a constant, 1, and that port was down: connecting went well, and nothing ever left it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use crate::common::*;
use rdma_qp::lint::Finding;
use rdma_qp::{AckTimeout, RetryCount, Timing, WaitError};
use rdma_soft::Profile;
use rdma_soft::profile::PortProfile;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A warning: its `code`, if it has one, and its message.
#[derive(Clone, Debug, Default, PartialEq)]
struct Warning {
    code: String,
    message: String,
}

/// Keeps the warnings of a thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<Warning>>>);

impl Visit for Warning {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "code" {
            self.code = value.to_owned();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut found = Warning::default();
        event.record(&mut found);
        self.0.lock().unwrap().push(found);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Port 1 is down, port 2 is up.
fn two_ports() -> rdma_qp::Device {
    let down = PortProfile {
        up: false,
        ..PortProfile::default()
    };
    device(Profile {
        ports: vec![down, PortProfile::default()],
        ..Profile::default()
    })
}

#[test]
fn connecting_on_it_warns_and_says_what_to_do() {
    let device = two_ports();
    let warnings = Warnings::default();
    let hasty = Timing {
        timeout: AckTimeout::from_code(8).unwrap(),
        retry_cnt: RetryCount::new(1).unwrap(),
        ..Timing::default()
    };
    let (mut p, _q) = tracing::subscriber::with_default(warnings.clone(), || {
        let (mut p, mut q) = (End::new(&device, 64), End::new(&device, 64));
        // Which takes port 1.
        connect((&mut p, &device), (&mut q, &device), hasty);
        (p, q)
    });
    let told = warnings.0.lock().unwrap().clone();
    let down = told.iter().find(|warning| warning.code == "port-down");
    let message = &down.expect("a warning").message;
    assert!(
        message.contains("port 1 is IBV_PORT_DOWN: nothing leaves it")
            && message.contains("bring the link of port 1 up, or use a GID of a port that is"),
        "{message}"
    );
    assert!(
        p.qp.lint(None)
            .iter()
            .any(|finding| matches!(finding, Finding::PortDown { port: 1, .. }))
    );
    // What was told is what happens.
    let send = p.qp.send(p.mr.slice(0, 8).unwrap()).unwrap();
    assert!(matches!(p.cq.wait(&send, LIMIT), Err(WaitError::Failed(_))));
}

#[test]
fn connecting_on_the_other_port_warns_of_nothing() {
    let device = two_ports();
    let gid = device.port(2).unwrap().best_gid().unwrap();
    let warnings = Warnings::default();
    let p = tracing::subscriber::with_default(warnings.clone(), || {
        let (mut p, mut q) = (End::new(&device, 64), End::new(&device, 64));
        let peer = |endpoint| rdma_qp::Peer {
            endpoint,
            regions: vec![],
        };
        let of_p = peer(p.qp.endpoint(&gid).unwrap());
        let of_q = peer(q.qp.endpoint(&gid).unwrap());
        let timing = Timing::default();
        let agreed = p.qp.connect_begin(&of_q, timing).unwrap();
        let also = q.qp.connect_begin(&of_p, timing).unwrap();
        p.qp.connect_finish(agreed, timing).unwrap();
        q.qp.connect_finish(also, timing).unwrap();
        p
    });
    assert_eq!(warnings.0.lock().unwrap()[..], []);
    assert_eq!(p.qp.lint(None), []);
}
