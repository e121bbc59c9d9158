//! Why something of an end for datagrams did not work.

use rdma_qp::datagram::{DatagramError, PeerError, SendError};

use crate::fault::*;

impl From<DatagramError> for Fault {
    fn from(error: DatagramError) -> Fault {
        let (code, errno) = match error {
            DatagramError::Port(error) => return error.into(),
            DatagramError::Query(error) => return error.into(),
            DatagramError::Cq(error) => return error.into(),
            DatagramError::Create(error) => return error.into(),
            DatagramError::Activate(error) => return error.into(),
            DatagramError::Register(error) => return error.into(),
            DatagramError::Post(error) => return error.into(),
            DatagramError::Poll(error) => return error.into(),
            DatagramError::System(errno) => return errno.into(),
            DatagramError::Option { .. } => (QP_CODE_RANGE, libc::EINVAL),
            DatagramError::Failed { .. } => (QP_CODE_FAILED, libc::EIO),
            _ => (QP_CODE_SYSTEM, libc::EIO),
        };
        Fault::new(code, errno, error.to_string())
    }
}

impl From<PeerError> for Fault {
    fn from(error: PeerError) -> Fault {
        let (code, errno) = match error {
            PeerError::Destination(error) => return error.into(),
            PeerError::Full { .. } => (QP_CODE_LIMIT, libc::ENOMEM),
            PeerError::NoSuchPeer(_) => (QP_CODE_NOT_FOUND, libc::ENODATA),
            PeerError::Taken(_) => (QP_CODE_REFUSED, libc::EEXIST),
            _ => (QP_CODE_RECORD, libc::EPROTO),
        };
        Fault::new(code, errno, error.to_string())
    }
}

impl From<SendError> for Fault {
    fn from(error: SendError) -> Fault {
        let (code, errno) = match error {
            SendError::End(error) => return error.into(),
            SendError::NoSuchPeer(_) => (QP_CODE_NOT_FOUND, libc::ENODATA),
            SendError::WouldBlock => (QP_CODE_FULL, libc::EAGAIN),
            _ => (QP_CODE_REFUSED, libc::EINVAL),
        };
        Fault::new(code, errno, error.to_string())
    }
}
