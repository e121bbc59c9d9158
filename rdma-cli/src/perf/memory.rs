//! The memory of an end: for each Queue Pair places that its own requests use, and places that the peer's reach.

use rdma_qp::{Access, Grh, Memory, Mr, MrSlice, OutOfRegion, RegisterError};

use super::end::End;
use super::plan::Plan;
use super::{Op, Transport};
use crate::failure::{Failure, told};

/// Places begin at a multiple of this.
const LINE: usize = 64;

/// The places, in one region.
pub struct Places {
    /// The region.
    pub mr: Mr,
    /// Places of each kind that each Queue Pair has.
    pub count: usize,
    /// Bytes that the device writes before each message that is received.
    pub header: usize,
    lanes: usize,
    near: usize,
    far: usize,
}

impl Places {
    /// Registers memory for the largest message of the plan.
    ///
    /// # Errors
    /// There is not so much memory, or the device refused.
    pub fn new(end: &End, plan: &Plan) -> Result<Places, Failure> {
        let header = match plan.transport {
            Transport::Ud => Grh::LEN,
            _ => 0,
        };
        let largest = plan.largest() as usize;
        let (near, far) = (
            largest.next_multiple_of(LINE),
            (header + largest).next_multiple_of(LINE),
        );
        let (lanes, count) = (plan.qps as usize, plan.places());
        let access = match plan.op {
            Op::Send => Access::LOCAL_WRITE,
            Op::Write => Access::REMOTE_WRITE,
            Op::Read => Access::LOCAL_WRITE | Access::REMOTE_READ,
            Op::Cas | Op::Faa => Access::REMOTE_ATOMIC,
        };
        let memory = Memory::zeroed(lanes * count * (near + far));
        let mr = (end.pd.register(memory, access)).map_err(|error: RegisterError| told(error))?;
        Ok(Places {
            mr,
            count,
            header,
            lanes,
            near,
            far,
        })
    }

    /// Where the `number`th request of a Queue Pair takes its bytes from, or has them brought to.
    #[inline]
    pub fn near(&self, lane: usize, number: u64) -> usize {
        (lane * self.count + self.turn(number)) * self.near
    }

    /// Where the `number`th message of the peer goes, or is fetched from: both ends have the same places.
    #[inline]
    pub fn far(&self, lane: usize, number: u64) -> usize {
        self.lanes * self.count * self.near + (lane * self.count + self.turn(number)) * self.far
    }

    /// The place of the `number`th receive.
    #[inline]
    pub fn receive(&self, lane: usize, number: u64) -> Result<MrSlice<'_>, OutOfRegion> {
        self.mr.slice(self.far(lane, number), self.far)
    }

    /// Which of its places the `number`th message has.
    #[inline]
    pub fn turn(&self, number: u64) -> usize {
        // A division takes longer than the rest.
        if self.count == 1 {
            return 0;
        }
        (number % self.count as u64) as usize
    }
}
