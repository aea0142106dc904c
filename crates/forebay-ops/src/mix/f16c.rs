//! The mean of float16 with the conversions that x86-64 has for it.
//!
//! They round as `halves` does, and so give the same bits.

use std::arch::x86_64::{
    __m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm256_add_ps, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_mul_ps, _mm256_set1_ps,
};
use std::mem::transmute;

/// Whether this processor has them.
pub fn is_there() -> bool {
    is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")
}

/// Blends as many values as fill whole registers, and says how many bytes that were.
#[target_feature(enable = "avx,f16c")]
pub fn blend(own: &mut [u8], other: &[u8], [w, v]: [f32; 2]) -> usize {
    const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT;
    let (w, v) = (_mm256_set1_ps(w), _mm256_set1_ps(v));
    let weighted = |bytes: [u8; 16], weight: __m256| {
        // SAFETY: Sixteen bytes are a register's worth, and any of them are values of it.
        let halves = unsafe { transmute::<[u8; 16], __m128i>(bytes) };
        let product = _mm256_mul_ps(_mm256_cvtph_ps(halves), weight);
        _mm256_cvtph_ps(_mm256_cvtps_ph::<ROUND>(product))
    };
    let mut done = 0;
    for (a, b) in own.as_chunks_mut::<16>().0.iter_mut().zip(other.as_chunks::<16>().0) {
        let sum = _mm256_add_ps(weighted(*b, v), weighted(*a, w));
        // SAFETY: As above, the other way round.
        *a = unsafe { transmute::<__m128i, [u8; 16]>(_mm256_cvtps_ph::<ROUND>(sum)) };
        done += 16;
    }
    done
}
