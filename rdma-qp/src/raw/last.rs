//! The end of what several own.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::deadline::Deadline;

/// How long a close waits for threads that are in a call that uses the object, and are about to let go of it.
const PASSING: Duration = Duration::from_secs(1);

/// Takes an object from its last owner. It comes back if there are others.
///
/// An object that is destroyed is struck off its parent's list first, and lets go of the parent then. For that moment, which
/// lasts as long as regions are freed in it, the parent has another owner that nothing names. So while `passes` finds nobody
/// else, the moment is waited for.
pub(crate) fn owner<T>(
    mut object: Arc<T>,
    mut passes: impl FnMut(&T) -> bool,
) -> Result<T, Arc<T>> {
    let deadline = Deadline::from(PASSING);
    loop {
        object = match Arc::try_unwrap(object) {
            Ok(object) => return Ok(object),
            Err(object) => object,
        };
        if !passes(&object) || deadline.passed() {
            return Err(object);
        }
        thread::sleep(Duration::from_micros(20));
    }
}
