//! What the troubles ask of the safe layer that is not there yet.

/// The trouble's file, and the line.
const LINES: &[(&str, &str)] = &[(
    "sixty_four_kilobytes_of_locked_memory",
    "the hint about locked memory depends on the limit and the size",
)];

/// Says how many wait; each names a trouble that is here.
#[test]
fn lines_that_wait() {
    let troubles = include_str!("main.rs");
    for (trouble, line) in LINES {
        assert!(
            troubles.contains(&format!("\nmod {trouble};\n")),
            "{trouble}: {line}"
        );
    }
    println!(
        "SKIP safe-layer-lines: {} lines wait for the safe layer",
        LINES.len()
    );
}
