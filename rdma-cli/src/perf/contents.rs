//! What messages contain where it is checked: bytes that follow from which message it is, so that the other end knows them.

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Whether it comes from the end that asked for the test.
    pub from_asking: bool,
    /// Which Queue Pair it goes by, counted from 0.
    pub lane: usize,
    /// Its number there.
    pub number: u64,
}

/// A place to write and to read messages, which grows once.
#[derive(Default)]
pub struct Contents {
    sent: Vec<u8>,
    got: Vec<u8>,
}

impl Contents {
    /// The `len` bytes of a message.
    pub fn of(&mut self, message: Message, len: usize) -> &mut [u8] {
        self.sent.resize(len.max(self.sent.len()), 0);
        let side = u64::from(message.from_asking);
        let mut state = mix(mix(message.number).wrapping_add((message.lane as u64) << 1 | side));
        for chunk in self.sent[..len].chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let word = (state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        &mut self.sent[..len]
    }

    /// Room for the `len` bytes that came.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        self.got.resize(len.max(self.got.len()), 0);
        &mut self.got[..len]
    }

    /// Compares what is in the room with what the message contained; `tag` is its last byte where that is the reader's signal.
    /// The sentence names the first difference.
    pub fn difference(&mut self, message: Message, len: usize, tag: Option<u8>) -> Option<String> {
        let sent = self.of(message, len);
        if let (Some(tag), Some(last)) = (tag, sent.last_mut()) {
            *last = tag;
        }
        if self.sent[..len] == self.got[..len] {
            return None;
        }
        let pairs = self.sent.iter().zip(&self.got[..len]);
        let (at, (sent, got)) = pairs.enumerate().find(|(_, (sent, got))| sent != got)?;
        let Message { lane, number, .. } = message;
        Some(format!(
            "message {number} of Queue Pair {lane} is not what was sent: of its {len} bytes, byte {at} is {got:#04x} and was {sent:#04x}"
        ))
    }
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Message = Message {
        from_asking: true,
        lane: 0,
        number: 7,
    };

    #[test]
    fn the_first_difference_is_named() {
        let mut contents = Contents::default();
        let bytes = contents.of(ONE, 21).to_vec();
        contents.room(21).copy_from_slice(&bytes);
        assert_eq!(contents.difference(ONE, 21, None), None);
        contents.room(21)[20] ^= 0xff;
        contents.room(21)[13] = !bytes[13];
        assert_eq!(
            contents.difference(ONE, 21, None).unwrap(),
            format!(
                "message 7 of Queue Pair 0 is not what was sent: of its 21 bytes, byte 13 is {:#04x} and was {:#04x}",
                !bytes[13], bytes[13]
            )
        );
    }

    #[test]
    fn a_last_byte_that_is_a_signal_is_compared_too() {
        let mut contents = Contents::default();
        let bytes = contents.of(ONE, 8).to_vec();
        contents.room(8).copy_from_slice(&bytes);
        contents.room(8)[7] = 3;
        assert_eq!(contents.difference(ONE, 8, Some(3)), None);
        assert!(contents.difference(ONE, 8, Some(4)).is_some());
    }

    /// Another message, another lane and the other end each have other bytes, even where there are few.
    #[test]
    fn no_message_passes_for_another() {
        let mut contents = Contents::default();
        let mut seen = std::collections::HashSet::new();
        for from_asking in [false, true] {
            for lane in 0..8 {
                for number in 0..100 {
                    let message = Message {
                        from_asking,
                        lane,
                        number,
                    };
                    assert!(seen.insert(contents.of(message, 8).to_vec()), "{message:?}");
                }
            }
        }
    }
}
