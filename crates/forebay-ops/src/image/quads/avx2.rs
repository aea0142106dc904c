//! The sums in AVX2.

use std::arch::x86_64::*;

use super::{COARSE_HALF, Line, PIXELS};

/// A processor with AVX2: there is no other way to one of these than [`Unit::here`].
#[derive(Clone, Copy)]
pub(super) struct Unit(());

impl Unit {
    pub fn here() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl super::Unit for Unit {
    #[inline(always)]
    fn sum(self, terms: impl Iterator<Item = ([Line; 2], i32)>, precision: u32) -> Line {
        // SAFETY: this processor has AVX2, as `self` proves.
        unsafe { sum(terms, precision) }
    }

    #[inline(always)]
    fn turn(self, lines: &[Line; PIXELS]) -> [Line; PIXELS] {
        // SAFETY: this processor has AVX2, as `self` proves.
        unsafe { turn(lines) }
    }

    #[inline(always)]
    fn fetch(self, bytes: &[u8]) {
        for line in bytes.chunks(64) {
            // SAFETY: every x86-64 processor has SSE, and a prefetch changes nothing that is seen.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
        }
    }
}

/// The same with [`Sums::Coarse`](super::Sums::Coarse).
#[derive(Clone, Copy)]
pub(super) struct Coarse(pub Unit);

impl super::Unit for Coarse {
    #[inline(always)]
    fn sum(self, terms: impl Iterator<Item = ([Line; 2], i32)>, _: u32) -> Line {
        // SAFETY: this processor has AVX2, as the unit proves.
        unsafe { coarse_sum(terms) }
    }

    #[inline(always)]
    fn turn(self, lines: &[Line; PIXELS]) -> [Line; PIXELS] {
        self.0.turn(lines)
    }

    #[inline(always)]
    fn fetch(self, bytes: &[u8]) {
        self.0.fetch(bytes);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(line: &Line) -> __m256i {
    // SAFETY: a line is 32 bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(line.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(v: __m256i) -> Line {
    let mut line = [0; 32];
    // SAFETY: a line is 32 bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(line.as_mut_ptr().cast(), v) };
    line
}

/// The bytes of both lines side by side are pairs of 16 bits, which one instruction multiplies by
/// both weights and adds.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(terms: impl Iterator<Item = ([Line; 2], i32)>, precision: u32) -> Line {
    let zero = _mm256_setzero_si256();
    let mut sums = [_mm256_set1_epi32(1 << (precision - 1)); 4];
    for ([a, b], pair) in terms {
        let (a, b, weights) = (load(&a), load(&b), _mm256_set1_epi32(pair));
        let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
        let pairs = [
            _mm256_unpacklo_epi8(low, zero),
            _mm256_unpackhi_epi8(low, zero),
            _mm256_unpacklo_epi8(high, zero),
            _mm256_unpackhi_epi8(high, zero),
        ];
        for (sum, pairs) in sums.iter_mut().zip(pairs) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, weights));
        }
    }
    let bits = _mm_cvtsi32_si128(precision.cast_signed());
    let [s0, s1, s2, s3] = sums;
    let (s0, s1) = (_mm256_sra_epi32(s0, bits), _mm256_sra_epi32(s1, bits));
    let (s2, s3) = (_mm256_sra_epi32(s2, bits), _mm256_sra_epi32(s3, bits));
    // Unpacking and packing both stay within halves of 16 bytes, so the order is the old one.
    store(_mm256_packus_epi16(_mm256_packs_epi32(s0, s1), _mm256_packs_epi32(s2, s3)))
}

/// One instruction multiplies bytes by both weights and adds, where the weights have no sign and
/// the others have one: pixels less 128.
#[inline]
#[target_feature(enable = "avx2")]
fn coarse_sum(terms: impl Iterator<Item = ([Line; 2], i32)>) -> Line {
    let middle = _mm256_set1_epi8(-128);
    let mut sums = [_mm256_set1_epi16(COARSE_HALF); 2];
    for ([a, b], pair) in terms {
        let (a, b, weights) = (load(&a), load(&b), _mm256_set1_epi32(pair));
        for (sum, pairs) in
            sums.iter_mut().zip([_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)])
        {
            let pairs = _mm256_xor_si256(pairs, middle);
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(weights, pairs));
        }
    }
    let [low, high] = sums.map(|sum| _mm256_srai_epi16::<8>(sum));
    store(_mm256_xor_si256(_mm256_packs_epi16(low, high), middle))
}

#[inline]
#[target_feature(enable = "avx2")]
fn turn(lines: &[Line; PIXELS]) -> [Line; PIXELS] {
    let [a, b, c, d, e, f, g, h] = lines;
    let (a, b, c, d) = (load(a), load(b), load(c), load(d));
    let (e, f, g, h) = (load(e), load(f), load(g), load(h));
    let pair = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let four = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let ((ab0, ab1), (cd0, cd1)) = (pair(a, b), pair(c, d));
    let ((ef0, ef1), (gh0, gh1)) = (pair(e, f), pair(g, h));
    let ((ad0, ad1), (ad2, ad3)) = (four(ab0, cd0), four(ab1, cd1));
    let ((eh0, eh1), (eh2, eh3)) = (four(ef0, gh0), four(ef1, gh1));
    let low = |a, e| store(_mm256_permute2x128_si256::<0x20>(a, e));
    let high = |a, e| store(_mm256_permute2x128_si256::<0x31>(a, e));
    [
        low(ad0, eh0),
        low(ad1, eh1),
        low(ad2, eh2),
        low(ad3, eh3),
        high(ad0, eh0),
        high(ad1, eh1),
        high(ad2, eh2),
        high(ad3, eh3),
    ]
}
