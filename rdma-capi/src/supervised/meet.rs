//! Meeting the peer by functions of the program's that carry messages.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use rdma_qp::exchange::{ExchangeError, MAX_MESSAGE};
use rdma_qp::supervise::Courier;

use crate::exchange::said;
use crate::fault::*;

/// Sends a message to the peer, which gets it from its qp_hear_fn: whole, and behind those that were sent before. It does not wait
/// for the peer; the bytes are gone when it returns.
///
/// @param context  What was given to qp_supervised_meet().
/// @param message  The bytes.
/// @param len      Their number, at most 65536.
/// @return 0, or an errno: the peer is looked for again then.
#[allow(non_camel_case_types)]
pub type qp_tell_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, message: *const c_void, len: usize) -> c_int>;

/// Gives the next message of the peer's, if one is there. It does not wait.
///
/// @param context  What was given to qp_supervised_meet().
/// @param message  Where the bytes go.
/// @param room     Room there: 65536.
/// @param len      Where their number goes; it is 0 before, which stands for no message.
/// @return 0, or an errno: the peer is looked for again then.
#[allow(non_camel_case_types)]
pub type qp_hear_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        message: *mut c_void,
        room: usize,
        len: *mut usize,
    ) -> c_int,
>;

type Tell = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
type Hear = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> c_int;

/// The two functions of the program's.
pub(super) struct Messenger {
    tell: Tell,
    hear: Hear,
    context: *mut c_void,
    poll_every: Duration,
    /// Where a message goes.
    room: Box<[u8]>,
}

// SAFETY: the pointer is the program's and never looked at here; the header says that the functions are called by whichever
// thread calls the library.
unsafe impl Send for Messenger {}

impl Messenger {
    pub(super) fn new(
        tell: qp_tell_fn,
        hear: qp_hear_fn,
        context: *mut c_void,
        poll_ms: u32,
    ) -> Result<Messenger, Fault> {
        let (Some(tell), Some(hear)) = (tell, hear) else {
            let name = if tell.is_none() { "tell" } else { "hear" };
            let text = format!("{name} is NULL");
            return Err(Fault::new(QP_CODE_NULL, libc::EINVAL, text));
        };
        let poll_ms = if poll_ms == 0 { 10 } else { poll_ms };
        Ok(Messenger {
            tell,
            hear,
            context,
            poll_every: Duration::from_millis(poll_ms.into()),
            room: vec![0; MAX_MESSAGE].into_boxed_slice(),
        })
    }
}

impl Courier for Messenger {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let (len, max) = (message.len(), MAX_MESSAGE);
        if len > max {
            return Err(ExchangeError::TooLong { len, max });
        }
        // SAFETY: the program's function, with a pointer to that many bytes, valid during the call, as its type says.
        said("tell", unsafe {
            (self.tell)(self.context, message.as_ptr().cast(), len)
        })
    }

    fn recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        let (room, max) = (self.room.as_mut_ptr(), self.room.len());
        let mut len = 0;
        // SAFETY: the program's function, with a pointer to that much room, valid during the call, as its type says.
        said("hear", unsafe {
            (self.hear)(self.context, room.cast(), max, &mut len)
        })?;
        match self.room.get(..len) {
            Some([]) => Ok(None),
            Some(message) => Ok(Some(message.to_vec())),
            None => Err(ExchangeError::TooLong { len, max }),
        }
    }

    fn poll_every(&self) -> Duration {
        self.poll_every
    }
}
