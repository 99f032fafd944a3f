//! Work on long slices by several threads.

/// Elements from which a second thread is worth its start.
pub const LEAST: usize = 1 << 17;

/// Elements of each thread's part of `len`: one part where they are few, else one per core.
fn part(len: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    len.div_ceil((len / LEAST).clamp(1, cores)).max(1)
}

/// What `work` makes of consecutive parts of a slice, in order; it is told where each part begins.
/// How long parts are depends on the machine: outcomes that do so, too, are the caller's to avoid.
pub fn parts<T: Sync, R: Send>(data: &[T], work: impl Fn(usize, &[T]) -> R + Sync) -> Vec<R> {
    let length = part(data.len());
    if length >= data.len() {
        return vec![work(0, data)];
    }
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (data.chunks(length).enumerate())
            .map(|(number, part)| scope.spawn(move || work(number * length, part)))
            .collect();
        running.into_iter().map(join).collect()
    })
}

/// Sets each element of `to` to what `value` makes of the element of `from` there, as far as both
/// go. Memory that nobody touched yet is first touched by the threads.
pub fn convert<T: Sync, U: Send>(from: &[T], to: &mut [U], value: impl Fn(&T) -> U + Sync) {
    let length = part(from.len().min(to.len()));
    let set = |from: &[T], to: &mut [U]| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = value(from);
        }
    };
    if length >= from.len().min(to.len()) {
        return set(from, to);
    }
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(length).zip(to.chunks_mut(length)) {
            scope.spawn(move || set(from, to));
        }
    });
}

/// A thread's outcome; a panic there goes on here.
fn join<R>(thread: std::thread::ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_slice_in_order() {
        for len in [0, 1, 1000, LEAST, 3 * LEAST + 17] {
            let data: Vec<usize> = (0..len).collect();
            let found = parts(&data, |first, part| {
                assert!(part.iter().enumerate().all(|(i, x)| *x == first + i));
                part.to_vec()
            });
            assert_eq!(found.concat(), data);
        }
    }

    #[test]
    fn every_element_is_converted() {
        for len in [0, 1, 1000, 3 * LEAST + 17] {
            let from: Vec<u32> = (0..len as u32).collect();
            let mut to = vec![0.0; len];
            convert(&from, &mut to, |x| f64::from(*x) + 0.5);
            assert!(to.iter().enumerate().all(|(i, x)| *x == i as f64 + 0.5));
        }
    }
}
