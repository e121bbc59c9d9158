//! Connections whose ends meet over what carries messages, where it does what it should not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma_qp::exchange::ExchangeError;
use rdma_qp::supervise::{Courier, Happened, Options, Supervised, carried};
use rdma_qp::{Armed, Device};
use rdma_soft::Profile;

use crate::common::device;

/// More than one look may take, by far.
const MANY: u64 = 5000;

/// Each message is the call of a new life of the peer's, until it has sent `most` of them.
struct Calls {
    sent: Arc<AtomicU64>,
    most: u64,
    poll_every: Duration,
}

impl Courier for Calls {
    fn send(&mut self, _: &[u8]) -> Result<(), ExchangeError> {
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        if self.sent.load(Ordering::Relaxed) == self.most {
            return Ok(None);
        }
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(Some([&[1, 1][..], &number.to_be_bytes(), &[0; 8]].concat()))
    }

    fn poll_every(&self) -> Duration {
        self.poll_every
    }
}

fn end(device: &Device, courier: Calls) -> Supervised {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_event_cq(32).unwrap();
    let qp = pd.rc(&cq).create().unwrap();
    let meeting = carried(courier);
    Supervised::new(device, (qp, cq), meeting, Options::default(), |_| Ok(())).unwrap()
}

#[test]
fn a_peer_that_calls_without_end_does_not_keep_a_look_from_its_own() {
    let (device, sent) = (device(Profile::default()), Arc::default());
    let courier = Calls {
        sent: Arc::clone(&sent),
        most: MANY,
        // Nothing but what is left of the last look wakes the connection.
        poll_every: Duration::from_secs(3600),
    };
    let mut link = end(&device, courier);
    // The first attempt is told before anything is looked at.
    assert!(link.poll(Instant::now()).unwrap().is_some());
    let mut before = 0;
    while before < MANY {
        assert_eq!(link.poll(Instant::now()), Ok(None));
        let now = sent.load(Ordering::Relaxed);
        assert!(now - before < 1000, "{} of them in one look", now - before);
        before = now;
        if now < MANY {
            assert_eq!(link.arm(), Ok(Armed::Ready), "after {now}");
        }
    }
}

#[test]
fn a_service_that_is_to_be_asked_never_again_is_slept_on() {
    let device = device(Profile::default());
    let courier = Calls {
        sent: Arc::default(),
        most: 0,
        poll_every: Duration::MAX,
    };
    let mut link = end(&device, courier);
    let attempt = link.next(Duration::from_secs(30)).unwrap();
    assert!(matches!(attempt, Some(Happened::Event(_))), "{attempt:?}");
    assert_eq!(link.next(Duration::from_millis(20)), Ok(None));
}
