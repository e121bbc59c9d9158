//! What went wrong: an errno for programs of habit, a code of ours that never changes, and a sentence for people.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use rdma_core_sys::ops::set_errno;
use rdma_qp::Errno;

use crate::export::export;

/// One list from which the constants of the header and the names come. A number is never used for anything else.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)+) => {
        /// What went wrong with the last call of this thread that failed: qp_last_code() has it. An errno says less, so
        /// look at the errno to decide, and at the code to tell cases apart. Numbers are never given to another meaning.
        #[repr(C)]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum qp_code {
            $($(#[$doc])* $name = $value,)+
        }

        /// Every code with its name, without the end of the string.
        const NAMES: &[(c_int, &CStr)] = &[$((
            $value,
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name with a zero byte"),
            },
        ),)+];

        pub(crate) use qp_code::*;
    };
}

codes! {
    /// No call of this thread has failed yet.
    QP_CODE_NONE = 0;
    /// A pointer is NULL that must not be (EINVAL).
    QP_CODE_NULL = 1;
    /// This is no handle: the library never gave it out (EBADF).
    QP_CODE_NO_HANDLE = 2;
    /// A handle of another type (EBADF).
    QP_CODE_WRONG_HANDLE = 3;
    /// A handle whose object was destroyed (EBADF).
    QP_CODE_DESTROYED = 4;
    /// Another thread is in a call with an object that serves one thread at a time, or this thread is, in a callback
    /// (EBUSY).
    QP_CODE_OCCUPIED = 5;
    /// A number is out of its range, or a flag is unknown (EINVAL).
    QP_CODE_RANGE = 6;
    /// A string is not UTF-8, or makes no sense (EINVAL).
    QP_CODE_TEXT = 7;
    /// A call from within the log callback (EDEADLK).
    QP_CODE_REENTERED = 8;
    /// A fault of the library: it should never happen, please report it (ENOTRECOVERABLE).
    QP_CODE_INTERNAL = 9;
    /// There is no libibverbs in this process or on this system (ENODEV).
    QP_CODE_NO_VERBS = 10;
    /// There is no such device, port or GID (ENODEV or ENODATA).
    QP_CODE_NOT_FOUND = 11;
    /// Looked at and found wrong before anything was called: nothing was changed (EINVAL, or what verbs would say).
    QP_CODE_REFUSED = 12;
    /// The verbs library, the device or the system refused (its errno).
    QP_CODE_SYSTEM = 13;
    /// Something still uses the object: it was not destroyed (EBUSY).
    QP_CODE_IN_USE = 14;
    /// The queue has no room (ENOMEM).
    QP_CODE_FULL = 15;
    /// The Queue Pair is in a state in which that cannot be (EINVAL).
    QP_CODE_STATE = 16;
    /// The deadline has passed (ETIMEDOUT).
    QP_CODE_TIMED_OUT = 17;
    /// The peer is gone, or does not keep to the steps (ECONNRESET or EPROTO).
    QP_CODE_PEER = 18;
    /// Bytes that are no endpoint record (EPROTO).
    QP_CODE_RECORD = 19;
    /// A request ended with an error or was flushed (EIO).
    QP_CODE_FAILED = 20;
    /// A buffer of the caller's is too short (ENOSPC).
    QP_CODE_SHORT_BUFFER = 21;
    /// The transport, or the device, has no such thing (EOPNOTSUPP).
    QP_CODE_UNSUPPORTED = 22;
    /// A callback of the program's returned an error (that error).
    QP_CODE_CALLBACK = 23;
    /// A limit of the device, of the object or of this library (ENOMEM or EINVAL).
    QP_CODE_LIMIT = 24;
    /// Two objects that do not belong together: of two protection domains, or of two devices (EINVAL).
    QP_CODE_MISMATCH = 25;
    /// A request without a completion to come: it was reported already, or thrown away by a reset (ESRCH).
    QP_CODE_GONE = 26;
    /// There is no connection at present (ENOTCONN).
    QP_CODE_DOWN = 27;
    /// A supervised connection has come to its end: it gave up, or its device is gone (ESHUTDOWN or ENODEV).
    QP_CODE_OVER = 28;
}

/// Why a call failed.
pub(crate) struct Fault(Box<Parts>);

struct Parts {
    code: qp_code,
    errno: c_int,
    text: String,
}

impl Fault {
    #[cold]
    pub(crate) fn new(code: qp_code, errno: c_int, text: impl Into<String>) -> Fault {
        let text = text.into();
        Fault(Box::new(Parts { code, errno, text }))
    }

    /// A fault with the errno of a library's error.
    #[cold]
    pub(crate) fn of(code: qp_code, errno: Errno, error: &dyn std::fmt::Display) -> Fault {
        Fault::new(code, errno.raw_os_error(), error.to_string())
    }

    /// The same fault with another sentence.
    pub(crate) fn saying(mut self, text: String) -> Fault {
        self.0.text = text;
        self
    }

    /// A number out of its range.
    #[cold]
    pub(crate) fn range(text: impl Into<String>) -> Fault {
        Fault::new(QP_CODE_RANGE, libc::EINVAL, text)
    }

    /// What a panic said.
    #[cold]
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Fault {
        let said = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned());
        let said = said.or_else(|| payload.downcast_ref::<String>().cloned());
        let text = format!(
            "a fault of the library, please report it: {}",
            said.as_deref().unwrap_or("no message")
        );
        Fault::new(QP_CODE_INTERNAL, libc::ENOTRECOVERABLE, text)
    }

    /// The code.
    pub(crate) fn code(&self) -> qp_code {
        self.0.code
    }

    /// Notes the fault for this thread, sets errno, and returns it.
    #[cold]
    pub(crate) fn tell(self) -> c_int {
        let Parts { code, errno, text } = *self.0;
        // A zero byte would end the sentence early.
        let sentence = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
        // At the very end of a thread there is nothing to note it in.
        let _ = LAST.try_with(|last| *last.borrow_mut() = (code, Some(sentence)));
        set_errno(errno);
        errno
    }
}

thread_local! {
    /// The code and the sentence of the last fault of this thread.
    static LAST: RefCell<(qp_code, Option<CString>)> = const { RefCell::new((QP_CODE_NONE, None)) };
}

export! {
    /// Says in a sentence what went wrong with the last call of this thread that failed, and what to change. Never NULL;
    /// empty where no call has failed. A call that succeeds leaves it as it is.
    ///
    /// The string is the library's, and stays until the next call of this thread that fails, or the end of the thread.
    fn qp_last_error() -> *const c_char, else c"".as_ptr(); {
        LAST.try_with(|last| last.borrow().1.as_ref().map(|text| text.as_ptr()))
            .ok()
            .flatten()
            .unwrap_or(c"".as_ptr())
    }

    /// Gives the code of the last call of this thread that failed, QP_CODE_NONE where none has.
    fn qp_last_code() -> qp_code, else QP_CODE_INTERNAL; {
        LAST.try_with(|last| last.borrow().0).unwrap_or(QP_CODE_NONE)
    }

    /// Gives the name of a code, such as "QP_CODE_NULL"; "unknown" for a number that is none. The string is static.
    ///
    /// @param code  A code, as qp_last_code() gives it.
    fn qp_code_name(code: c_int) -> *const c_char, else c"unknown".as_ptr(); {
        let found = NAMES.iter().find(|(number, _)| *number == code);
        found.map_or(c"unknown", |(_, name)| name).as_ptr()
    }
}
