//! Completion channels.

use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::time::Duration;

use rdma_core_sys::*;

use super::context::readable;
use super::{Device, Failed, failed, outcome, report};

/// A completion channel: where events of CQs arrive.
#[derive(Debug)]
pub struct Channel {
    device: Rc<Device>,
    channel: NonNull<ibv_comp_channel>,
}

impl Channel {
    /// Creates one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(device: &Rc<Device>) -> Result<Rc<Channel>, Failed> {
        // SAFETY: the context is open until `device` is dropped.
        let channel = unsafe { device.verbs.create_comp_channel(device.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| failed("ibv_create_comp_channel"))?;
        let device = Rc::clone(device);
        Ok(Rc::new(Channel { device, channel }))
    }

    pub(super) fn channel(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// The next event, if one comes within `patience`: the [`id`](super::Cq::id) of its CQ. It is acknowledged here, so
    /// that no destroy waits.
    ///
    /// # Errors
    /// What a failed wait or `ibv_get_cq_event` left in errno.
    pub fn next(&self, patience: Duration) -> Result<Option<usize>, Failed> {
        // SAFETY: the channel is alive until the drop; the number is copied out.
        let fd = unsafe { (*self.channel()).fd };
        if !readable(fd, patience)? {
            return Ok(None);
        }
        let (mut cq, mut context) = (null_mut(), null_mut());
        let verbs = &self.device.verbs;
        // SAFETY: the channel is alive until the drop; both places are writable.
        if unsafe { verbs.get_cq_event(self.channel(), &mut cq, &mut context) } != 0 {
            return Err(failed("ibv_get_cq_event"));
        }
        // SAFETY: the CQ of the event that was just got, which its destruction would wait for; acknowledged once.
        unsafe { verbs.ack_cq_events(cq, 1) };
        Ok(Some(cq.addr()))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here only; all CQs on it own it, so they are gone.
        let errno = unsafe { self.device.verbs.destroy_comp_channel(self.channel()) };
        report(outcome("ibv_destroy_comp_channel", errno));
    }
}
