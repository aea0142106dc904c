//! A permutation of any number of rows that takes no memory: any entry can be asked for by itself.

use forebay_core::Draws;

/// Rounds of the network. Four make it pseudorandom where the round functions are (Luby and Rackoff);
/// the round functions here are fast hashes, so there are twice as many.
const ROUNDS: usize = 8;

/// A keyed permutation of 0..n.
///
/// It is a generalised Feistel network over the smallest grid of a × b cells that holds n (Black and
/// Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, method 3), with cycle walking for
/// the few cells beyond n: a and b are next to √n, so that these are at most some √n of n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bijection {
    n: u64,
    a: u64,
    b: u64,
    keys: [u64; ROUNDS],
}

impl Bijection {
    /// The permutation of `n` rows that a stream of draws gives.
    pub fn new(n: u64, draws: &mut Draws) -> Self {
        let a = n.isqrt().max(1);
        let b = n.div_ceil(a).max(1);
        let mut keys = [0; ROUNDS];
        for key in &mut keys {
            *key = draws.next_u64();
        }
        Self { n, a, b, keys }
    }

    /// The row that comes at a position; `position` is below n.
    pub fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.n, "position {position} of {}", self.n);
        let mut cell = position;
        // Every walk comes back into 0..n, for it began there and each step can be undone.
        loop {
            cell = self.step(cell);
            if cell < self.n {
                return cell;
            }
        }
    }

    fn step(&self, cell: u64) -> u64 {
        let (mut left, mut right) = (cell % self.a, cell / self.a);
        for pair in self.keys.as_chunks::<2>().0 {
            left = add(left, below(mix(right ^ pair[0]), self.a), self.a);
            right = add(right, below(mix(left ^ pair[1]), self.b), self.b);
        }
        right * self.a + left
    }
}

/// The finaliser of MurmurHash3 in David Stafford's variant 13, as in SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash as a number below m: Lemire's multiplication in place of a division.
fn below(hash: u64, m: u64) -> u64 {
    ((u128::from(hash) * u128::from(m)) >> 64) as u64
}

/// Addition modulo m of two numbers below it.
fn add(x: u64, y: u64, m: u64) -> u64 {
    let sum = x + y;
    if sum >= m { sum - m } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(n: u64, seed: u64) -> Bijection {
        Bijection::new(n, &mut Draws::for_purpose(1, seed, 0, 0))
    }

    #[test]
    fn every_row_once() {
        for n in (1..300).chain([1_000, 4_095, 4_096, 4_097, 99_991, 131_072]) {
            for seed in 0..3 {
                let b = of(n, seed);
                let mut seen = vec![false; n as usize];
                for p in 0..n {
                    let row = b.at(p) as usize;
                    assert!(!std::mem::replace(&mut seen[row], true), "n {n} row {row}");
                }
            }
        }
    }

    #[test]
    fn huge_ones_are_as_cheap() {
        let b = of(u64::MAX >> 2, 5);
        assert_ne!(b.at(0), b.at(1));
        assert!(b.at(123_456_789) < u64::MAX >> 2);
    }

    #[test]
    fn every_row_comes_at_every_position_as_often() {
        // Chi-square over (position, row) of 10 rows and 20,000 keys: 81 degrees of freedom, whose
        // 99.99th percentile is 137.
        let (n, keys) = (10u64, 20_000u64);
        let mut counts = vec![0u64; (n * n) as usize];
        for seed in 0..keys {
            let b = of(n, seed);
            for p in 0..n {
                counts[(p * n + b.at(p)) as usize] += 1;
            }
        }
        let expected = (keys / n) as f64;
        let chi: f64 = counts.iter().map(|c| (*c as f64 - expected).powi(2) / expected).sum();
        assert!(chi < 137.0, "{chi}");
    }

    #[test]
    fn neighbours_do_not_stay_together() {
        let n = 100_000;
        let b = of(n, 9);
        let near = (1..n).filter(|p| b.at(*p).abs_diff(b.at(p - 1)) < 100).count();
        // 200 of them by chance.
        assert!((130..280).contains(&near), "{near}");
    }
}
