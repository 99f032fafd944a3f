//! Walking a strided array in the row-major order of another.

/// Strides of a source, one per axis of a row-major destination; adjacent axes that one stride
/// covers are merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walk {
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// Whether source order is destination order: a plain copy.
    straight: bool,
}

impl Walk {
    /// A walk over `shape` with a source stride for each axis.
    pub fn new(shape: &[usize], strides: &[usize]) -> Walk {
        let mut merged = Walk { shape: Vec::new(), strides: Vec::new(), straight: false };
        for (n, s) in shape.iter().copied().zip(strides.iter().copied()) {
            if n == 1 {
                continue;
            }
            match (merged.shape.last_mut(), merged.strides.last_mut()) {
                (Some(last_n), Some(last_s)) if *last_s == s * n => {
                    *last_n *= n;
                    *last_s = s;
                }
                _ => {
                    merged.shape.push(n);
                    merged.strides.push(s);
                }
            }
        }
        merged.straight = matches!(merged.strides[..], [] | [1]);
        merged
    }

    /// Whether the source is the destination, element for element.
    pub fn is_straight(&self) -> bool {
        self.straight
    }

    /// Calls `run(source offset, length, source stride)` for consecutive stretches of the
    /// destination.
    pub fn runs(&self, mut run: impl FnMut(usize, usize, usize)) {
        let Some((inner, outer)) = self.shape.split_last() else {
            run(0, 1, 1);
            return;
        };
        if self.shape.contains(&0) {
            return;
        }
        let stride = self.strides[outer.len()];
        let mut index = vec![0usize; outer.len()];
        let mut offset = 0;
        loop {
            run(offset, *inner, stride);
            let mut axis = outer.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                offset += self.strides[axis];
                if index[axis] < outer[axis] {
                    break;
                }
                offset -= index[axis] * self.strides[axis];
                index[axis] = 0;
            }
        }
    }

    /// Replaces `to` by `from` in destination order.
    pub fn gather(&self, from: &[f64], to: &mut Vec<f64>) {
        to.clear();
        if self.straight {
            // One merged axis of stride 1, or a single element; `from` may go on beyond it.
            let len = self.shape.first().copied().unwrap_or(1);
            to.extend_from_slice(&from[..len]);
            return;
        }
        self.runs(|offset, len, stride| match stride {
            0 => to.extend(std::iter::repeat_n(from[offset], len)),
            1 => to.extend_from_slice(&from[offset..offset + len]),
            _ => to.extend(from[offset..].iter().step_by(stride).take(len)),
        });
    }
}

/// Row-major strides of a shape.
pub fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(shape: &[usize], strides: &[usize], from: &[f64]) -> Vec<f64> {
        let mut to = vec![9.0];
        Walk::new(shape, strides).gather(from, &mut to);
        to
    }

    #[test]
    fn permutes_broadcasts_and_copies() {
        let from: Vec<f64> = (0..6).map(f64::from).collect();
        assert_eq!(gathered(&[2, 3], &[3, 1], &from), from);
        assert!(Walk::new(&[2, 3], &[3, 1]).is_straight());
        assert_eq!(gathered(&[3, 2], &[1, 3], &from), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(gathered(&[2, 2], &[0, 1], &from), [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(gathered(&[2, 2], &[1, 0], &from), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(gathered(&[2, 2], &[0, 0], &from), [0.0; 4]);
        assert_eq!(gathered(&[], &[], &from), [0.0]);
        assert_eq!(gathered(&[4], &[1], &from), from[..4]);
        assert_eq!(gathered(&[2, 0, 3], &[0, 3, 1], &[]), [0.0; 0]);
        assert_eq!(gathered(&[1, 3, 1], &[7, 2, 9], &from), [0.0, 2.0, 4.0]);
    }
}
