//! Orders of measurement: rotations, and rotations with their reversals.

/// The order of `n` candidates in one round of a search: rotated left by
/// (offset + round·⌈n/rounds⌉) mod n, reversed in odd rounds. So every candidate is measured
/// early, in the middle and late.
pub fn search(n: usize, offset: usize, round: usize, rounds: usize) -> Vec<usize> {
    if n == 0 {
        return Vec::new();
    }
    let by = (offset % n + round.wrapping_mul(n.div_ceil(rounds.max(1)))) % n;
    let mut order = rotation(n, by);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The order of `n` paths in one round of a replay, with i = (offset + round) mod 2n: the
/// rotation by i, or for i ≥ n the reversal of the rotation by i − n. Any 2n consecutive rounds
/// put every path in every position twice and every path before every other n times.
pub fn replay(n: usize, offset: usize, round: usize) -> Vec<usize> {
    if n == 0 {
        return Vec::new();
    }
    let i = (offset % (2 * n) + round % (2 * n)) % (2 * n);
    let mut order = rotation(n, i % n);
    if i >= n {
        order.reverse();
    }
    order
}

/// The order of `n` paths in one pass of samples, where position j is of path
/// z(j) + pass mod n with z = 0, 1, n−1, 2, n−2, …, reversed in every other run of n passes. Pass 0
/// begins with path 0. In n passes, 2n for odd n, each path follows each other equally often
/// (Williams, "Experimental designs balanced for the estimation of residual effects", 1949).
pub fn pass(n: usize, pass: usize) -> Vec<usize> {
    let zigzag = |j: usize| if j % 2 == 1 { j.div_ceil(2) } else { (n - j / 2) % n };
    let mut order: Vec<usize> = (0..n).map(|j| (zigzag(j) + pass % n) % n).collect();
    if pass / n.max(1) % 2 == 1 {
        order.reverse();
    }
    order
}

/// 0 … n−1 rotated left.
pub fn rotation(n: usize, by: usize) -> Vec<usize> {
    (0..n).map(|i| (i + by) % n).collect()
}

/// `derived mod n`, for numbers that come from a hash. 0 for n = 0.
pub fn reduce(derived: u64, n: usize) -> usize {
    derived.checked_rem(n as u64).unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_order_is_a_permutation_that_moves() {
        for n in [1, 2, 7, 40] {
            for round in 0..4 {
                let mut order = search(n, 3, round, 3);
                order.sort();
                assert_eq!(order, (0..n).collect::<Vec<_>>());
            }
        }
        assert_eq!(search(5, 1, 0, 3), [1, 2, 3, 4, 0]);
        // Rotated by 1 + 2, then reversed.
        assert_eq!(search(5, 1, 1, 3), [2, 1, 0, 4, 3]);
        assert_eq!(search(0, 1, 1, 3), [0usize; 0]);
    }

    #[test]
    fn twice_as_many_rounds_as_paths_balance_positions_and_precedence() {
        for n in 1..9 {
            let mut positions = vec![vec![0; n]; n];
            let mut before = vec![vec![0; n]; n];
            for round in 5..5 + 2 * n {
                let order = replay(n, 11, round);
                for (at, path) in order.iter().enumerate() {
                    positions[*path][at] += 1;
                    for later in &order[at + 1..] {
                        before[*path][*later] += 1;
                    }
                }
            }
            assert!(positions.iter().flatten().all(|c| *c == 2), "{n}: {positions:?}");
            for (a, row) in before.iter().enumerate() {
                for (b, count) in row.iter().enumerate() {
                    assert_eq!(*count, if a == b { 0 } else { n }, "{a} before {b} of {n}");
                }
            }
        }
    }

    #[test]
    fn passes_put_each_path_after_each_other_equally_often() {
        assert_eq!(pass(0, 3), [0usize; 0]);
        assert_eq!(pass(1, 3), [0]);
        assert_eq!(pass(4, 0), [0, 1, 3, 2]);
        assert_eq!(pass(4, 1), [1, 2, 0, 3]);
        assert_eq!(pass(4, 5), [3, 0, 2, 1]);
        for n in 2..10 {
            let mut after = vec![vec![0; n]; n];
            for i in 0..2 * n {
                let order = pass(n, i);
                order.windows(2).for_each(|pair| after[pair[0]][pair[1]] += 1);
                let mut all = order;
                all.sort_unstable();
                assert_eq!(all, (0..n).collect::<Vec<_>>());
            }
            let even = |a: usize, b: usize| after[a][b] == if a == b { 0 } else { 2 };
            assert!((0..n).all(|a| (0..n).all(|b| even(a, b))), "{n}: {after:?}");
        }
    }

    #[test]
    fn a_missing_path_leaves_the_others_balanced_pairwise() {
        let n = 6;
        let mut before = vec![vec![0; n]; n];
        for round in 0..2 * n {
            let order: Vec<usize> = replay(n, 0, round).into_iter().filter(|p| *p != 4).collect();
            for (at, path) in order.iter().enumerate() {
                for later in &order[at + 1..] {
                    before[*path][*later] += 1;
                }
            }
        }
        assert!((0..n).all(|a| (0..n).all(|b| before[a][b] == before[b][a])));
    }
}
