//! The weighted mean of two rows, and labels of shares.
//!
//! Floats are rounded as torch rounds `partner.mul_(1 - lambda).add_(own.mul(lambda))`: after each of
//! the three operations, to the element type; weights are float32, or float64 for float64. uint8,
//! for which torch has no such operation, is rounded to the nearest whole number.

use forebay_core::{DType, Error, Result};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

/// Elements of half precision that are converted at once: two registers' worth of every vector unit,
/// several times over.
const TILE: usize = 64;

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
        let (w, v) = (self.own as f32, self.other as f32);
        match self.dtype {
            DType::UInt8 => {
                // Sixteen bits of weight: off by less than 1/256 of a step before it is rounded.
                let w = (self.own * 65536.0).round() as u32;
                let v = 65536 - w;
                for (a, b) in own.iter_mut().zip(other) {
                    *a = ((u32::from(*a) * w + u32::from(*b) * v + 32768) >> 16) as u8;
                }
            }
            DType::Float16 => halves(own, other, [w, v], f16::to_bits, f16::from_bits),
            DType::BFloat16 => halves(own, other, [w, v], bf16::to_bits, bf16::from_bits),
            DType::Float64 => {
                let others = other.as_chunks::<8>().0;
                for (a, b) in own.as_chunks_mut::<8>().0.iter_mut().zip(others) {
                    let (x, y) = (f64::from_ne_bytes(*a), f64::from_ne_bytes(*b));
                    *a = (y * self.other + x * self.own).to_ne_bytes();
                }
            }
            _ => {
                let others = other.as_chunks::<4>().0;
                for (a, b) in own.as_chunks_mut::<4>().0.iter_mut().zip(others) {
                    let (x, y) = (f32::from_ne_bytes(*a), f32::from_ne_bytes(*b));
                    *a = (y * v + x * w).to_ne_bytes();
                }
            }
        }
    }
}

/// Half precision, a tile at a time: the conversions of a slice use what the processor has for them.
fn halves<H: Copy + Default>(
    own: &mut [u8],
    other: &[u8],
    [w, v]: [f32; 2],
    bits: impl Fn(H) -> u16,
    of_bits: impl Fn(u16) -> H,
) where
    [H]: half::slice::HalfFloatSliceExt,
{
    let size = 2 * TILE;
    for (own, other) in own.chunks_mut(size).zip(other.chunks(size)) {
        let n = own.len() / 2;
        let weighted = |bytes: &[u8], weight: f32| -> [f32; TILE] {
            let mut half = [H::default(); TILE];
            let mut wide = [0f32; TILE];
            for (h, b) in half.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *h = of_bits(u16::from_ne_bytes(*b));
            }
            half.convert_to_f32_slice(&mut wide);
            wide.iter_mut().for_each(|x| *x *= weight);
            // Rounded to the element type between two operations, as torch does.
            half.convert_from_f32_slice(&wide);
            half.convert_to_f32_slice(&mut wide);
            wide
        };
        let mut sum = weighted(other, v);
        let mine = weighted(own, w);
        sum.iter_mut().zip(mine).for_each(|(a, b)| *a += b);
        let mut half = [H::default(); TILE];
        half.convert_from_f32_slice(&sum);
        for (b, h) in own.as_chunks_mut::<2>().0.iter_mut().zip(&half[..n]) {
            *b = bits(*h).to_ne_bytes();
        }
    }
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
