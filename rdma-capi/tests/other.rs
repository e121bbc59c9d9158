//! Another library in Rust, with a runtime of its own, for a program that links libqp.a beside it.

/// Panics inside, and tells of it.
#[unsafe(no_mangle)]
pub extern "C" fn other_catches() -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| {
        if std::env::args().count() > 0 {
            panic!("on purpose");
        }
    });
    i32::from(caught.is_err())
}
