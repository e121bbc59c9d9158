//! What the library tells while it works, handed to a function of the program's.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber, set_global_default};
use tracing::{Event, Level, Metadata};

use crate::export::export;
use crate::fault::{Fault, QP_CODE_REENTERED};

/// What a line of the log is: each level has those before it.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_log_level {
    /// Nothing.
    QP_LOG_NONE = 0,
    /// Something is lost: an object that could not be destroyed.
    QP_LOG_ERROR = 1,
    /// A modify that was refused, a setting that is legal and does harm.
    QP_LOG_WARN = 2,
    /// Every move of a Queue Pair.
    QP_LOG_INFO = 3,
    /// What is made and destroyed.
    QP_LOG_DEBUG = 4,
    /// All that there is.
    QP_LOG_TRACE = 5,
}

/// Takes a line of the log.
///
/// It may be called from any thread, by one at a time. The line is the library's, without a newline, and gone when the
/// function returns. The function must return (no longjmp, no C++ exception), and must not call this library: such a call is
/// refused with EDEADLK.
///
/// @param context  What was given to qp_set_log().
/// @param level    One of enum qp_log_level.
/// @param line     What happened, for people.
#[allow(non_camel_case_types)]
pub type qp_log_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, level: c_int, line: *const c_char)>;

/// The program's function and its pointer.
struct Target(qp_log_fn, *mut c_void);

// SAFETY: the pointer is the program's and never looked at here; the header says that the function is called from any thread.
unsafe impl Send for Target {}

static TARGET: Mutex<Target> = Mutex::new(Target(None, std::ptr::null_mut()));
static LEVEL: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Whether this thread is in the program's function.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Refuses a call from within the program's function.
pub(crate) fn refuse_within() -> Result<(), Fault> {
    if WITHIN.try_with(Cell::get) == Ok(true) {
        let text = "a call from within the log callback: it may not call the library";
        return Err(Fault::new(QP_CODE_REENTERED, libc::EDEADLK, text));
    }
    Ok(())
}

fn level_of(level: &Level) -> c_int {
    match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Takes what the crates below tell, and forms lines of it.
struct Lines;

/// A line: the message first, then the fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Lines {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may change at any time.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && level_of(metadata.level()) <= LEVEL.load(Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = (line.message + &line.fields).replace('\0', "\u{fffd}");
        let Ok(text) = CString::new(text) else { return };
        let target = TARGET.lock().unwrap_or_else(PoisonError::into_inner);
        let Target(Some(function), context) = *target else {
            return;
        };
        WITHIN.set(true);
        // SAFETY: the program's function, with what it was set with; the header says what it may do, and that what it was
        // set with stays usable until another one is set, which waits for the lock.
        unsafe { function(context, level_of(event.metadata().level()), text.as_ptr()) };
        WITHIN.set(false);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

export! {
    /// Sets the function that takes the log, for the whole process, in place of the one before. Without one nothing is
    /// logged. When the call returns, the former function is not running any more and is not called again.
    ///
    /// Thread-safe. Posting and polling never log.
    ///
    /// @param level     The last level to be told, one of enum qp_log_level.
    /// @param function  The function; NULL for none.
    /// @param context   Handed to the function, never looked at.
    /// @return 0, or EINVAL: there is no such level.
    fn qp_set_log(level: c_int, function: qp_log_fn, context: *mut c_void) {
        static ONCE: Once = Once::new();
        if !(0..=5).contains(&level) {
            return Err(Fault::range(format!("level is {level}, but must be in 0..=5 (enum qp_log_level)")));
        }
        // In this library nobody else sets one.
        ONCE.call_once(|| drop(set_global_default(Lines)));
        let mut target = TARGET.lock().unwrap_or_else(PoisonError::into_inner);
        *target = Target(function, context);
        LEVEL.store(if function.is_some() { level } else { 0 }, Relaxed);
        Ok(())
    }
}
