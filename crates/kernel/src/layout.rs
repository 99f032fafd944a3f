//! From logical elements of shared buffers to storage.

use crate::kernel::{Layout, Shared, Swizzle};

impl Shared {
    /// Elements of storage, padding included.
    pub fn storage(&self) -> u64 {
        self.rows * (self.cols + self.padding())
    }

    fn padding(&self) -> u64 {
        match self.layout {
            Layout::Padded(pad) => u64::from(pad),
            Layout::Plain | Layout::Swizzled(_) => 0,
        }
    }

    /// Position in storage of a logical element (`row·cols + col`); `None` outside the buffer.
    #[inline]
    pub fn position(&self, element: i64) -> Option<usize> {
        let element = u64::try_from(element).ok().filter(|&e| e < self.rows * self.cols)?;
        Some(match self.layout {
            Layout::Plain | Layout::Swizzled(Swizzle::None) => element,
            Layout::Padded(pad) => element + element / self.cols * u64::from(pad),
            Layout::Swizzled(swizzle) => {
                let bytes = self.dtype.bytes();
                swizzled(swizzle, element * bytes) / bytes
            }
        } as usize)
    }
}

/// The XOR swizzle of byte addresses: chunks of 16 bytes are permuted in each 1024, 512 or 256
/// bytes by the number of the 128-byte line, as bulk copies and `wgmma` do. Addresses count from
/// a multiple of 1024.
pub fn swizzled(swizzle: Swizzle, byte: u64) -> u64 {
    let mask = match swizzle {
        Swizzle::None => 0,
        Swizzle::B32 => 1,
        Swizzle::B64 => 3,
        Swizzle::B128 => 7,
    };
    byte ^ ((byte >> 7 & mask) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::DType;

    fn buffer(dtype: DType, rows: u64, cols: u64, layout: Layout) -> Shared {
        Shared { name: "s".into(), dtype, rows, cols, layout }
    }

    /// Every layout is one-to-one, stays in storage, and keeps 16-byte chunks whole.
    #[test]
    fn layouts_are_injective() {
        let cases = [
            (DType::F32, 8, 12, Layout::Plain),
            (DType::F32, 8, 12, Layout::Padded(3)),
            (DType::F16, 24, 64, Layout::Swizzled(Swizzle::B128)),
            (DType::F32, 24, 16, Layout::Swizzled(Swizzle::B64)),
            (DType::F16, 40, 16, Layout::Swizzled(Swizzle::B32)),
            (DType::F16, 3, 5, Layout::Swizzled(Swizzle::None)),
        ];
        for (dtype, rows, cols, layout) in cases {
            let s = buffer(dtype, rows, cols, layout);
            let mut seen = vec![false; s.storage() as usize];
            for e in 0..(rows * cols) as i64 {
                let at = s.position(e).expect("inside");
                assert!(!std::mem::replace(&mut seen[at], true), "{layout:?}: {e}");
            }
            assert_eq!(s.position(-1), None);
            assert_eq!(s.position((rows * cols) as i64), None);
        }
    }

    /// The 128-byte swizzle exchanges the chunks of row r by XOR with r mod 8.
    #[test]
    fn the_128_byte_swizzle_is_the_machines() {
        let s = buffer(DType::F16, 16, 64, Layout::Swizzled(Swizzle::B128));
        for row in 0..16i64 {
            for chunk in 0..8i64 {
                let want = row * 64 + (chunk ^ (row % 8)) * 8;
                assert_eq!(s.position(row * 64 + chunk * 8), Some(want as usize));
            }
        }
    }
}
