//! Which of the numbered messages of an unreliable transport have come.

/// The last so many numbers are told apart from those that came twice; what comes later still counts as lost.
const WIDTH: u32 = 8192;

/// Numbers of messages, with gaps where some are lost.
pub struct Numbers {
    /// Below this, nothing counts.
    first: u32,
    /// Behind the highest that came.
    next: u32,
    seen: Box<[u64]>,
}

impl Numbers {
    /// Numbers from `first` on, none of which has come. They wrap around.
    pub fn from(first: u32) -> Numbers {
        Numbers {
            first,
            next: first,
            seen: vec![0; WIDTH as usize / 64].into(),
        }
    }

    /// A message of that number came. `true`: for the first time, and it is one of those that are waited for.
    pub fn came(&mut self, number: u32) -> bool {
        // Half of all numbers lie before any other.
        if (number.wrapping_sub(self.first) as i32) < 0 {
            return false;
        }
        let ahead = number.wrapping_sub(self.next) as i32;
        if ahead < 0 && ahead.unsigned_abs() > WIDTH {
            return false;
        }
        if ahead >= 0 {
            if ahead as u32 >= WIDTH {
                self.seen.fill(0);
            } else {
                (0..=ahead as u32).for_each(|n| self.set(self.next.wrapping_add(n), false));
            }
            self.next = number.wrapping_add(1);
        }
        let is_new = !self.is_set(number);
        self.set(number, true);
        is_new
    }

    fn is_set(&self, number: u32) -> bool {
        let bit = number % WIDTH;
        self.seen[bit as usize / 64] & 1 << (bit % 64) != 0
    }

    fn set(&mut self, number: u32, to: bool) {
        let bit = number % WIDTH;
        let word = &mut self.seen[bit as usize / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(to) << (bit % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once() {
        let mut numbers = Numbers::from(u32::MAX - 2);
        let mut came = |number: u32| numbers.came(number);
        assert!(came(u32::MAX - 2) && came(1) && came(u32::MAX) && came(0));
        assert!(!came(0) && !came(u32::MAX - 2) && !came(u32::MAX));
        assert!(came(u32::MAX - 1), "late, and not lost");
        assert!(!came(u32::MAX - 3), "of what was before");
        // Behind a gap as wide as is remembered, all before is forgotten, and nothing is taken for seen.
        assert!(came(20_000) && came(19_999) && came(20_000 - 8000) && !came(1));
        assert!(came(20_001 + 8191) && came(20_002) && !came(20_002));
    }
}
