use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::*;

type Box1 = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// Two boxes of messages; what is sent may be kept from the peer, or refused.
#[derive(Clone, Default)]
struct Mail {
    out: Box1,
    inn: Box1,
    broken: Arc<Mutex<bool>>,
}

impl Courier for Mail {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        if *self.broken.lock().unwrap() {
            return Err(ExchangeError::Other("no way".into()));
        }
        self.out.lock().unwrap().push_back(message.to_vec());
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        if *self.broken.lock().unwrap() {
            return Err(ExchangeError::Other("no ear".into()));
        }
        Ok(self.inn.lock().unwrap().pop_front())
    }
}

fn pair() -> (Mail, Mail) {
    let a = Mail::default();
    let b = Mail {
        out: a.inn.clone(),
        inn: a.out.clone(),
        broken: Arc::default(),
    };
    (a, b)
}

fn message(text: &str) -> Option<Sign> {
    Some(Sign::Message(text.into()))
}

#[test]
fn calls_that_cross_make_one_channel() {
    let (a, b) = pair();
    let (mut a, mut b) = (carried(a), carried(b));
    a.seek();
    b.seek();
    assert_eq!(a.poll(), Some(Sign::Met));
    a.send(b"from a").unwrap();
    assert_eq!(b.poll(), Some(Sign::Met));
    b.send(b"from b").unwrap();
    assert_eq!(a.poll(), message("from b"));
    assert_eq!(b.poll(), message("from a"));
    assert_eq!((a.poll(), b.poll()), (None, None));
}

#[test]
fn a_peer_that_was_restarted_takes_the_place_of_its_former_life() {
    let (a, b) = pair();
    let (mail, mut b) = (a.clone(), carried(b));
    let mut first = carried(a);
    first.seek();
    assert_eq!(b.poll(), Some(Sign::Met));
    assert_eq!(first.poll(), Some(Sign::Met));
    // Killed, with a word on its way, and one of b's that nobody reads.
    first.send(b"late").unwrap();
    b.send(b"to the dead").unwrap();
    std::mem::forget(first);
    let mut second = carried(mail);
    second.seek();
    assert_eq!(b.poll(), message("late"));
    assert_eq!(b.poll(), Some(Sign::Met));
    assert_eq!(
        second.poll(),
        Some(Sign::Met),
        "what is for another is left out"
    );
    b.send(b"to the living").unwrap();
    assert_eq!(second.poll(), message("to the living"));
}

#[test]
fn words_of_a_channel_that_was_left_are_not_heard() {
    let (a, b) = pair();
    let (mut a, mut b) = (carried(a), carried(b));
    a.seek();
    assert_eq!(b.poll(), Some(Sign::Met));
    assert_eq!(a.poll(), Some(Sign::Met));
    b.send(b"old").unwrap();
    a.seek();
    assert!(matches!(b.poll(), Some(Sign::Lost(why)) if why.contains("left")));
    assert_eq!(b.poll(), Some(Sign::Met));
    b.send(b"new").unwrap();
    assert_eq!(a.poll(), Some(Sign::Met));
    assert_eq!(a.poll(), message("new"));
    // An answer to a call that was given up is none.
    a.seek();
    a.leave();
    while b.poll().is_some() {}
    assert_eq!(a.poll(), None);
    assert!(a.send(b"nobody").is_err());
}

#[test]
fn a_service_that_breaks_is_told_once_and_serves_again() {
    let (a, b) = pair();
    let broken = a.broken.clone();
    let (mut a, mut b) = (carried(a), carried(b));
    *broken.lock().unwrap() = true;
    a.seek();
    assert_eq!(a.poll_every(), Some(Duration::ZERO));
    assert!(matches!(a.poll(), Some(Sign::Lost(why)) if why.ends_with("no way")));
    assert_eq!(a.poll(), None);
    *broken.lock().unwrap() = false;
    a.seek();
    assert_eq!(b.poll(), Some(Sign::Met));
    assert_eq!(a.poll(), Some(Sign::Met));
    *broken.lock().unwrap() = true;
    assert!(matches!(a.poll(), Some(Sign::Lost(why)) if why.ends_with("no ear")));
    assert_eq!(a.poll(), None);
}

#[test]
fn what_is_no_message_of_a_meeting_changes_nothing() {
    let (a, b) = pair();
    let (into_b, mut a, mut b) = (a.out.clone(), carried(a), carried(b));
    a.seek();
    let call = into_b.lock().unwrap()[0].clone();
    assert_eq!(call.len(), HEAD);
    let mut other = call.clone();
    other[1] = 2;
    let known = [&[9, 1][..], &call[2..]].concat();
    let short = call[..HEAD - 1].to_vec();
    for junk in [vec![], short, other, known] {
        into_b.lock().unwrap().push_front(junk);
    }
    assert_eq!(b.poll(), Some(Sign::Met));
    // A call that comes twice.
    into_b.lock().unwrap().push_back(call);
    assert_eq!(b.poll(), None);
}

#[test]
fn a_call_that_was_given_up_hides_nobody() {
    let (a, b) = pair();
    let (mut a, mut b) = (carried(a), carried(b));
    // The service keeps b's call, which b leaves behind.
    b.seek();
    b.leave();
    a.seek();
    assert_eq!(b.poll(), Some(Sign::Met));
    assert_eq!(a.poll(), Some(Sign::Met), "by the call");
    assert_eq!(a.poll(), Some(Sign::Met), "by the answer");
    a.send(b"from a").unwrap();
    b.send(b"from b").unwrap();
    assert_eq!(b.poll(), message("from a"));
    assert_eq!(a.poll(), message("from b"));
    assert_eq!((a.poll(), b.poll()), (None, None));
}

/// Each way for calls of both ends to be kept: given up, and crossing.
#[test]
fn calls_that_were_given_up_and_calls_that_cross_make_one_channel() {
    for (left_by_a, left_by_b, b_seeks) in (0..18).map(|n| (n % 3, n / 3 % 3, n / 9 == 1)) {
        let (a, b) = pair();
        let (mut a, mut b) = (carried(a), carried(b));
        for _ in 0..left_by_a {
            a.seek();
            a.leave();
        }
        for _ in 0..left_by_b {
            b.seek();
            b.leave();
        }
        a.seek();
        if b_seeks {
            b.seek();
        }
        for turn in 0..3 {
            let end = if turn == 1 { &mut a } else { &mut b };
            while let Some(sign) = end.poll() {
                assert_eq!(sign, Sign::Met);
            }
        }
        a.send(b"from a").unwrap();
        b.send(b"from b").unwrap();
        let case = (left_by_a, left_by_b, b_seeks);
        assert_eq!(b.poll(), message("from a"), "{case:?}");
        assert_eq!(a.poll(), message("from b"), "{case:?}");
    }
}

/// A service that has many messages, none of which means anything.
struct Noise(u32);

impl Courier for Noise {
    fn send(&mut self, _: &[u8]) -> Result<(), ExchangeError> {
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        self.0 = self.0.saturating_sub(1);
        Ok((self.0 != 0).then(|| b"noise".to_vec()))
    }
}

#[test]
fn a_service_that_never_runs_dry_keeps_nobody_for_ever() {
    let mut meeting = carried(Noise(1000));
    meeting.seek();
    let idle = meeting.poll_every();
    assert_ne!(idle, Some(Duration::ZERO));
    assert_eq!(meeting.poll(), None);
    let left = meeting.courier.0;
    assert!(left > 900, "{left} are left");
    assert_eq!(
        meeting.poll_every(),
        Some(Duration::ZERO),
        "there may be more"
    );
    while meeting.courier.0 != 0 {
        assert_eq!(meeting.poll(), None);
    }
    assert_eq!(meeting.poll_every(), idle);
}
