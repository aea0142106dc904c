//! Random numbers that belong to the sample, not to the thread that draws them.
//!
//! [`Draws`] is a counter-based generator: Philox 4x32 with 10 rounds, as in J. K. Salmon et al.,
//! "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Its key is (seed, epoch), its counter is
//! (row ordinal, index after multiplication, operator, number of the draw). Two threads, two
//! machines or a retry that ask for the same draw get the same number, and no state is carried from
//! one row to the next.

/// Names one row for the purpose of drawing: what [`Draws`] is keyed by, less the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey {
    /// The user's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The row's ordinal in the dataset, over all files, before any filter.
    pub ordinal: u64,
    /// The index among the rows that one source row was multiplied into; 0 otherwise.
    pub index: u32,
}

impl RowKey {
    /// The draws of the operator at `operator` in its chain.
    pub fn draws(self, operator: u32) -> Draws {
        Draws::new(self, operator)
    }
}

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// Philox 4x32-10: one block of four numbers.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(M0) * u64::from(counter[0]);
        let p1 = u64::from(M1) * u64::from(counter[2]);
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(W0), key[1].wrapping_add(W1)];
    }
    counter
}

/// Mixes words into one 64-bit key (the finaliser of SplitMix64, applied per word).
pub fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x6A09_E667_F3BC_C908, |h, w| {
        let mut z = (h ^ w).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// A stream of draws for one (row, operator), or for one purpose of the schedule.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Draws {
    /// The draws of one operator for one row.
    pub fn new(row: RowKey, operator: u32) -> Self {
        let key = mix(&[row.seed, row.epoch, u64::from(row.index) << 32 | u64::from(operator)]);
        Self::from_parts(key, row.ordinal)
    }

    /// The draws of a named purpose, e.g. the order of blocks in an epoch.
    pub fn for_purpose(purpose: u64, seed: u64, epoch: u64, item: u64) -> Self {
        Self::from_parts(mix(&[purpose, seed, epoch]), item)
    }

    fn from_parts(key: u64, item: u64) -> Self {
        Self {
            key: [key as u32, (key >> 32) as u32],
            counter: [0, 0, item as u32, (item >> 32) as u32],
            block: [0; 4],
            used: 4,
        }
    }

    /// 32 uniform bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox4x32(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            if self.counter[0] == 0 {
                self.counter[1] = self.counter[1].wrapping_add(1);
            }
            self.used = 0;
        }
        let v = self.block[self.used];
        self.used += 1;
        v
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// Uniform in [0, 1) with 53 bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in [low, high).
    pub fn uniform_in(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Uniform in 0..n, without bias (D. Lemire, "Fast random integer generation in an interval",
    /// 2019). `n` must not be 0; 0 gives 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        if n <= u64::from(u32::MAX) {
            let n = n as u32;
            if n == 0 {
                return 0;
            }
            let mut m = u64::from(self.next_u32()) * u64::from(n);
            if (m as u32) < n {
                let t = n.wrapping_neg() % n;
                while (m as u32) < t {
                    m = u64::from(self.next_u32()) * u64::from(n);
                }
            }
            return m >> 32;
        }
        let mut m = u128::from(self.next_u64()) * u128::from(n);
        if (m as u64) < n {
            let t = n.wrapping_neg() % n;
            while (m as u64) < t {
                m = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (m >> 64) as u64
    }

    /// Whether an event of probability `p` happens.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }

    /// Shuffles in place (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers from the Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
        );
        assert_eq!(
            philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn draws_depend_on_every_part_of_the_key() {
        let base = RowKey { seed: 7, epoch: 0, ordinal: 5, index: 0 };
        let first = |row: RowKey, op| row.draws(op).next_u64();
        let a = first(base, 0);
        assert_eq!(a, first(base, 0));
        assert_ne!(a, first(base, 1));
        assert_ne!(a, first(RowKey { seed: 8, ..base }, 0));
        assert_ne!(a, first(RowKey { epoch: 1, ..base }, 0));
        assert_ne!(a, first(RowKey { ordinal: 6, ..base }, 0));
        assert_ne!(a, first(RowKey { index: 1, ..base }, 0));
    }

    #[test]
    fn below_is_within_and_covers() {
        let mut d = Draws::for_purpose(1, 2, 3, 4);
        let mut seen = [0u32; 7];
        for _ in 0..7000 {
            seen[d.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
    }
}
