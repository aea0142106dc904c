//! The weighted mean of two rows, and labels of shares.
//!
//! Floats are rounded as torch rounds `partner.mul_(1 - lambda).add_(own.mul(lambda))`: after each of
//! the three operations, to the element type; weights are float32, or float64 for float64. uint8,
//! for which torch has no such operation, is rounded to the nearest whole number.

use forebay_core::{DType, Error, Result};

#[cfg(target_arch = "x86_64")]
use super::f16c;
use super::halves::{BFloat16, Float16, Half};

/// The weighted mean of rows of one element type.
#[derive(Clone, Copy, Debug)]
pub struct Blend {
    dtype: DType,
    own: f64,
    other: f64,
}

impl Blend {
    /// The weight of a row is `lambda`, that of its partner the rest.
    ///
    /// # Errors
    /// An element type that is not blended.
    pub fn new(dtype: DType, lambda: f64) -> Result<Self> {
        match dtype {
            DType::UInt8 | DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64 => {
                Ok(Self { dtype, own: lambda, other: 1.0 - lambda })
            }
            _ => Err(Error::internal(format!("{dtype} is not blended"))),
        }
    }

    /// Blends bytes of a row with those of its partner, in place. They are whole elements.
    pub fn apply(&self, own: &mut [u8], other: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if self.dtype == DType::Float16 && f16c::is_there() {
            // SAFETY: the function needs AVX and F16C, which this processor has; it is safe otherwise.
            let done = unsafe { f16c::blend(own, other, [self.own as f32, self.other as f32]) };
            if let (Some(own), Some(other)) = (own.get_mut(done..), other.get(done..)) {
                self.apply_any(own, other);
            }
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the function needs AVX2, which this processor has; it is safe code otherwise.
            unsafe { self.apply_avx2(own, other) };
            return;
        }
        self.apply_any(own, other);
    }

    /// The same code, for wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn apply_avx2(&self, own: &mut [u8], other: &[u8]) {
        self.apply_any(own, other);
    }

    #[inline(always)]
    fn apply_any(&self, own: &mut [u8], other: &[u8]) {
        let (w, v) = (self.own as f32, self.other as f32);
        match self.dtype {
            DType::UInt8 => {
                // Sixteen bits of weight: off by less than 1/256 of a step before it is rounded.
                let w = (self.own * 65536.0).round() as u32;
                let v = 65536 - w;
                each(own, other, |[a]: [u8; 1], [b]| {
                    [((u32::from(a) * w + u32::from(b) * v + 32768) >> 16) as u8]
                });
            }
            DType::Float16 => each(own, other, |a, b| half::<Float16>(a, b, [w, v])),
            DType::BFloat16 => each(own, other, |a, b| half::<BFloat16>(a, b, [w, v])),
            DType::Float64 => each(own, other, |a, b| {
                let (a, b) = (f64::from_ne_bytes(a), f64::from_ne_bytes(b));
                (b * self.other + a * self.own).to_ne_bytes()
            }),
            _ => each(own, other, |a, b| {
                let (a, b) = (f32::from_ne_bytes(a), f32::from_ne_bytes(b));
                (b * v + a * w).to_ne_bytes()
            }),
        }
    }
}

/// Applies `f` to each element and its partner.
#[inline(always)]
fn each<const N: usize>(own: &mut [u8], other: &[u8], f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let others = other.as_chunks::<N>().0;
    for (a, b) in own.as_chunks_mut::<N>().0.iter_mut().zip(others) {
        *a = f(*a, *b);
    }
}

/// The mean of two halves: rounded to the element type between two operations, as torch does.
#[inline(always)]
fn half<H: Half>(own: [u8; 2], other: [u8; 2], [w, v]: [f32; 2]) -> [u8; 2] {
    let weighted = |bytes: [u8; 2], weight: f32| {
        H::widen(H::narrow(H::widen(u16::from_ne_bytes(bytes)) * weight))
    };
    H::narrow(weighted(other, v) + weighted(own, w)).to_ne_bytes()
}

/// Writes labels as float32 shares of classes: `lambda` for a row's own class, the rest for that of
/// its partner. `out` has `num_classes` elements for each of the `classes`, which are below that.
pub fn one_hot(out: &mut [u8], classes: &[usize], num_classes: usize, lambda: f64) {
    out.fill(0);
    let (own, other) = (lambda as f32, (1.0 - lambda) as f32);
    let width = num_classes * size_of::<f32>();
    let mut before = classes.last();
    for (row, class) in out.chunks_exact_mut(width.max(1)).zip(classes) {
        let shares = row.as_chunks_mut::<4>().0;
        for (class, share) in before.map(|b| (b, other)).into_iter().chain([(class, own)]) {
            if let Some(slot) = shares.get_mut(*class) {
                *slot = (f32::from_ne_bytes(*slot) + share).to_ne_bytes();
            }
        }
        before = Some(class);
    }
}
