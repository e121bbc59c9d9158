//! ENOMEM from a post: the queue was full, or there were too many entries, or too much inline. Three errors here.

use crate::common::*;
use rdma_qp::{Access, Memory, PostError, PostFlags, QueueKind, op};
use rdma_soft::Profile;

#[test]
fn each_has_an_error_of_its_own_with_its_numbers() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd.register(Memory::zeroed(64), Access::empty()).unwrap();
    let mut qp = pd.rc(&cq).send_depth(8).send_sge(2).create().unwrap();
    let slice = mr.slice(0, 8).unwrap();
    let too_many = qp.send([slice, slice, slice]).unwrap_err();
    let granted = qp.cap().max_send_sge;
    assert_eq!(
        too_many,
        PostError::TooManyEntries {
            queue: QueueKind::Send,
            given: 3,
            limit: granted
        }
    );
    let bytes = vec![0; qp.cap().max_inline_data as usize + 1];
    let too_long = qp
        .post_inline(op::Send, &bytes, PostFlags::empty())
        .unwrap_err();
    assert!(
        matches!(too_long, PostError::InlineTooLong { asked: 0, .. }),
        "{too_long}"
    );
    assert!(too_long.to_string().contains("0 asked for"), "{too_long}");
}

/// Unsignaled sends that were all executed hold their places until a later completion is polled; the last place is kept
/// for one that gives it.
#[test]
fn a_queue_of_unsignaled_sends_says_that_none_can_make_room() {
    let device = device(Profile::default());
    let ((mut a, of_b), _b) = pair(&device, 4096);
    let remote = of_b.region(0).unwrap().at(0);
    let slice = a.mr.slice(0, 8).unwrap();
    let silent = PostFlags::UNSIGNALED;
    for _ in 0..31 {
        a.qp.post(op::Write { remote }, slice, silent).unwrap();
    }
    let error = a.qp.post(op::Write { remote }, slice, silent).unwrap_err();
    assert!(
        matches!(
            error,
            PostError::QueueFull {
                depth: 32,
                outstanding: 31,
                last_signaled: None,
                place_is_kept: true,
                ..
            }
        ),
        "{error}"
    );
    let last = a.qp.write(slice, remote).unwrap();
    let full = a.qp.write(slice, remote).unwrap_err();
    assert!(
        matches!(
            full,
            PostError::QueueFull {
                outstanding: 32,
                last_signaled: Some(number),
                place_is_kept: false,
                ..
            } if number == last.sequence()
        ),
        "{full}"
    );
    a.cq.wait(&last, LIMIT).unwrap();
    a.qp.write(slice, remote).unwrap();
    assert_eq!(a.qp.send_account().succeeded, 32);
}
