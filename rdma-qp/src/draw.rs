//! Numbers that are different at each end, and, where that is wanted, that nobody else can guess.

/// SplitMix64: who knows one of its numbers can compute all that follow.
#[derive(Debug)]
pub(crate) struct Draws {
    state: u64,
    /// Each number is mixed with one of the system's random source.
    system: bool,
}

impl Draws {
    /// Numbers out of a seed: the same ones each time.
    pub(crate) fn new(seed: u64) -> Draws {
        Draws {
            state: seed,
            system: false,
        }
    }

    /// Numbers that who sees some of them cannot go on with. `seed` is for a system that refuses to give any, which is told
    /// to nobody here: whoever drew the seed from it knows that it gives some.
    pub(crate) fn system(seed: u64) -> Draws {
        Draws {
            state: seed,
            system: true,
        }
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mut bytes = [0; 8];
        if self.system {
            let _ = crate::units::random(&mut bytes);
        }
        z ^ (z >> 31) ^ u64::from_ne_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that follows one of SplitMix64: each of its steps has an inverse.
    fn follows(number: u64) -> u64 {
        // x ^ x >> by, undone.
        let unshift = |y: u64, by: u32| (0..64 / by).fold(y, |x, _| y ^ (x >> by));
        // 1 / odd, modulo 2^64, by Newton.
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x, _| {
                x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)))
            })
        };
        let z = unshift(number, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
        let z = unshift(z, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
        Draws::new(unshift(z, 30)).next()
    }

    #[test]
    fn who_sees_a_number_cannot_compute_the_next() {
        let (mut seeded, mut system) = (Draws::new(7), Draws::system(7));
        for _ in 0..10 {
            let number = seeded.next();
            assert_eq!(follows(number), seeded.next(), "what the system is for");
            let number = system.next();
            assert_ne!(follows(number), system.next());
        }
        assert_ne!(Draws::system(7).next(), Draws::system(7).next());
    }
}
