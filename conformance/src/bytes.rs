//! Bytes that tell messages apart.

/// Bytes of which no part looks like another part, or like those of another number.
#[must_use]
pub fn pattern(number: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // A linear congruential generator (Knuth, MMIX); its upper half is good enough for this.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 32).to_ne_bytes()[..4]);
    }
    bytes.truncate(len);
    bytes
}

/// The number that 8 bytes are in memory, 0 for another count of bytes.
#[must_use]
pub fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

/// Compares two strings of bytes of one length.
///
/// # Errors
/// How many differ, and where the first does.
pub fn same(found: &[u8], wanted: &[u8]) -> Result<(), String> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
            Err(format!(
                "{wrong} bytes are wrong, the first at {at} of {}",
                wanted.len()
            ))
        }
    }
}
