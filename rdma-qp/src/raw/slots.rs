//! The slots of queues: numbers that are unique in the process, each at a place of its own in the table of its CQ.
//!
//! The number names the queue, so that a ticket names one request of the process. Its low bits are the place: a CQ with
//! places for 2^k queues takes numbers of which no two agree in the last k bits.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::intake::BATCH;
use crate::number::NumberHasher;
use crate::wr_id::MAX_SLOTS;

/// By number, what there is of those that were ever given: `None` while a queue has it, else the sequence at which its
/// next queue starts.
static GIVEN: Mutex<Option<HashMap<u32, Option<u64>, NumberHasher>>> = Mutex::new(None);

/// Takes a number that is at `place` of `places`, a power of two, looking from the `from`th on. Returns it with the sequence
/// that its queue starts with.
fn take(place: u32, places: u32, from: u32) -> Option<(u32, u64)> {
    let mut given = given();
    let given = given.get_or_insert_default();
    let rounds = (MAX_SLOTS + 1) / places;
    let mut numbers = (0..rounds).map(|k| from.wrapping_add(k) % rounds * places + place);
    let number = numbers.find(|n| *n < MAX_SLOTS && !matches!(given.get(n), Some(None)))?;
    let start = given.insert(number, None).flatten();
    // Lists as long as a batch of completions then lie in the places for what is kept beside them without going round.
    Some((number, start.unwrap_or(1).next_multiple_of(BATCH as u64)))
}

fn given() -> MutexGuard<'static, Option<HashMap<u32, Option<u64>, NumberHasher>>> {
    // The map is whole after every single operation.
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slots of one CQ.
pub(super) struct Slots {
    /// By place, a power of two: the number that is taken there.
    places: Vec<Option<u32>>,
    /// Places where none is.
    free: Vec<u32>,
    /// Where to look for numbers first, so that CQs are not in each other's way.
    from: u32,
}

impl Slots {
    pub(super) fn new(from: u32) -> Slots {
        Slots {
            places: vec![None],
            free: vec![0],
            from,
        }
    }

    /// How many places there are.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Takes a slot: its number, and the sequence that its queue starts with. `None`: the process has as many as it can tell
    /// apart.
    pub(super) fn take(&mut self) -> Option<(u32, u64)> {
        loop {
            let count = self.places.len() as u32;
            if let Some(place) = self.free.pop() {
                // Where all numbers of a place are taken by others, it is of no use.
                let Some((number, start)) = take(place, count, self.from) else {
                    continue;
                };
                self.places[place as usize] = Some(number);
                return Some((number, start));
            }
            if count > MAX_SLOTS {
                return None;
            }
            self.grow();
        }
    }

    fn grow(&mut self) {
        let count = 2 * self.places.len();
        let before = std::mem::replace(&mut self.places, vec![None; count]);
        for number in before.into_iter().flatten() {
            self.places[number as usize % count] = Some(number);
        }
        let free = (0..count as u32).rev();
        self.free = free
            .filter(|at| self.places[*at as usize].is_none())
            .collect();
    }

    /// Gives a slot back; `next` is the sequence at which the next queue in it starts.
    pub(super) fn give_back(&mut self, number: u32, next: u64) {
        let place = number as usize % self.places.len();
        self.places[place] = None;
        self.free.push(place as u32);
        given().get_or_insert_default().insert(number, Some(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_unique_in_the_process_and_places_in_the_cq() {
        let mut cqs: Vec<Slots> = (0..40).map(|cq| Slots::new(cq % 3)).collect();
        let mut all = HashSet::new();
        for (index, cq) in cqs.iter_mut().enumerate() {
            let mut places = HashSet::new();
            for _ in 0..index {
                let (number, start) = cq.take().unwrap();
                assert!(all.insert(number) && number < MAX_SLOTS && start > 0);
            }
            for number in cq.places.iter().flatten() {
                assert!(places.insert(*number as usize % cq.places()));
            }
            assert_eq!(places.len(), index);
            assert!(cq.places() <= 2 * index.max(1));
        }
        let number = cqs[7].places[3].unwrap();
        cqs[7].give_back(number, 77);
        assert_eq!(cqs[7].take(), Some((number, 96)), "its sequence goes on");
        for cq in &mut cqs {
            for number in cq.places.clone().into_iter().flatten() {
                cq.give_back(number, 5);
            }
        }
    }
}
