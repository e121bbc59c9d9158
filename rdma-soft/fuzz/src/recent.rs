//! What came before a finding, for targets whose device lives on from one input to the next.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

/// The last inputs. A panic writes them into `before`, a directory beside the file that `QP_FUZZ_TALLY` names: given to the
/// target in the order of their names, they lead there again where the last one alone does not.
#[derive(Debug)]
pub struct Recent {
    inputs: Mutex<VecDeque<Vec<u8>>>,
    hook: Once,
}

/// More than that do not matter: nothing that a target keeps lasts so long.
const KEPT: usize = 256;

impl Recent {
    /// Nothing came yet.
    pub const fn new() -> Recent {
        Recent {
            inputs: Mutex::new(VecDeque::new()),
            hook: Once::new(),
        }
    }

    /// The input that is run now.
    pub fn keep(&'static self, data: &[u8]) {
        self.hook.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                self.write();
                next(info);
            }));
        });
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut input = match inputs.len() {
            KEPT => inputs.pop_front().unwrap_or_default(),
            _ => vec![],
        };
        input.clear();
        input.extend(data);
        inputs.push_back(input);
    }

    fn write(&self) {
        let Some(tally) = std::env::var_os("QP_FUZZ_TALLY") else {
            return;
        };
        let before = Path::new(&tally).with_file_name("before");
        // What cannot be written is missed by whoever looks for it: the panic is what counts.
        let _ = std::fs::remove_dir_all(&before);
        let _ = std::fs::create_dir_all(&before);
        let inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, input) in inputs.iter().enumerate() {
            let _ = std::fs::write(before.join(format!("{at:03}")), input);
        }
    }
}

impl Default for Recent {
    fn default() -> Recent {
        Recent::new()
    }
}
