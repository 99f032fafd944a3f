//! Orders of measurement.

/// 0 … n−1 rotated left.
pub fn rotated(n: usize, by: usize) -> Vec<usize> {
    (0..n).map(|i| (i + by) % n).collect()
}

/// The order of candidates in a round of a search.
pub fn search_round(n: usize, rounds: usize, offset: usize, round: usize) -> Vec<usize> {
    if n == 0 || rounds == 0 {
        return Vec::new();
    }
    // Reduced first: a file may state any number.
    let step = (round % n) * (n.div_ceil(rounds) % n);
    let mut order = rotated(n, (offset % n + step) % n);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The order of paths in a replay round: one of n rotations and their n reversals.
pub fn replay_paths(n: usize, start: u64, round: u64) -> Vec<usize> {
    if n == 0 {
        return Vec::new();
    }
    let step = (start.wrapping_add(round) % (2 * n as u64)) as usize;
    let mut order = rotated(n, step % n);
    if step >= n {
        order.reverse();
    }
    order
}

/// Counts over orders: how often each path stood at each position, and before each other path.
/// `None` if the orders balance, else what doesn't.
pub fn imbalance(orders: &[&[usize]], n: usize) -> Option<String> {
    let mut positions = vec![vec![0usize; n]; n];
    let mut before = vec![vec![0usize; n]; n];
    for order in orders {
        for (position, path) in order.iter().enumerate() {
            *positions.get_mut(*path)?.get_mut(position)? += 1;
            for later in order.iter().skip(position + 1) {
                *before.get_mut(*path)?.get_mut(*later)? += 1;
            }
        }
    }
    let each = orders.len() / n;
    for (path, counts) in positions.iter().enumerate() {
        if counts.iter().any(|c| *c != each) {
            return Some(format!("path {path} was at positions {counts:?} times"));
        }
    }
    for (path, counts) in before.iter().enumerate() {
        if counts.iter().enumerate().any(|(other, c)| other != path && *c != orders.len() / 2) {
            return Some(format!("path {path} came before the others {counts:?} times"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_rotates_and_reverses() {
        assert_eq!(search_round(5, 3, 1, 0), [1, 2, 3, 4, 0]);
        // ⌈5/3⌉ = 2: rotated by 3, then reversed.
        assert_eq!(search_round(5, 3, 1, 1), [2, 1, 0, 4, 3]);
        assert_eq!(search_round(5, 3, 1, 2), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn two_n_rounds_balance_and_fewer_do_not() {
        for n in 1..8 {
            let orders: Vec<Vec<usize>> =
                (0..2 * n as u64).map(|round| replay_paths(n, 12345, round)).collect();
            let all: Vec<&[usize]> = orders.iter().map(Vec::as_slice).collect();
            assert_eq!(imbalance(&all, n), None, "{n}");
            if n > 1 {
                assert!(imbalance(&all[1..], n).is_some(), "{n}");
            }
        }
    }
}
