//! A hash that is the same everywhere and always, for telling plans apart.

use std::fmt;
use std::str::FromStr;

use forebay_core::Error;

/// The hash of a plan, see [`crate::Plan::hash`]. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanHash(pub u128);

impl PlanHash {
    /// 128-bit FNV-1a. Plans are told apart from honest mistakes, not from forgeries; the algorithm
    /// is three lines that any language can repeat, and 128 bits make a chance agreement absurd.
    pub fn of(bytes: &[u8]) -> Self {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        Self(bytes.iter().fold(OFFSET, |h, b| (h ^ u128::from(*b)).wrapping_mul(PRIME)))
    }
}

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for PlanHash {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let right = s.len() == 32 && s.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(s, 16) {
            Ok(n) if right => Ok(Self(n)),
            _ => Err(Error::invalid("a plan hash is 32 hexadecimal digits")
                .with_hint("copy it from a checkpoint or from explain")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn published_vectors_of_fnv_1a() {
        assert_eq!(PlanHash::of(b"").to_string(), "6c62272e07bb014262b821756295c58d");
        assert_eq!(PlanHash::of(b"a").to_string(), "d228cb696f1a8caf78912b704e4a8964");
        assert_eq!(PlanHash::of(b"foobar").to_string(), "343e1662793c64bf6f0d3597ba446f18");
    }

    #[test]
    fn text_form() {
        let h = PlanHash::of(b"x");
        assert_eq!(h.to_string().parse::<PlanHash>().unwrap(), h);
        assert!("+f".repeat(16).parse::<PlanHash>().is_err());
        assert!("".parse::<PlanHash>().is_err());
    }
}
