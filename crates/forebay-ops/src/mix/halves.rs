//! Half precision without branches, so that the compiler has it in vectors of any width.
//!
//! The results are those of IEEE 754 to the bit, rounded to the nearest and ties to even: what `half`
//! and torch have. `half` itself converts bfloat16 one by one.

/// A type of 16 bits that is reckoned with as float32.
pub trait Half {
    /// The value.
    fn widen(bits: u16) -> f32;

    /// The nearest value.
    fn narrow(value: f32) -> u16;
}

/// IEEE 754's binary16.
pub struct Float16;

/// The upper half of a float32.
pub struct BFloat16;

/// Float32 has 13 more bits of mantissa than float16, and its exponents are 112 higher.
const SHIFT: u32 = 13;
const HIGHER: u32 = 112 << 23;

/// One of two numbers, by a mask: where there is an `if`, the compiler makes a branch of it.
#[inline(always)]
fn choose(first: bool, a: u32, b: u32) -> u32 {
    let mask = u32::from(first).wrapping_neg();
    (a & mask) | (b & !mask)
}

impl Half for Float16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let sign = u32::from(bits & 0x8000) << 16;
        let size = u32::from(bits & 0x7fff);
        // Infinity and NaN have the greatest exponent, there and here.
        let top = choose(size >= 0x7c00, HIGHER, 0);
        let normal = (size << SHIFT) + HIGHER + top;
        // Below the least exponent it is a number of steps of 2^-24.
        let subnormal = (size as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
        f32::from_bits(sign | choose(size < 0x400, subnormal, normal))
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let size = bits & 0x7fff_ffff;
        // Half a step less one, and one for odd numbers: ties go to even.
        let rounded = size.wrapping_add(0xfff + (size >> SHIFT & 1));
        let normal = rounded.wrapping_sub(HIGHER) >> SHIFT;
        // A step of one half is 2^-24, that of subnormal numbers: the addition rounds to it.
        let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = choose(size < HIGHER + (1 << 23), subnormal, normal);
        // From 65536 on it is infinity; NaN keeps what fits of it, and is quiet.
        let nan = 0x7e00 | (size >> SHIFT & 0x3ff);
        let large = choose(size > 0x7f80_0000, nan, 0x7c00);
        (sign | choose(size >= 0x4780_0000, large, finite)) as u16
    }
}

impl Half for BFloat16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let nan = (bits >> 16) | 0x40;
        choose(bits & 0x7fff_ffff > 0x7f80_0000, nan, rounded) as u16
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_is_what_it_is() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (Float16::widen(bits), f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:x}"
            );
            let (ours, theirs) = (BFloat16::widen(bits), bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:x}"
            );
        }
    }

    #[test]
    fn floats_are_rounded_to_the_nearest_half() {
        // All halves, what lies halfway between them, and a bit beside that; and a walk over the rest.
        let halves = (0..=u16::MAX).flat_map(|b| [Float16::widen(b), BFloat16::widen(b)]);
        let around = halves.flat_map(|value| {
            [0, 0xfff, 0x1000, 0x1001, 0x2fff, 0x7fff, 0x8000, 0x8001]
                .map(|more| f32::from_bits(value.to_bits().wrapping_add(more)))
        });
        let walk = (0..1u32 << 20).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9)));
        for value in around.chain(walk) {
            let (ours, theirs) = (Float16::narrow(value), f16::from_f32(value));
            let same = ours == theirs.to_bits() || f16::from_bits(ours).is_nan() && theirs.is_nan();
            assert!(same, "{value:e}: {ours:x}, {:x}", theirs.to_bits());
            let (ours, theirs) = (BFloat16::narrow(value), bf16::from_f32(value));
            let same =
                ours == theirs.to_bits() || bf16::from_bits(ours).is_nan() && theirs.is_nan();
            assert!(same, "{value:e}: {ours:x}, {:x}", theirs.to_bits());
        }
    }
}
