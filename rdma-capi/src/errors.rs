//! From the errors of the safe layer to an errno and a code. The sentence is the error's own.

use std::error::Error;
use std::ffi::c_int;

use libc::{
    EBUSY, ECONNRESET, EEXIST, EINVAL, EIO, ENODATA, ENODEV, ENOENT, ENOMEM, EOPNOTSUPP, EPROTO,
    ESRCH, ETIMEDOUT,
};
use rdma_core_sys::LoadError;
use rdma_qp::datagram::{DatagramError, PeerError, SendError};
use rdma_qp::dump::ReadDumpError;
use rdma_qp::exchange::ExchangeError;
use rdma_qp::xrc::{BadSrqNum, CreateTargetError, OpenDomainError, OpenTargetError};
use rdma_qp::*;

use crate::fault::*;

/// An error with the errno of whoever refused.
fn system(errno: Errno, error: &dyn std::fmt::Display) -> Fault {
    Fault::of(QP_CODE_SYSTEM, errno, error)
}

/// `Error => (code, errno)`, by its variants.
macro_rules! faults {
    ($($error:ident |$it:ident| $kind:expr;)+) => {$(
        impl From<$error> for Fault {
            #[cold]
            fn from($it: $error) -> Fault {
                let (code, errno): (qp_code, c_int) = $kind;
                Fault::new(code, errno, $it.to_string())
            }
        }
    )+};
}

/// What the system said.
fn said(errno: &Errno) -> (qp_code, c_int) {
    (QP_CODE_SYSTEM, errno.raw_os_error())
}

fn io(error: &std::io::Error) -> (qp_code, c_int) {
    (QP_CODE_SYSTEM, error.raw_os_error().unwrap_or(EIO))
}

fn of_modify(error: &ModifyError) -> (qp_code, c_int) {
    let code = if error.refused_before_call() {
        QP_CODE_REFUSED
    } else {
        QP_CODE_SYSTEM
    };
    (code, error.errno().raw_os_error())
}

fn of_gid(error: &GidError) -> (qp_code, c_int) {
    match error {
        GidError::Query(error) => said(&error.source),
        _ => (QP_CODE_NOT_FOUND, ENODATA),
    }
}

fn of_endpoint(error: &EndpointError) -> (qp_code, c_int) {
    match error {
        EndpointError::Port(_) => (QP_CODE_NOT_FOUND, ENODEV),
        EndpointError::Query(error) => said(&error.source),
        EndpointError::Random(error) => io(error),
        EndpointError::Options(_) => (QP_CODE_RANGE, EINVAL),
        _ => (QP_CODE_REFUSED, EINVAL),
    }
}

fn of_exchange(error: &ExchangeError) -> (qp_code, c_int) {
    match error {
        ExchangeError::PeerLost { .. } => (QP_CODE_PEER, ECONNRESET),
        ExchangeError::OutOfStep { .. } => (QP_CODE_PEER, EPROTO),
        ExchangeError::TimedOut { .. } => (QP_CODE_TIMED_OUT, ETIMEDOUT),
        ExchangeError::TooLong { .. } => (QP_CODE_RANGE, EINVAL),
        ExchangeError::Address { source, .. } => io(source),
        ExchangeError::Record(error) => of_record(error),
        ExchangeError::Other(source) => match source.downcast_ref::<crate::exchange::Said>() {
            Some(said) => (QP_CODE_CALLBACK, said.errno()),
            None => (QP_CODE_CALLBACK, EIO),
        },
        _ => (QP_CODE_PEER, EPROTO),
    }
}

fn of_record(error: &DecodeError) -> (qp_code, c_int) {
    match error {
        DecodeError::TooManyRegions(_) => (QP_CODE_RANGE, EINVAL),
        _ => (QP_CODE_RECORD, EPROTO),
    }
}

fn of_connect(error: &ConnectError) -> (qp_code, c_int) {
    match error {
        ConnectError::Query(error) => said(&error.source),
        ConnectError::Modify(error) => of_modify(error),
        ConnectError::Exchange(error) => of_exchange(error),
        ConnectError::PeerIsUd { .. } => (QP_CODE_REFUSED, EINVAL),
        _ => (QP_CODE_STATE, EINVAL),
    }
}

fn of_poll(error: &PollError) -> (qp_code, c_int) {
    match error {
        PollError::Cq { source, .. } | PollError::Channel { source, .. } => said(source),
        _ => (QP_CODE_UNSUPPORTED, EOPNOTSUPP),
    }
}

fn of_post(error: &PostError) -> (qp_code, c_int) {
    match error {
        PostError::QueueFull { .. } => (QP_CODE_FULL, ENOMEM),
        PostError::WrongState { errno, .. } => (QP_CODE_STATE, errno.raw_os_error()),
        PostError::Refused { errno, .. } => said(errno),
        PostError::List { reason, .. } => of_post(reason),
        PostError::OtherPd { .. }
        | PostError::OtherPdAh
        | PostError::OtherPortAh { .. }
        | PostError::OtherPdWindow => (QP_CODE_MISMATCH, EINVAL),
        _ => (QP_CODE_REFUSED, EINVAL),
    }
}

fn of_ah(error: &AhError) -> (qp_code, c_int) {
    match error {
        AhError::Port(_) => (QP_CODE_NOT_FOUND, ENODEV),
        AhError::Query(error) => said(&error.source),
        AhError::Refused { source, .. } => said(source),
        _ => (QP_CODE_REFUSED, EINVAL),
    }
}

fn of_drain(problem: &DrainProblem) -> (qp_code, c_int) {
    match problem {
        DrainProblem::OtherCq { .. } => (QP_CODE_MISMATCH, EINVAL),
        DrainProblem::Modify(error) => of_modify(error),
        DrainProblem::Query(error) => said(&error.source),
        DrainProblem::Post(error) => of_post(error),
        DrainProblem::Poll(error) => of_poll(error),
        DrainProblem::Events(errno) => said(errno),
        DrainProblem::TimedOut { .. } | DrainProblem::NoLastWqe { .. } => {
            (QP_CODE_TIMED_OUT, ETIMEDOUT)
        }
        _ => (QP_CODE_REFUSED, EINVAL),
    }
}

faults! {
    ModifyError |it| of_modify(&it);
    QueryQpError |it| said(&it.source);
    QueryPortError |it| said(&it.source);
    BadPort |it| (QP_CODE_NOT_FOUND, ENODEV);
    GidError |it| of_gid(&it);
    QpRefGidError |it| match &it {
        QpRefGidError::Gid(error) => of_gid(error),
        _ => (QP_CODE_NOT_FOUND, ENODEV),
    };
    OutOfRange |it| (QP_CODE_RANGE, EINVAL);
    OutOfRegion |it| (QP_CODE_RANGE, EINVAL);
    EndpointError |it| of_endpoint(&it);
    ExchangeError |it| of_exchange(&it);
    DecodeError |it| of_record(&it);
    ConnectError |it| of_connect(&it);
    PollError |it| of_poll(&it);
    PostError |it| of_post(&it);
    DrainProblem |it| of_drain(&it);
    DrainError |it| of_drain(&it.reason);
    RecoverProblem |it| match &it {
        RecoverProblem::Drain(problem) => of_drain(problem),
        RecoverProblem::Reset(error) => of_modify(error),
        RecoverProblem::Endpoint(error) => of_endpoint(error),
        RecoverProblem::Exchange(error) => of_exchange(error),
        RecoverProblem::Repost(error) => of_post(error),
        RecoverProblem::Connect(error) => of_connect(error),
        _ => (QP_CODE_REFUSED, EINVAL),
    };
    RefDrainError |it| match &it {
        RefDrainError::Query(error) => said(&error.source),
        RefDrainError::Modify(error) => of_modify(error),
        RefDrainError::Marker { source, .. } | RefDrainError::Poll { source, .. } => said(source),
        RefDrainError::TimedOut { .. } => (QP_CODE_TIMED_OUT, ETIMEDOUT),
        RefDrainError::Random(error) => io(error),
        _ => (QP_CODE_NOT_FOUND, ENODATA),
    };
    WaitError |it| match &it {
        WaitError::Failed(_) => (QP_CODE_FAILED, EIO),
        WaitError::TimedOut { .. } => (QP_CODE_TIMED_OUT, ETIMEDOUT),
        WaitError::OtherCq(_) => (QP_CODE_MISMATCH, EINVAL),
        WaitError::Poll(error) => of_poll(error),
        _ => (QP_CODE_GONE, ESRCH),
    };
    OpenError |it| match &it {
        OpenError::NoSuchDevice { .. } | OpenError::NoSuchIndex { .. } => (QP_CODE_NOT_FOUND, ENODEV),
        OpenError::List(source) | OpenError::Refused { source, .. } | OpenError::Query { source, .. } => said(source),
        _ => (QP_CODE_SYSTEM, EIO),
    };
    AllocPdError |it| said(&it.source);
    RegisterError |it| match &it {
        RegisterError::Refused { source, .. } => said(source),
        RegisterError::NoMemory { .. } => (QP_CODE_SYSTEM, ENOMEM),
        _ => (QP_CODE_RANGE, EINVAL),
    };
    DmabufError |it| said(&it.source);
    WindowError |it| match &it {
        WindowError::Refused { source, .. } => said(source),
        _ => (QP_CODE_UNSUPPORTED, EOPNOTSUPP),
    };
    ReadDumpError |it| (QP_CODE_TEXT, EINVAL);
    CreateCqError |it| match &it {
        CreateCqError::Refused { source, .. } => said(source),
        _ => (QP_CODE_LIMIT, EINVAL),
    };
    CreateQpError |it| match &it {
        CreateQpError::Refused { source, .. } => said(source),
        CreateQpError::Cq(error) => of_poll(error),
        CreateQpError::OverLimit { .. } => (QP_CODE_LIMIT, EINVAL),
        CreateQpError::NoRoomInCq { .. } => (QP_CODE_LIMIT, ENOMEM),
        _ => (QP_CODE_MISMATCH, EINVAL),
    };
    CreateSrqError |it| match &it {
        CreateSrqError::Refused { source, .. } => said(source),
        CreateSrqError::None { .. } => (QP_CODE_UNSUPPORTED, EOPNOTSUPP),
        CreateSrqError::TooMany => (QP_CODE_LIMIT, ENOMEM),
        _ => (QP_CODE_LIMIT, EINVAL),
    };
    SrqError |it| said(&it.source);
    RefillError |it| match &it {
        RefillError::Post(error) => of_post(error),
        RefillError::Arm(error) => said(&error.source),
        _ => (QP_CODE_SYSTEM, EIO),
    };
    OpenDomainError |it| match &it {
        OpenDomainError::NoXrc { .. } => (QP_CODE_UNSUPPORTED, EOPNOTSUPP),
        OpenDomainError::NotOpen { .. } => (QP_CODE_NOT_FOUND, ENOENT),
        OpenDomainError::AlreadyOpen { .. } => (QP_CODE_REFUSED, EEXIST),
        OpenDomainError::Refused { source, .. } => said(source),
        _ => (QP_CODE_SYSTEM, EIO),
    };
    CreateTargetError |it| said(&it.source);
    OpenTargetError |it| said(&it.source);
    BadSrqNum |it| (QP_CODE_RANGE, EINVAL);
    ActivateError |it| match &it {
        ActivateError::Endpoint(error) => of_endpoint(error),
        ActivateError::Modify(error) => of_modify(error),
        _ => (QP_CODE_REFUSED, EINVAL),
    };
    DestinationError |it| match &it {
        DestinationError::NotActive => (QP_CODE_STATE, EINVAL),
        DestinationError::Ah(error) => of_ah(error),
        DestinationError::Gid(error) => of_gid(error),
        DestinationError::Range(_) => (QP_CODE_RANGE, EINVAL),
        _ => (QP_CODE_REFUSED, EINVAL),
    };
    McastError |it| match &it {
        McastError::Refused { source, .. } => said(source),
        _ => (QP_CODE_REFUSED, EINVAL),
    };
    LoadError |it| (QP_CODE_NO_VERBS, ENODEV);
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        system(errno, &errno)
    }
}

/// What an error says whose type is not known here: the same as from the function that does only what failed; else it has the
/// errno of whoever refused.
#[cold]
pub(crate) fn of_any(error: Box<dyn Error + Send + Sync>) -> Fault {
    let error = match known(error) {
        Ok(fault) => return fault,
        Err(error) => error,
    };
    let first: &(dyn Error + 'static) = &*error;
    let mut chain = std::iter::successors(Some(first), |one| (*one).source());
    let refused = chain.find_map(|one| {
        let system = one.downcast_ref::<std::io::Error>().map(io);
        one.downcast_ref::<Errno>().map(said).or(system)
    });
    let (code, errno) = refused.unwrap_or((QP_CODE_SYSTEM, EIO));
    Fault::new(code, errno, error.to_string())
}

/// The fault that an error of this library is.
fn known(mut error: Box<dyn Error + Send + Sync>) -> Result<Fault, Box<dyn Error + Send + Sync>> {
    macro_rules! one_of {
        ($($known:ty)+) => {$(
            error = match error.downcast::<$known>() {
                Ok(known) => return Ok((*known).into()),
                Err(other) => other,
            };
        )+};
    }
    one_of! {
        AllocPdError CreateCqError CreateSrqError CreateQpError CreateTargetError RegisterError ActivateError EndpointError
        ModifyError PollError PostError RefillError DatagramError PeerError SendError
    }
    Err(error)
}

/// What an object that was not closed is told with: it comes back with the reason.
pub(crate) fn in_use(text: String) -> Fault {
    Fault::new(QP_CODE_IN_USE, EBUSY, text)
}
