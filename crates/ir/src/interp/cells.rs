//! Storage of a written tensor, shared by the threads of a run.
//!
//! Elements are atomics with relaxed order: instances write different elements, which is checked,
//! and the threads are joined before anything is read back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The storage and who wrote it.
pub struct Cells {
    values: Vec<AtomicU64>,
    /// Empty unless scales of errors are computed.
    magnitudes: Vec<AtomicU64>,
    /// One bit per element.
    written: Vec<AtomicU64>,
    /// For an in-out tensor, one more than the instance that uses the element; 0 for none.
    owners: Vec<AtomicU32>,
}

/// Why an element can't be used; the offset says which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clash {
    /// It was written before.
    Twice(usize),
    /// It belongs to another instance.
    Shared(usize),
}

/// Whether a vector of integers is one of atomics, allocation included.
const ALIKE: bool = align_of::<u64>() == align_of::<AtomicU64>();

/// Zeros that no thread has touched yet where the allocator gives fresh pages: the threads of the
/// run touch them first, each its own.
fn zeros(len: usize) -> Vec<AtomicU64> {
    if !ALIKE {
        return (0..len).map(|_| AtomicU64::new(0)).collect();
    }
    let mut plain = std::mem::ManuallyDrop::new(vec![0u64; len]);
    // SAFETY: an atomic has the size and the bits of its integer, and the same alignment as was
    // just asked, so the allocation is one of a vector of atomics. The integers aren't dropped.
    unsafe { Vec::from_raw_parts(plain.as_mut_ptr().cast(), len, plain.capacity()) }
}

/// The values whose bits the cells hold.
fn values(cells: Vec<AtomicU64>) -> Vec<f64> {
    if align_of::<f64>() != align_of::<AtomicU64>() {
        return cells.into_iter().map(|c| f64::from_bits(c.into_inner())).collect();
    }
    let mut cells = std::mem::ManuallyDrop::new(cells);
    // SAFETY: every 8 bytes are an f64, whose size and alignment are those of the atomics; nothing
    // else refers to them, and the atomics aren't dropped.
    unsafe { Vec::from_raw_parts(cells.as_mut_ptr().cast(), cells.len(), cells.capacity()) }
}

impl Cells {
    /// `span` elements, 0 or the contents of an in-out tensor.
    pub fn new(span: usize, initial: Option<&[f64]>, magnitude: bool) -> Cells {
        let values = match initial {
            Some(data) => data.iter().map(|x| AtomicU64::new(x.to_bits())).collect(),
            None => zeros(span),
        };
        let owners = match initial {
            Some(_) => (0..span).map(|_| AtomicU32::new(0)).collect(),
            None => Vec::new(),
        };
        Cells {
            values,
            magnitudes: zeros(if magnitude { span } else { 0 }),
            written: zeros(span.div_ceil(64)),
            owners,
        }
    }

    /// Marks an element of an in-out tensor as used by an instance.
    fn own(&self, at: usize, instance: u32) -> Result<(), Clash> {
        let Some(owner) = self.owners.get(at) else { return Ok(()) };
        match owner.compare_exchange(0, instance + 1, Relaxed, Relaxed) {
            Ok(_) => Ok(()),
            Err(found) if found == instance + 1 => Ok(()),
            Err(_) => Err(Clash::Shared(at)),
        }
    }

    /// Reads an element of an in-out tensor: value and scale.
    pub fn read(&self, at: usize, instance: u32) -> Result<(f64, f64), Clash> {
        self.own(at, instance)?;
        let magnitude = self.magnitudes.get(at).map_or(0.0, |m| f64::from_bits(m.load(Relaxed)));
        Ok((f64::from_bits(self.values[at].load(Relaxed)), magnitude))
    }

    /// Writes elements `at`, `at + stride`, …; `magnitudes` is empty or as long as `values`.
    pub fn write(
        &self,
        at: usize,
        stride: usize,
        values: &[f64],
        magnitudes: &[f64],
        instance: u32,
    ) -> Result<(), Clash> {
        if !self.owners.is_empty() {
            for n in 0..values.len() {
                self.own(at + n * stride, instance)?;
            }
        }
        if stride == 1 {
            self.mark(at, at + values.len())?;
        } else {
            for n in 0..values.len() {
                self.mark(at + n * stride, at + n * stride + 1)?;
            }
        }
        let to = self.values[at..].iter().step_by(stride.max(1));
        for (to, value) in to.zip(values) {
            to.store(value.to_bits(), Relaxed);
        }
        if !self.magnitudes.is_empty() {
            let to = self.magnitudes[at..].iter().step_by(stride.max(1));
            for (to, value) in to.zip(magnitudes) {
                to.store(value.to_bits(), Relaxed);
            }
        }
        Ok(())
    }

    /// Sets the bits of a stretch, a word at a time.
    fn mark(&self, from: usize, to: usize) -> Result<(), Clash> {
        let mut at = from;
        while at < to {
            let (word, first) = (at / 64, at % 64);
            let count = (64 - first).min(to - at);
            let mask = (u64::MAX >> (64 - count)) << first;
            let before = self.written[word].fetch_or(mask, Relaxed) & mask;
            if before != 0 {
                return Err(Clash::Twice(word * 64 + before.trailing_zeros() as usize));
            }
            at += count;
        }
        Ok(())
    }

    /// Whether an element was written.
    pub fn is_written(&self, at: usize) -> bool {
        self.written[at / 64].load(Relaxed) >> (at % 64) & 1 == 1
    }

    /// Number of elements written.
    pub fn count_written(&self) -> u64 {
        self.written.iter().map(|w| w.load(Relaxed).count_ones() as u64).sum()
    }

    /// Values and scales.
    pub fn into_parts(self) -> (Vec<f64>, Vec<f64>) {
        (values(self.values), values(self.magnitudes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_across_words_are_written_once() {
        let cells = Cells::new(300, None, true);
        let values = vec![1.0; 130];
        assert_eq!(cells.write(60, 1, &values, &values, 0), Ok(()));
        assert_eq!(cells.count_written(), 130);
        assert!(!cells.is_written(59) && cells.is_written(60) && cells.is_written(189));
        assert!(!cells.is_written(190));
        assert_eq!(cells.write(10, 1, &values[..50], &values[..50], 0), Ok(()));
        assert_eq!(cells.write(189, 1, &[2.0], &[0.0], 0), Err(Clash::Twice(189)));
        assert_eq!(cells.write(200, 10, &[1.0, 2.0], &[0.0; 2], 0), Ok(()));
        assert_eq!(cells.write(205, 5, &[1.0, 2.0], &[0.0; 2], 0), Err(Clash::Twice(210)));
        let (values, magnitudes) = cells.into_parts();
        assert_eq!((values[189], values[210], magnitudes[60]), (1.0, 2.0, 1.0));
    }

    #[test]
    fn an_element_of_an_in_out_tensor_has_one_owner() {
        let cells = Cells::new(2, Some(&[3.0, 4.0]), false);
        assert_eq!(cells.read(0, 7), Ok((3.0, 0.0)));
        assert_eq!(cells.write(0, 1, &[5.0], &[], 7), Ok(()));
        assert_eq!(cells.read(0, 7), Ok((5.0, 0.0)));
        assert_eq!(cells.read(0, 8), Err(Clash::Shared(0)));
        assert_eq!(cells.write(0, 1, &[5.0], &[], 8), Err(Clash::Shared(0)));
        assert_eq!(cells.write(1, 1, &[5.0], &[], 0), Ok(()));
        assert_eq!(cells.read(1, 7), Err(Clash::Shared(1)));
    }
}
