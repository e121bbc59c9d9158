//! The datagrams by which the processes of a mesh find each other: one UD QP per process.
//!
//! Only datagrams with the Q_Key of the card get in, and that is drawn anew for each mesh. What is lost is sent again by who
//! waits for an answer, so nothing here waits or fails for want of room.

use rdma_qp::{
    Completion, Cq, Endpoint, GidEntry, Grh, PathOptions, Pd, PostError, PostFlags, QKey, Qp,
    QueueKind, Refill, Ud, op,
};

use super::error::{MeshError, step};
use super::note::{LONGEST, Note};

/// Notes that may leave at a time.
pub(super) const SENDS: u32 = 64;

/// Notes that may come at a time.
pub(super) fn receives(processes: usize) -> u32 {
    (processes as u32).clamp(64, 1024)
}

pub(super) struct Mail {
    inbox: Refill<Qp<Ud>>,
    outgoing: rdma_qp::BufferPool,
}

impl Mail {
    /// Makes it ready; what comes with it is what others need to send here.
    pub(super) fn open(
        pd: &Pd,
        cq: &Cq,
        gid: GidEntry,
        processes: usize,
    ) -> Result<(Mail, Endpoint), MeshError> {
        let depth = receives(processes);
        let qp = pd.ud(cq).send_depth(SENDS).recv_depth(depth).create();
        let mut qp = qp.map_err(step("making the UD QP"))?;
        let key = QKey::random().map_err(step("drawing a Q_Key"))?;
        let here = qp.activate(gid, key, PathOptions::default());
        let here = here.map_err(step("making the UD QP ready"))?;
        let pool = |count: u32, size| {
            let pool = pd.buffers(count as usize, size);
            pool.map_err(step("registering buffers for datagrams"))
        };
        let outgoing = pool(SENDS, LONGEST)?;
        let inbox = Refill::new(qp, pool(depth, Grh::LEN + LONGEST)?, depth / 2);
        let mut mail = Mail { inbox, outgoing };
        mail.top_up()?;
        Ok((mail, here))
    }

    /// Posts receives where there are few.
    pub(super) fn top_up(&mut self) -> Result<(), MeshError> {
        let filled = self.inbox.top_up().map(drop);
        filled.map_err(step("posting receives for datagrams"))
    }

    /// Sends a note, if there is room.
    pub(super) fn send(&mut self, note: &Note, to: &Endpoint) -> Result<(), MeshError> {
        let Some(mut buffer) = self.outgoing.take() else {
            return Ok(());
        };
        let bytes = note.encode();
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(&bytes);
        let qp = self.inbox.queue_mut();
        let to = match qp.destination(to) {
            Ok(to) => to,
            // Whoever waits for its answer says in the end that it did not come.
            Err(error) => {
                tracing::warn!(%error, "there is no way for a datagram");
                return Ok(());
            }
        };
        let flags = PostFlags::empty();
        match qp.post_buffer(op::SendTo { to: &to }, buffer, flags) {
            Ok(_) => Ok(()),
            Err(refused) if matches!(refused.error, PostError::QueueFull { .. }) => Ok(()),
            Err(refused) => Err(step("sending a datagram")(refused)),
        }
    }

    /// Whether a completion is of this QP.
    pub(super) fn is_its(&self, done: &Completion) -> bool {
        done.queue != QueueKind::SharedRecv && done.qp_num == self.inbox.queue().qp_num()
    }

    /// Takes in a completion of this QP; a note, if it brings one.
    pub(super) fn take(&mut self, done: &Completion) -> Result<Option<Note>, MeshError> {
        if done.queue == QueueKind::Send {
            drop(self.inbox.queue_mut().take_buffer(done));
            return Ok(None);
        }
        let note = self
            .inbox
            .take(done)
            .and_then(|message| Note::decode(&message));
        self.top_up()?;
        Ok(note)
    }
}
