//! Every transition is told to `tracing`, with its fields.

mod fake;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use fake::Fake;
use rdma_core_sys::IBV_QPS_RTS;
use rdma_qp::{Access, Device, ToInit, ToReset};
use tracing::field::{Field, Visit};
use tracing::{Event, Id, Metadata, span};

/// Keeps every event as one line of `field=value`.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Keep {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn transitions_are_told_with_their_fields() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.rc(&cq).create().unwrap();
    let kept = Keep::default();
    let number = qp.qp_num();
    let init = ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    };
    tracing::subscriber::with_default(kept.clone(), || {
        qp.to(init).unwrap();
        fake.set_state(number, IBV_QPS_RTS);
        qp.to(init).unwrap_err();
        fake.fail("modify_qp", 5);
        qp.to(ToReset).unwrap_err();
    });
    let lines = kept.0.lock().unwrap();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    let wanted: [&[&str]; 3] = [
        &[
            "INFO",
            "from=RESET",
            "to=INIT",
            "mask=IBV_QP_STATE, IBV_QP_ACCESS_FLAGS",
            "errno=0",
        ],
        &[
            "WARN",
            "to=INIT",
            "errno=22",
            "called=false",
            "RTS -> INIT refused",
        ],
        &[
            "WARN",
            "to=RESET",
            "mask=IBV_QP_STATE",
            "errno=5",
            "called=true",
            "EIO (5)",
        ],
    ];
    for (line, parts) in lines.iter().zip(wanted) {
        assert!(
            line.contains(&format!("qp=fake0/1 QP {number:#x}")),
            "{line}"
        );
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
    }
}
