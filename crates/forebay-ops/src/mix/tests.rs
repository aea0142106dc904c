#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use forebay_core::RowKey;
use half::{bf16, f16};

use super::*;

fn draws(n: u64) -> Draws {
    RowKey { seed: 3, epoch: 0, ordinal: n, index: 0 }.draws(0)
}

/// Rows one after the other in one piece of memory.
struct Rows {
    bytes: Vec<u8>,
    width: usize,
}

impl Strips for Rows {
    fn rows(&self) -> usize {
        self.bytes.len() / self.width
    }

    fn row(&mut self, row: usize) -> &mut [u8] {
        &mut self.bytes[row * self.width..(row + 1) * self.width]
    }

    fn pair(&mut self, row: usize) -> (&mut [u8], &[u8]) {
        let (before, own) = self.bytes.split_at_mut(row * self.width);
        (&mut own[..self.width], &before[(row - 1) * self.width..])
    }
}

#[test]
fn every_row_meets_the_one_before_it() {
    for rows in [0usize, 1, 2, 7] {
        // Wider than a block, and no multiple of it.
        let width = 2 * BLOCK + 301;
        let bytes: Vec<u8> = (0..rows * width).map(|i| (i * 7 + i / width) as u8).collect();
        let spans = [3..5, 100..BLOCK + 900, BLOCK + 901..2 * BLOCK + 301];
        let mut got = Rows { bytes: bytes.clone(), width };
        roll(
            &mut got,
            spans.clone().into_iter(),
            || Ok(()),
            |own, other| {
                for (a, b) in own.iter_mut().zip(other) {
                    *a = a.wrapping_mul(3).wrapping_add(*b);
                }
            },
        )
        .unwrap();
        for i in 0..bytes.len() {
            let (row, at) = (i / width, i % width);
            let partner = (row + rows - 1) % rows;
            let want = match spans.iter().any(|s| s.contains(&at)) {
                true => bytes[i].wrapping_mul(3).wrapping_add(bytes[partner * width + at]),
                false => bytes[i],
            };
            assert_eq!(got.bytes[i], want, "{rows} rows, row {row}, byte {at}");
        }
    }
}

#[test]
fn work_that_is_stopped_says_so() {
    let mut rows = Rows { bytes: vec![0; 30], width: 10 };
    let stopped = || Err(Error::internal("stop"));
    assert!(roll(&mut rows, std::iter::once(0..10), stopped, |_, _| ()).is_err());
}

#[test]
fn beta_has_its_moments() {
    // Mean 1/2, variance 1 / (4 (2a + 1)), fourth central moment 3 / (16 (2a + 1) (2a + 3)).
    for a in [1e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 8.0, 1e4] {
        let n = 40_000;
        let numbers: Vec<f64> = (0..n).map(|i| beta::symmetric(&mut draws(i), a)).collect();
        assert!(numbers.iter().all(|x| (0.0..=1.0).contains(x)), "alpha {a}");
        let mean = |f: &dyn Fn(f64) -> f64| numbers.iter().map(|x| f(*x)).sum::<f64>() / n as f64;
        let (variance, fourth) =
            (0.25 / (2.0 * a + 1.0), 3.0 / (16.0 * (2.0 * a + 1.0) * (2.0 * a + 3.0)));
        // Five standard errors.
        let near = |got: f64, want: f64, variance: f64| {
            assert!(
                (got - want).abs() < 5.0 * (variance / n as f64).sqrt() + 1e-12,
                "alpha {a}: {got}, {want}"
            );
        };
        near(mean(&|x| x), 0.5, variance);
        near(mean(&|x| (x - 0.5).powi(2)), variance, (fourth - variance * variance).max(0.0));
    }
}

#[test]
fn beta_of_one_is_uniform_and_that_of_a_half_is_the_arcsine() {
    let n = 20_000u64;
    for (alpha, cdf) in [
        (1.0, (|x| x) as fn(f64) -> f64),
        (0.5, |x: f64| x.sqrt().asin() * 2.0 / std::f64::consts::PI),
        (2.0, |x| x * x * (3.0 - 2.0 * x)),
    ] {
        let mut numbers: Vec<f64> = (0..n).map(|i| beta::symmetric(&mut draws(i), alpha)).collect();
        numbers.sort_by(f64::total_cmp);
        let far = numbers
            .iter()
            .enumerate()
            .map(|(i, x)| (cdf(*x) - (i as f64 + 0.5) / n as f64).abs())
            .fold(0.0, f64::max);
        // Kolmogorov's test, at one in a thousand.
        assert!(far < 1.95 / (n as f64).sqrt(), "alpha {alpha}: {far}");
    }
}

#[test]
fn extreme_parameters_give_numbers() {
    for alpha in [f64::MIN_POSITIVE, 1e-300, 1e300, f64::MAX] {
        for i in 0..100 {
            let x = beta::symmetric(&mut draws(i), alpha);
            assert!((0.0..=1.0).contains(&x), "{alpha}: {x}");
        }
    }
}

#[test]
fn the_rectangle_has_its_area_unless_the_border_cuts_it() {
    let size = (40, 60);
    let cut = Cut::around((30, 20), 0.75, size);
    assert_eq!(cut, Cut { top: 10, left: 15, bottom: 30, right: 45 });
    assert_eq!(Cut::around((2, 39), 0.75, size), Cut { top: 29, left: 0, bottom: 40, right: 17 });
    assert_eq!(Cut::around((5, 5), 1.0, size).area(), 0);
    assert_eq!(Cut::around((30, 20), 0.0, size).area(), 40 * 60);
    let mixer = Mixer::new(&MixImages::new("i", "l", vec![MixOp::cut_mix(2)]));
    for n in 0..1000 {
        let drawn = mixer.draw(draws(n), size).unwrap();
        let cut = drawn.cut.unwrap();
        assert!(
            cut.top <= cut.bottom && cut.bottom <= 40 && cut.left <= cut.right && cut.right <= 60
        );
        assert!((drawn.lambda - (1.0 - cut.area() as f64 / 2400.0)).abs() < 1e-12);
    }
}

#[test]
fn the_bytes_of_a_rectangle() {
    let cut = Cut { top: 1, left: 2, bottom: 3, right: 4 };
    let chw: Vec<_> = cut.spans([2, 4, 5], Layout::Chw, DType::Float32).collect();
    assert_eq!(chw, [28..36, 48..56, 108..116, 128..136]);
    let hwc: Vec<_> = cut.spans([4, 5, 3], Layout::Hwc, DType::UInt8).collect();
    assert_eq!(hwc, [21..27, 36..42]);
    let none = Cut { right: 2, ..cut };
    assert_eq!(none.spans([2, 4, 5], Layout::Chw, DType::UInt8).count(), 0);
}

#[test]
fn operators_are_drawn_by_their_weights() {
    let ops = vec![MixOp::mix_up(2), MixOp::cut_mix(2)];
    for (p, want) in [
        (None, 0.5),
        (Some(vec![3.0, 1.0]), 0.25),
        (Some(vec![0.0, 2.0]), 1.0),
        (Some(vec![2.0, 0.0]), 0.0),
    ] {
        let mixer = Mixer::new(&MixImages { p, ..MixImages::new("i", "l", ops.clone()) });
        let cuts =
            (0..4000).filter(|n| mixer.draw(draws(*n), (9, 9)).unwrap().cut.is_some()).count();
        assert!((cuts as f64 / 4000.0 - want).abs() < 0.035, "{cuts} of 4000, {want}");
    }
}

#[test]
fn means_are_rounded_as_promised() {
    let lambda = 0.3;
    let (w, v) = (lambda as f32, (1.0 - lambda) as f32);
    let values: Vec<f32> = (0..333).map(|i| (i as f32 - 100.0) * 0.0137).collect();
    let partner: Vec<f32> = values.iter().rev().copied().collect();
    let check = |dtype: DType,
                 size: usize,
                 bytes: &dyn Fn(f32) -> Vec<u8>,
                 mean: &dyn Fn(f32, f32) -> Vec<u8>| {
        let mut own: Vec<u8> = values.iter().flat_map(|x| bytes(*x)).collect();
        let other: Vec<u8> = partner.iter().flat_map(|x| bytes(*x)).collect();
        Blend::new(dtype, lambda).unwrap().apply(&mut own, &other);
        let want: Vec<u8> = values.iter().zip(&partner).flat_map(|(a, b)| mean(*a, *b)).collect();
        assert_eq!(own.len(), values.len() * size);
        assert_eq!(own, want, "{dtype}");
    };
    check(DType::Float32, 4, &|x| x.to_ne_bytes().into(), &|a, b| {
        (b * v + a * w).to_ne_bytes().into()
    });
    check(DType::Float64, 8, &|x| f64::from(x).to_ne_bytes().into(), &|a, b| {
        (f64::from(b) * (1.0 - lambda) + f64::from(a) * lambda).to_ne_bytes().into()
    });
    let half = |x: f32| f16::from_f32(x);
    check(DType::Float16, 2, &|x| half(x).to_ne_bytes().into(), &|a, b| {
        let (a, b) = (half(half(a).to_f32() * w), half(half(b).to_f32() * v));
        half(a.to_f32() + b.to_f32()).to_ne_bytes().into()
    });
    let brain = |x: f32| bf16::from_f32(x);
    check(DType::BFloat16, 2, &|x| brain(x).to_ne_bytes().into(), &|a, b| {
        let (a, b) = (brain(brain(a).to_f32() * w), brain(brain(b).to_f32() * v));
        brain(a.to_f32() + b.to_f32()).to_ne_bytes().into()
    });
    assert!(Blend::new(DType::Int32, lambda).is_err());
}

#[test]
fn float16_is_the_same_bits_with_and_without_the_processors_help() {
    // All values but NaN, each with many partners; a length that fills no register at the end.
    let finite = |h: &u16| h & 0x7c00 != 0x7c00;
    let values: Vec<u16> = (0..=u16::MAX).filter(finite).chain([1, 2, 3]).collect();
    for (lambda, turn) in [(0.3, 1), (0.999, 777), (1e-5, 30_000), (1.0, 50_001), (0.0, 5)] {
        let mut partner = values.clone();
        partner.rotate_left(turn);
        let bytes = |v: &[u16]| v.iter().flat_map(|h| h.to_ne_bytes()).collect::<Vec<u8>>();
        let (mut own, other) = (bytes(&values), bytes(&partner));
        Blend::new(DType::Float16, lambda).unwrap().apply(&mut own, &other);
        let (w, v) = (lambda as f32, (1.0 - lambda) as f32);
        for ((a, b), got) in values.iter().zip(&partner).zip(own.as_chunks::<2>().0) {
            let scaled = |h: u16, w: f32| f16::from_f32(f16::from_bits(h).to_f32() * w).to_f32();
            let want = f16::from_f32(scaled(*b, v) + scaled(*a, w));
            assert_eq!(u16::from_ne_bytes(*got), want.to_bits(), "{a:x}, {b:x}, {lambda}");
        }
    }
}

#[test]
fn bytes_are_rounded_to_the_nearest() {
    for lambda in [0.0, 1.0, 0.5, 0.123_456, 0.999_99] {
        let blend = Blend::new(DType::UInt8, lambda).unwrap();
        for a in 0..=255u8 {
            let mut own = [a; 256];
            let other: [u8; 256] = std::array::from_fn(|b| b as u8);
            blend.apply(&mut own, &other);
            for (b, got) in own.iter().enumerate() {
                let exact = f64::from(a) * lambda + b as f64 * (1.0 - lambda);
                assert!((f64::from(*got) - exact).abs() <= 0.502, "{a}, {b}, {lambda}: {got}");
            }
        }
    }
}

#[test]
fn labels_are_shares_that_sum_to_one() {
    let mut out = vec![9u8; 3 * 4 * 4];
    one_hot(&mut out, &[2, 0, 0], 4, 0.75);
    let shares: Vec<f32> = out.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
    assert_eq!(shares, [0.25, 0.0, 0.75, 0.0, 0.75, 0.0, 0.25, 0.0, 1.0, 0.0, 0.0, 0.0]);
    one_hot(&mut out[..4], &[0], 1, 0.1);
    assert_eq!(f32::from_ne_bytes(out[..4].try_into().unwrap()), 1.0);
    one_hot(&mut [], &[], 4, 0.5);
}
