//! Random Q_Keys hit the range with the high bit set, which means something else in a request and is privileged in a QP.

use crate::common::datagram::*;
use crate::common::{LIMIT, device};
use rdma_core_sys::IBV_QPS_RESET;
use rdma_qp::{Destination, QKey, ToInitUd};
use rdma_soft::Profile;

#[test]
fn generated_keys_never_have_it() {
    let keys: Vec<u32> = (0..256).map(|_| QKey::random().unwrap().get()).collect();
    assert!(keys.iter().all(|key| key >> 31 == 0));
    // They are random: every other bit is seen both set and clear.
    let (all, any) = keys
        .iter()
        .fold((u32::MAX, 0), |(all, any), key| (all & key, any | key));
    assert_eq!((all, any), (0, 0x7fff_ffff));
}

#[test]
fn a_key_cannot_be_made_with_it() {
    for value in [0x8000_0000, 0xffff_ffff] {
        let error = QKey::new(value).unwrap_err().to_string();
        assert!(
            error.contains("qkey") && error.contains("high bit"),
            "{error}"
        );
    }
    assert_eq!(QKey::new(0x7fff_ffff).unwrap().get(), 0x7fff_ffff);
    assert!(serde_json::from_str::<QKey>("2147483648").is_err());
}

/// A destination without a key goes by the key of the QP that sends: it arrives where the receiver has the same one. One with
/// a wrong key is a success for the sender, nothing at the receiver, and counted at its port.
#[test]
fn a_destination_without_a_key_goes_by_the_senders() {
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    let mut senders = [Member::new(&a), Member::with_key(&a, 0x2222_2222)];
    let mut q = Member::new(&b);
    let violations = || b.port(1).unwrap().query().unwrap().raw.qkey_viol_cntr;
    let mut wrong = violations();
    for (sender, key, arrives) in [
        (0, Some(KEY), true),
        (0, Some(0x2222_2222), false),
        (0, None, true),
        (1, None, false),
        (1, Some(KEY), true),
    ] {
        let sender = &mut senders[sender];
        let ah = sender.qp.destination(&q.here).unwrap().ah().clone();
        let to = Destination::new(ah, q.qp.qp_num(), key.map(qkey)).unwrap();
        q.listen(0, 8);
        sender.say(b"message", &to);
        if arrives {
            // What did not arrive has left its receive for this one.
            let got = q.cq.wait_any(LIMIT).unwrap().expect("a message").outcome;
            let from = got.unwrap().sender.unwrap();
            assert_eq!(from.qp_num, sender.qp.qp_num(), "{key:?}");
        } else {
            assert_eq!(q.stray(), None, "{key:?}");
            wrong += 1;
        }
        assert_eq!(violations(), wrong);
    }
}

/// Setting such a key is refused before the call, with the reason.
#[test]
fn a_privileged_key_is_refused_before_the_call() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.ud(&cq).create().unwrap();
    let init = ToInitUd {
        port: 1,
        pkey_index: 0,
        qkey: 0x8001_0000,
    };
    let error = qp.to(init).unwrap_err();
    assert!(error.refused_before_call());
    let text = error.to_string();
    assert!(
        text.contains("qkey is 0x80010000") && text.contains("privileged"),
        "{text}"
    );
    assert_eq!(qp.state().unwrap(), IBV_QPS_RESET);
}
