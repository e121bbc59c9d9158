//! What a send request asks for, as types: which of them a QP takes is decided when the program is compiled.

use rdma_core_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_send_flags, ibv_send_wr, ibv_send_wr_atomic,
    ibv_send_wr_rdma, ibv_send_wr_xrc, ibv_wr_opcode,
};

use super::PostError;
use crate::account::Operation;
use crate::ah::Destination;
use crate::endpoint::RemoteAddr;
use crate::qp::{Rc, Transport, Uc, Ud};
use crate::raw::post::Names;
use crate::window::BindWindow;
use crate::xrc::{SrqNum, XrcSend};

/// A send request that a QP of transport `T` takes, without its local side.
///
/// Which operation a transport has is what [`rdma_core_sys::rules::Transport::supports`] says; an operation that a
/// transport lacks does not compile:
///
/// ```compile_fail
/// # use rdma_qp::{op, Qp, Uc, MrSlice, PostFlags, RemoteAddr};
/// fn read(qp: &mut Qp<Uc>, local: MrSlice<'_>, remote: RemoteAddr) {
///     qp.post(op::Read { remote }, local, PostFlags::empty()).unwrap();
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "{T} has no `{Self}`",
    note = "which transport has which operation is said by `rdma_core_sys::rules::Transport::supports`"
)]
pub trait Op<T: Transport>: sealed::Request {}

pub(crate) mod sealed {
    use super::{Names, Operation, PostError, ibv_send_wr, ibv_wr_opcode};

    /// How a request is checked and written down.
    pub trait Request {
        /// What it is, for the books.
        const OPERATION: Operation;
        /// What it is, for the device.
        const OPCODE: ibv_wr_opcode;
        /// Whether the device writes to the local side.
        const RETURNS: bool = false;
        /// What it names beside its local side.
        #[inline]
        fn names(&self) -> Names<'_> {
            Names::Nothing
        }
        /// Refuses what cannot succeed with a local side of `len` bytes.
        #[inline]
        fn check(&self, _len: u64) -> Result<(), PostError> {
            Ok(())
        }
        /// Writes what is its own into a request.
        #[inline]
        fn fill(&self, _request: &mut ibv_send_wr) {}
    }
}
use sealed::Request;

/// SEND into the next receive of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send;

/// SEND with 32 bits of immediate data for the peer's completion, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendImm(
    /// The immediate data.
    pub u32,
);

/// SEND that also invalidates a key of the peer: of a region or window that it has no more use for. The peer's completion
/// names the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendInv(
    /// The rkey, as the peer told it.
    pub u32,
);

/// RDMA WRITE into a region of the peer, which is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where to.
    pub remote: RemoteAddr,
}

/// RDMA WRITE with immediate data, which takes a receive of the peer, to whose buffer nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteImm {
    /// Where to.
    pub remote: RemoteAddr,
    /// Immediate data, in host byte order.
    pub imm: u32,
}

/// RDMA READ from a region of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where from.
    pub remote: RemoteAddr,
}

/// Atomic: if the 8 bytes at `remote` equal `compare`, they are replaced by `swap`. The local side, 8 bytes, gets the old
/// value, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompareSwap {
    /// Where, at a multiple of 8.
    pub remote: RemoteAddr,
    /// The expected value, in host byte order.
    pub compare: u64,
    /// The new value, in host byte order.
    pub swap: u64,
}

/// Atomic: `add` is added to the 8 bytes at `remote`. The local side, 8 bytes, gets the old value, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchAdd {
    /// Where, at a multiple of 8.
    pub remote: RemoteAddr,
    /// What to add, in host byte order.
    pub add: u64,
}

/// Invalidates a key of this side: afterwards no peer can use it. It has no local side: post it with
/// [`NOTHING`](crate::NOTHING).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalInv(
    /// The rkey.
    pub u32,
);

/// SEND of a datagram: it goes into the next receive of the QP, or of each QP of the group, that `to` names.
#[derive(Clone, Copy, Debug)]
pub struct SendTo<'a> {
    /// Where to.
    pub to: &'a Destination,
}

/// SEND of a datagram with 32 bits of immediate data for the receiver's completion.
#[derive(Clone, Copy, Debug)]
pub struct SendToImm<'a> {
    /// Where to.
    pub to: &'a Destination,
    /// Immediate data, in host byte order.
    pub imm: u32,
}

/// A request of an XRC initiator: the operation, and the SRQ of the peer's node that it is for. That SRQ has the receive,
/// and its protection domain the memory that the request reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToSrq<O> {
    /// The number of the SRQ.
    pub srq: SrqNum,
    /// The operation.
    pub op: O,
}

/// A request towards a region of the peer must fit into it.
#[inline]
fn fits(remote: &RemoteAddr, len: u64) -> Result<(), PostError> {
    if len > remote.room {
        return Err(PostError::OutOfRemoteRegion {
            len,
            room: remote.room,
        });
    }
    Ok(())
}

/// An atomic is on 8 bytes at a multiple of 8.
#[inline]
fn atomic(remote: &RemoteAddr, len: u64) -> Result<(), PostError> {
    if len != 8 {
        return Err(PostError::AtomicLength { len });
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment { addr: remote.addr });
    }
    fits(remote, len)
}

#[inline]
fn rdma(remote: &RemoteAddr) -> ibv_send_wr_rdma {
    ibv_send_wr_rdma {
        remote_addr: remote.addr,
        rkey: remote.rkey,
    }
}

#[inline]
fn operands(remote: &RemoteAddr, compare_add: u64, swap: u64) -> ibv_send_wr_atomic {
    ibv_send_wr_atomic {
        remote_addr: remote.addr,
        compare_add,
        swap,
        rkey: remote.rkey,
    }
}

impl Request for Send {
    const OPERATION: Operation = Operation::Send;
    const OPCODE: ibv_wr_opcode = IBV_WR_SEND;
}

impl Request for SendImm {
    const OPERATION: Operation = Operation::Send;
    const OPCODE: ibv_wr_opcode = IBV_WR_SEND_WITH_IMM;
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.set_imm_data(self.0);
    }
}

impl Request for SendInv {
    const OPERATION: Operation = Operation::SendInv;
    const OPCODE: ibv_wr_opcode = IBV_WR_SEND_WITH_INV;
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.imm.invalidate_rkey = self.0;
    }
}

impl Request for Write {
    const OPERATION: Operation = Operation::Write;
    const OPCODE: ibv_wr_opcode = IBV_WR_RDMA_WRITE;
    #[inline]
    fn check(&self, len: u64) -> Result<(), PostError> {
        fits(&self.remote, len)
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.wr.rdma = rdma(&self.remote);
    }
}

impl Request for WriteImm {
    const OPERATION: Operation = Operation::Write;
    const OPCODE: ibv_wr_opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    #[inline]
    fn check(&self, len: u64) -> Result<(), PostError> {
        fits(&self.remote, len)
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.wr.rdma = rdma(&self.remote);
        request.set_imm_data(self.imm);
    }
}

impl Request for Read {
    const OPERATION: Operation = Operation::Read;
    const OPCODE: ibv_wr_opcode = IBV_WR_RDMA_READ;
    const RETURNS: bool = true;
    #[inline]
    fn check(&self, len: u64) -> Result<(), PostError> {
        fits(&self.remote, len)
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.wr.rdma = rdma(&self.remote);
    }
}

impl Request for CompareSwap {
    const OPERATION: Operation = Operation::CompareSwap;
    const OPCODE: ibv_wr_opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    const RETURNS: bool = true;
    #[inline]
    fn check(&self, len: u64) -> Result<(), PostError> {
        atomic(&self.remote, len)
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.wr.atomic = operands(&self.remote, self.compare, self.swap);
    }
}

impl Request for FetchAdd {
    const OPERATION: Operation = Operation::FetchAdd;
    const OPCODE: ibv_wr_opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    const RETURNS: bool = true;
    #[inline]
    fn check(&self, len: u64) -> Result<(), PostError> {
        atomic(&self.remote, len)
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.wr.atomic = operands(&self.remote, self.add, 0);
    }
}

impl Request for SendTo<'_> {
    const OPERATION: Operation = Operation::Send;
    const OPCODE: ibv_wr_opcode = IBV_WR_SEND;
    #[inline]
    fn names(&self) -> Names<'_> {
        Names::To(self.to.datagram())
    }
}

impl Request for SendToImm<'_> {
    const OPERATION: Operation = Operation::Send;
    const OPCODE: ibv_wr_opcode = IBV_WR_SEND_WITH_IMM;
    #[inline]
    fn names(&self) -> Names<'_> {
        Names::To(self.to.datagram())
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.set_imm_data(self.imm);
    }
}

impl Request for BindWindow<'_> {
    const OPERATION: Operation = Operation::BindWindow;
    const OPCODE: ibv_wr_opcode = IBV_WR_BIND_MW;
    #[inline]
    fn names(&self) -> Names<'_> {
        Names::Bind(self.binding())
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        // The place may hold what an earlier request left, and rdma-core's rxe refuses a bind with any (`rxe.c`,
        // `validate_send_wr`).
        request.set_imm_data(0);
    }
}

impl Request for LocalInv {
    const OPERATION: Operation = Operation::LocalInv;
    const OPCODE: ibv_wr_opcode = IBV_WR_LOCAL_INV;
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        request.imm.invalidate_rkey = self.0;
    }
}

impl<O: Request> Request for ToSrq<O> {
    const OPERATION: Operation = O::OPERATION;
    const OPCODE: ibv_wr_opcode = O::OPCODE;
    const RETURNS: bool = O::RETURNS;
    #[inline]
    fn names(&self) -> Names<'_> {
        self.op.names()
    }
    #[inline]
    fn check(&self, len: u64) -> Result<(), PostError> {
        self.op.check(len)
    }
    #[inline]
    fn fill(&self, request: &mut ibv_send_wr) {
        self.op.fill(request);
        request.qp_type.xrc = ibv_send_wr_xrc {
            remote_srqn: self.srq.get(),
        };
    }
}

/// Says which transports have which operations. A pair that the rules do not have does not compile.
macro_rules! operations {
    ($($op:ty: $($transport:ident),+;)+) => {
        $($(
            impl Op<$transport> for $op {}
            const _: () = assert!(
                <$transport as Transport>::RULES.supports(<$op as Request>::OPCODE),
                "the transport has no such operation"
            );
        )+)+
        /// Every pair of them.
        #[cfg(test)]
        const PAIRS: &[(rdma_core_sys::rules::Transport, ibv_wr_opcode)] = &[
            $($((<$transport as Transport>::RULES, <$op as Request>::OPCODE)),+),+
        ];
    };
}

operations! {
    Send: Rc, Uc;
    SendImm: Rc, Uc;
    SendInv: Rc;
    Write: Rc, Uc;
    WriteImm: Rc, Uc;
    Read: Rc;
    CompareSwap: Rc;
    FetchAdd: Rc;
    LocalInv: Rc, Uc, XrcSend;
    BindWindow<'_>: Rc, Uc, XrcSend;
    SendTo<'_>: Ud;
    SendToImm<'_>: Ud;
    ToSrq<Send>: XrcSend;
    ToSrq<SendImm>: XrcSend;
    ToSrq<SendInv>: XrcSend;
    ToSrq<Write>: XrcSend;
    ToSrq<WriteImm>: XrcSend;
    ToSrq<Read>: XrcSend;
    ToSrq<CompareSwap>: XrcSend;
    ToSrq<FetchAdd>: XrcSend;
}

bitflags::bitflags! {
    /// How a send request is handled.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PostFlags: u32 {
        /// Begin only when all earlier READs and atomics of this QP are done. It belongs on the request that must wait.
        const FENCE = IBV_SEND_FENCE.bits();
        /// Wake the peer even if it sleeps for solicited completions only.
        const SOLICITED = IBV_SEND_SOLICITED.bits();
        /// Copy the data during the call: the region is free at once. The request is handed over then, with what waits for the
        /// doorbell.
        const INLINE = IBV_SEND_INLINE.bits();
        /// No completion on success. The request is done, and its room in the queue free, when a later signaled one is.
        const UNSIGNALED = 1 << 31;
    }
}

impl PostFlags {
    /// The flags as verbs takes them: there a request says that it *is* signaled.
    #[inline]
    pub(super) fn lower(self) -> ibv_send_flags {
        let flags = (self - PostFlags::UNSIGNALED).bits();
        let signaled = if self.contains(PostFlags::UNSIGNALED) {
            0
        } else {
            IBV_SEND_SIGNALED.bits()
        };
        ibv_send_flags::from_bits_retain(flags | signaled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::rules;

    /// The other half of what the macro asserts: no operation of the rules is missing here.
    #[test]
    fn a_transport_has_every_operation_that_the_rules_give_it() {
        let transports = [
            rules::Transport::Rc,
            rules::Transport::Uc,
            rules::Transport::Ud,
            rules::Transport::XrcIni,
            rules::Transport::XrcTgt,
        ];
        for transport in transports {
            for code in 0..32 {
                let opcode = ibv_wr_opcode(code);
                assert_eq!(
                    PAIRS.contains(&(transport, opcode)),
                    transport.supports(opcode),
                    "{transport} {opcode:?}"
                );
            }
        }
    }
}
