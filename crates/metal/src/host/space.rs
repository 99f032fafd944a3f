//! Which buffer object an address belongs to.
//!
//! Launches name memory by address; Metal binds buffer objects with offsets. Buffers are in
//! storage that host and GPU share, so the host's address of a buffer's content names it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Live allocations by the address of their first usable byte.
#[derive(Debug)]
pub struct Allocations<B> {
    live: Mutex<BTreeMap<usize, Allocation<B>>>,
}

#[derive(Debug)]
struct Allocation<B> {
    bytes: usize,
    /// Bytes of the object before the first usable one.
    lead: usize,
    object: B,
}

impl<B> Default for Allocations<B> {
    fn default() -> Self {
        Allocations { live: Mutex::default() }
    }
}

impl<B: Clone> Allocations<B> {
    /// Adds an allocation of `bytes` from `start` on, which is byte `lead` of the object.
    pub fn insert(&self, start: usize, bytes: usize, lead: usize, object: B) {
        let allocation = Allocation { bytes, lead, object };
        self.live.lock().unwrap_or_else(PoisonError::into_inner).insert(start, allocation);
    }

    /// Removes the allocation that starts there.
    pub fn remove(&self, start: usize) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
    }

    /// The object that holds a range, and the range's offset in it. `None` if no allocation holds
    /// all of it.
    pub fn find(&self, address: usize, bytes: usize) -> Option<(B, usize)> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, allocation) = live.range(..=address).next_back()?;
        let at = address - start;
        let end = at.checked_add(bytes)?;
        (end <= allocation.bytes).then(|| (allocation.object.clone(), allocation.lead + at))
    }

    /// Number of live allocations.
    pub fn count(&self) -> usize {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::Allocations;

    #[test]
    fn a_range_is_found_in_the_allocation_that_holds_all_of_it() {
        let space = Allocations::default();
        space.insert(0x1000, 512, 16, 'a');
        space.insert(0x1200, 256, 0, 'b');
        assert_eq!(space.find(0x1000, 512), Some(('a', 16)));
        assert_eq!(space.find(0x1100, 256), Some(('a', 272)));
        // An empty range at the end of one allocation is the start of the next.
        assert_eq!(space.find(0x1200, 0), Some(('b', 0)));
        assert_eq!(space.find(0x12ff, 1), Some(('b', 255)));
        for (address, bytes) in
            [(0xfff, 1), (0x1000, 513), (0x11ff, 2), (0x12ff, 2), (0x1300, 1), (usize::MAX, 1)]
        {
            assert_eq!(space.find(address, bytes), None, "{address:#x} {bytes}");
        }
        space.remove(0x1200);
        assert_eq!(space.find(0x1210, 8), None);
        assert_eq!(space.count(), 1);
    }
}
