//! Numbers with units, as options take them.

/// A number of bytes, with K or M for 1024 of them and 1024 of those.
///
/// # Errors
/// It is something else, or more than 32 bits hold.
pub fn parse_size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    let number: Option<u32> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "a size is a number of bytes, such as 64, 4K or 1M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!((parse_size("64"), parse_size("4K")), (Ok(64), Ok(4096)));
        assert_eq!(parse_size("8M"), Ok(8 << 20));
        for wrong in ["", "K", "-1", "1G", "4096M"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
