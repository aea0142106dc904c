//! Levels and dictionary indices: runs of one number, and numbers of a few bits each.

/// Reads Parquet's hybrid of run-length and bit-packed encoding, without its length before it.
pub(super) struct Runs<'a> {
    data: &'a [u8],
    at: usize,
    width: u32,
    run: Run,
}

enum Run {
    Same {
        left: u64,
        value: u32,
    },
    /// Packed numbers, the next of them at this bit.
    Packed {
        left: u64,
        bit: u64,
    },
}

impl<'a> Runs<'a> {
    /// Numbers of up to 32 bits.
    pub(super) fn new(data: &'a [u8], width: u32) -> Option<Self> {
        (width <= 32).then_some(Self { data, at: 0, width, run: Run::Same { left: 0, value: 0 } })
    }

    /// Some next equal numbers, `most` or fewer, and at least one.
    fn next(&mut self, most: u64) -> Option<(u64, u32)> {
        loop {
            match &mut self.run {
                Run::Same { left, value } if *left > 0 => {
                    let n = most.min(*left);
                    *left -= n;
                    return Some((n, *value));
                }
                Run::Packed { left, bit } if *left > 0 => {
                    let first = *bit;
                    *left -= 1;
                    *bit += u64::from(self.width);
                    return Some((1, bits(self.data, first, self.width)?));
                }
                _ => self.begin()?,
            }
        }
    }

    /// Reads the head of a run. Each takes a byte, so that empty runs end.
    fn begin(&mut self) -> Option<()> {
        let mut head = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = *self.data.get(self.at)?;
            self.at += 1;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            if shift == 28 {
                return None;
            }
        }
        let count = head >> 1;
        if head & 1 == 1 && self.width == 0 {
            self.run = Run::Same { left: count * 8, value: 0 };
        } else if head & 1 == 1 {
            self.run = Run::Packed { left: count * 8, bit: self.at as u64 * 8 };
            let len = usize::try_from(count * u64::from(self.width)).ok()?;
            // The last run may be cut where its numbers are filling only.
            self.at = self.at.saturating_add(len).min(self.data.len());
        } else {
            let len = self.width.div_ceil(8) as usize;
            let bytes = self.data.get(self.at..self.at + len)?;
            let value = bytes.iter().rev().fold(0u32, |n, b| n << 8 | u32::from(*b));
            self.run = Run::Same { left: count, value };
            self.at += len;
        }
        Some(())
    }

    /// The next number.
    pub(super) fn one(&mut self) -> Option<u32> {
        self.next(1).map(|(_, value)| value)
    }

    /// Passes over numbers, and counts those that are `this`.
    pub(super) fn pass(&mut self, count: u64, this: u32) -> Option<u64> {
        let (mut left, mut found) = (count, 0);
        while left > 0 {
            let (n, value) = self.next(left)?;
            left -= n;
            found += if value == this { n } else { 0 };
        }
        Some(found)
    }
}

/// A number of up to 32 bits, the least bit first.
fn bits(data: &[u8], first: u64, width: u32) -> Option<u32> {
    let start = usize::try_from(first / 8).ok()?;
    let end = usize::try_from((first + u64::from(width)).div_ceil(8)).ok()?;
    let bytes = data.get(start..end)?;
    let all = bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    Some((all >> (first % 8) & ((1 << width) - 1)) as u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::header::varint;
    use super::*;

    /// Runs and packed groups of eight, as the second of each says.
    fn encode(width: u32, runs: &[(Vec<u32>, bool)]) -> (Vec<u8>, Vec<u32>) {
        let (mut out, mut all) = (Vec::new(), Vec::new());
        let mask = ((1u64 << width) - 1) as u32;
        for (values, packed) in runs {
            if *packed {
                let values: Vec<u32> = values.iter().map(|v| v & mask).collect();
                varint((values.len() as u64 / 8) << 1 | 1, &mut out);
                let mut bytes = vec![0u8; values.len() / 8 * width as usize];
                for (i, v) in values.iter().enumerate() {
                    for b in 0..width as usize {
                        let at = i * width as usize + b;
                        bytes[at / 8] |= ((v >> b & 1) as u8) << (at % 8);
                    }
                }
                out.extend(bytes);
                all.extend(values);
            } else {
                varint((values.len() as u64) << 1, &mut out);
                let value = values[0] & mask;
                out.extend(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
                all.extend(std::iter::repeat_n(value, values.len()));
            }
        }
        (out, all)
    }

    proptest! {
        #[test]
        fn numbers_come_back(
            width in 0u32..=32,
            runs in proptest::collection::vec((1usize..5, any::<u32>(), any::<bool>()), 1..8),
            step in 1usize..9,
        ) {
            let runs: Vec<(Vec<u32>, bool)> = runs
                .into_iter()
                .map(|(n, seed, packed)| {
                    ((0..n as u32 * 8).map(|i| seed.rotate_left(i * 5)).collect(), packed)
                })
                .collect();
            let (data, all) = encode(width, &runs);
            let mut runs = Runs::new(&data, width).unwrap();
            for chunk in all.chunks(step) {
                prop_assert_eq!(runs.one(), Some(chunk[0]));
                let this = chunk[chunk.len() / 2];
                let equal = chunk[1..].iter().filter(|v| **v == this).count() as u64;
                prop_assert_eq!(runs.pass(chunk.len() as u64 - 1, this), Some(equal));
            }
            prop_assert_eq!(runs.one(), None);
        }

        #[test]
        fn no_bytes_are_a_panic(
            width in 0u32..=32,
            data in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut runs = Runs::new(&data, width).unwrap();
            let _ = (runs.one(), runs.pass(70, 0), runs.one(), runs.pass(1 << 40, 1));
        }
    }
}
