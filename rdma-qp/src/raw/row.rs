//! Two lists side by side, four at a time: what a loop itself costs is paid once for four.

/// Calls `each` with what is side by side in two slices of the same length, until it says `false`. Returns how often it said
/// `true`.
#[inline(always)]
pub(super) fn in_a_row<A, B>(a: &[A], b: &[B], mut each: impl FnMut(&A, &B) -> bool) -> usize {
    let ((many_a, rest_a), (many_b, rest_b)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    for (block, (a, b)) in many_a.iter().zip(many_b).enumerate() {
        for at in 0..4 {
            if !each(&a[at], &b[at]) {
                return 4 * block + at;
            }
        }
    }
    let rest = rest_a.iter().zip(rest_b);
    4 * many_a.len() + rest.take_while(|(a, b)| each(a, b)).count()
}

/// The same where the first of the two is written to.
#[inline(always)]
pub(super) fn in_a_row_mut<A, B>(
    a: &mut [A],
    b: &[B],
    mut each: impl FnMut(&mut A, &B) -> bool,
) -> usize {
    let many = a.len() / 4;
    let ((many_a, rest_a), (many_b, rest_b)) = (a.as_chunks_mut::<4>(), b.as_chunks::<4>());
    for (block, (a, b)) in many_a.iter_mut().zip(many_b).enumerate() {
        for at in 0..4 {
            if !each(&mut a[at], &b[at]) {
                return 4 * block + at;
            }
        }
    }
    let mut done = 4 * many;
    for (a, b) in rest_a.iter_mut().zip(rest_b) {
        if !each(a, b) {
            break;
        }
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
            let (numbers, tens) = (0..len)
                .map(|at| (at, 10 * at))
                .unzip::<_, _, Vec<_>, Vec<_>>();
            for stop in 0..=len {
                let mut seen = Vec::new();
                let mut each = |a: &usize, b: &usize| {
                    let goes_on = *a != stop;
                    seen.extend(goes_on.then_some((*a, *b)));
                    goes_on
                };
                assert_eq!(in_a_row(&numbers, &tens, &mut each), stop);
                let want: Vec<_> = (0..stop).map(|at| (at, 10 * at)).collect();
                assert_eq!(seen, want);
                let mut copied = vec![0; len];
                let done = in_a_row_mut(&mut copied, &tens, |a, b| {
                    let goes_on = *b != 10 * stop;
                    *a = if goes_on { *b } else { 0 };
                    goes_on
                });
                assert_eq!(done, stop);
                assert_eq!(copied[..stop], tens[..stop]);
            }
        }
    }
}
