//! Messages that tell whose they are, and whoever checks that each came once, in order and whole.

use rdma_xrc::mesh::{Message, Rank};

/// Message `number` of `from` to `to`: both, the number, a length that varies, bytes that depend on all of them, and a sum of
/// everything before it.
pub fn message(from: Rank, to: Rank, number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [from.0, to.0, number] {
        bytes.extend(word.to_be_bytes());
    }
    let length = 8 + (from.0 * 7 + to.0 * 3 + number) % 64;
    let seed = from.0.wrapping_mul(0x9e37_79b9) ^ to.0.wrapping_mul(0x85eb_ca6b) ^ number;
    bytes.extend((0..length).map(|at| (seed.wrapping_mul(at | 1) >> 13) as u8));
    bytes.extend(sum(&bytes).to_be_bytes());
    bytes
}

/// FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// What one process has received.
pub struct Checked {
    me: Rank,
    /// The next number of each sender.
    next: Vec<u32>,
}

impl Checked {
    pub fn new(me: Rank, processes: u32) -> Checked {
        let next = vec![0; processes as usize];
        Checked { me, next }
    }

    pub fn check(&mut self, got: &Message) {
        let (body, own_sum) = got.split_last_chunk::<8>().unwrap();
        assert_eq!(
            sum(body).to_be_bytes(),
            *own_sum,
            "the bytes of {}",
            got.from
        );
        let word = |at: usize| u32::from_be_bytes(got[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), got.from.0, "who sent it");
        assert_eq!(word(4), self.me.0, "for whom it is");
        let next = &mut self.next[got.from.0 as usize];
        assert_eq!(word(8), *next, "the order of {} to {}", got.from, self.me);
        *next += 1;
    }

    /// How many have come from a process.
    pub fn from(&self, rank: Rank) -> u32 {
        self.next[rank.0 as usize]
    }

    pub fn expect_from_all_but(&self, others: &[Rank], each: u32) {
        for (rank, came) in self.next.iter().enumerate() {
            let rank = Rank(rank as u32);
            let wanted = if others.contains(&rank) { 0 } else { each };
            assert_eq!(*came, wanted, "from {rank} to {}", self.me);
        }
    }
}
