//! Rows of completions, four at a time: what a loop itself costs is paid once for four.

/// Calls `each` with what is side by side in two slices, and its place, as long as `is` says yes to the place; `are` says at once
/// whether `is` says so to a place and the three behind it. Returns how often.
#[inline(always)]
pub(super) fn in_a_row<A, B>(
    a: &mut [A],
    b: &[B],
    are: impl Fn(usize) -> bool,
    is: impl Fn(usize) -> bool,
    mut each: impl FnMut(&mut A, &B, usize),
) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&mut a[..len], &b[..len]);
    let mut done = 0;
    let (fours_a, fours_b) = (a.as_chunks_mut::<4>().0, b.as_chunks::<4>().0);
    for (a, b) in fours_a.iter_mut().zip(fours_b) {
        if !are(done) {
            break;
        }
        for at in 0..4 {
            each(&mut a[at], &b[at], done + at);
        }
        done += 4;
    }
    while done < len && is(done) {
        each(&mut a[done], &b[done], done);
        done += 1;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_taken_or_those_before_the_first_that_is_not() {
        for len in 0..11usize {
            let tens: Vec<usize> = (0..len).map(|at| 10 * at).collect();
            for stop in 0..=len + 1 {
                let mut copied = vec![usize::MAX; len];
                let (are, is) = (|at| at + 4 <= stop, |at| at < stop);
                let done = in_a_row(&mut copied, &tens, are, is, |a, b, at| *a = b + at);
                assert_eq!(done, stop.min(len));
                for (at, found) in copied.into_iter().enumerate() {
                    assert_eq!(found, if at < stop { 11 * at } else { usize::MAX });
                }
            }
        }
    }
}
