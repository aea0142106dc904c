//! Sizes and places against torchvision's own, and the draws.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

const ROW: RowKey = RowKey { seed: 7, epoch: 0, ordinal: 0, index: 0 };

fn chain(ops: &[ImageOp]) -> Result<Geometry> {
    Geometry::new(&MapImage::new("image", ops.to_vec()), 0)
}

fn row(ordinal: u64) -> RowKey {
    RowKey { ordinal, ..ROW }
}

/// Height, width, size, max_size; height and width that torchvision 0.29.2 makes of them
/// (`_compute_resized_output_size`).
#[test]
#[rustfmt::skip]
fn resized_sizes_are_torchvisions() {
    type Case = (u32, u32, &'static [u32], Option<u32>, u32, u32);
    const CASES: &[Case] = &[
        (375, 500, &[224], None, 224, 298), (375, 500, &[256], None, 256, 341), (375, 500, &[7], None, 7, 9),
        (375, 500, &[224], Some(300), 224, 298), (375, 500, &[256], Some(257), 192, 257), (375, 500, &[64], Some(1000), 64, 85),
        (375, 500, &[232], Some(333), 232, 309), (375, 500, &[224, 224], None, 224, 224), (375, 500, &[100, 37], None, 100, 37),
        (500, 375, &[224], None, 298, 224), (500, 375, &[256], None, 341, 256), (500, 375, &[7], None, 9, 7),
        (500, 375, &[224], Some(300), 298, 224), (500, 375, &[256], Some(257), 257, 192), (500, 375, &[64], Some(1000), 85, 64),
        (500, 375, &[232], Some(333), 309, 232), (500, 375, &[224, 224], None, 224, 224), (500, 375, &[100, 37], None, 100, 37),
        (333, 500, &[224], None, 224, 336), (333, 500, &[256], None, 256, 384), (333, 500, &[7], None, 7, 10),
        (333, 500, &[224], Some(300), 200, 300), (333, 500, &[256], Some(257), 171, 257), (333, 500, &[64], Some(1000), 64, 96),
        (333, 500, &[232], Some(333), 222, 333), (333, 500, &[224, 224], None, 224, 224), (333, 500, &[100, 37], None, 100, 37),
        (1, 7, &[224], None, 224, 1568), (1, 7, &[256], None, 256, 1792), (1, 7, &[7], None, 7, 49),
        (1, 7, &[224], Some(300), 42, 300), (1, 7, &[256], Some(257), 36, 257), (1, 7, &[64], Some(1000), 64, 448),
        (1, 7, &[232], Some(333), 47, 333), (1, 7, &[224, 224], None, 224, 224), (1, 7, &[100, 37], None, 100, 37),
        (7, 1, &[224], None, 1568, 224), (7, 1, &[256], None, 1792, 256), (7, 1, &[7], None, 49, 7),
        (7, 1, &[224], Some(300), 300, 42), (7, 1, &[256], Some(257), 257, 36), (7, 1, &[64], Some(1000), 448, 64),
        (7, 1, &[232], Some(333), 333, 47), (7, 1, &[224, 224], None, 224, 224), (7, 1, &[100, 37], None, 100, 37),
        (532, 1280, &[224], None, 224, 538), (532, 1280, &[256], None, 256, 615), (532, 1280, &[7], None, 7, 16),
        (532, 1280, &[224], Some(300), 124, 300), (532, 1280, &[256], Some(257), 106, 257), (532, 1280, &[64], Some(1000), 64, 153),
        (532, 1280, &[232], Some(333), 138, 333), (532, 1280, &[224, 224], None, 224, 224), (532, 1280, &[100, 37], None, 100, 37),
        (530, 1280, &[224], None, 224, 540), (530, 1280, &[256], None, 256, 618), (530, 1280, &[7], None, 7, 16),
        (530, 1280, &[224], Some(300), 124, 300), (530, 1280, &[256], Some(257), 106, 257), (530, 1280, &[64], Some(1000), 64, 154),
        (530, 1280, &[232], Some(333), 137, 333), (530, 1280, &[224, 224], None, 224, 224), (530, 1280, &[100, 37], None, 100, 37),
        (224, 224, &[224], None, 224, 224), (224, 224, &[256], None, 256, 256), (224, 224, &[7], None, 7, 7),
        (224, 224, &[224], Some(300), 224, 224), (224, 224, &[256], Some(257), 256, 256), (224, 224, &[64], Some(1000), 64, 64),
        (224, 224, &[232], Some(333), 232, 232), (224, 224, &[224, 224], None, 224, 224), (224, 224, &[100, 37], None, 100, 37),
        (225, 224, &[224], None, 225, 224), (225, 224, &[256], None, 257, 256), (225, 224, &[7], None, 7, 7),
        (225, 224, &[224], Some(300), 225, 224), (225, 224, &[256], Some(257), 257, 256), (225, 224, &[64], Some(1000), 64, 64),
        (225, 224, &[232], Some(333), 233, 232), (225, 224, &[224, 224], None, 224, 224), (225, 224, &[100, 37], None, 100, 37),
        (100, 3, &[224], None, 7466, 224), (100, 3, &[256], None, 8533, 256), (100, 3, &[7], None, 233, 7),
        (100, 3, &[224], Some(300), 300, 9), (100, 3, &[256], Some(257), 257, 7), (100, 3, &[64], Some(1000), 1000, 30),
        (100, 3, &[232], Some(333), 333, 9), (100, 3, &[224, 224], None, 224, 224), (100, 3, &[100, 37], None, 100, 37),
        (1000, 999, &[224], None, 224, 224), (1000, 999, &[256], None, 256, 256), (1000, 999, &[7], None, 7, 7),
        (1000, 999, &[224], Some(300), 224, 224), (1000, 999, &[256], Some(257), 256, 256), (1000, 999, &[64], Some(1000), 64, 64),
        (1000, 999, &[232], Some(333), 232, 232), (1000, 999, &[224, 224], None, 224, 224), (1000, 999, &[100, 37], None, 100, 37),
        (768, 1024, &[224], None, 224, 298), (768, 1024, &[256], None, 256, 341), (768, 1024, &[7], None, 7, 9),
        (768, 1024, &[224], Some(300), 224, 298), (768, 1024, &[256], Some(257), 192, 257), (768, 1024, &[64], Some(1000), 64, 85),
        (768, 1024, &[232], Some(333), 232, 309), (768, 1024, &[224, 224], None, 224, 224), (768, 1024, &[100, 37], None, 100, 37),
        (213, 320, &[224], None, 224, 336), (213, 320, &[256], None, 256, 384), (213, 320, &[7], None, 7, 10),
        (213, 320, &[224], Some(300), 200, 300), (213, 320, &[256], Some(257), 171, 257), (213, 320, &[64], Some(1000), 64, 96),
        (213, 320, &[232], Some(333), 222, 333), (213, 320, &[224, 224], None, 224, 224), (213, 320, &[100, 37], None, 100, 37),
        (4000, 6000, &[224], None, 224, 336), (4000, 6000, &[256], None, 256, 384), (4000, 6000, &[7], None, 7, 10),
        (4000, 6000, &[224], Some(300), 200, 300), (4000, 6000, &[256], Some(257), 171, 257), (4000, 6000, &[64], Some(1000), 64, 96),
        (4000, 6000, &[232], Some(333), 222, 333), (4000, 6000, &[224, 224], None, 224, 224), (4000, 6000, &[100, 37], None, 100, 37),
        (31, 17, &[224], None, 408, 224), (31, 17, &[256], None, 466, 256), (31, 17, &[7], None, 12, 7),
        (31, 17, &[224], Some(300), 300, 164), (31, 17, &[256], Some(257), 257, 141), (31, 17, &[64], Some(1000), 116, 64),
        (31, 17, &[232], Some(333), 333, 182), (31, 17, &[224, 224], None, 224, 224), (31, 17, &[100, 37], None, 100, 37),
        (600, 601, &[224], None, 224, 224), (600, 601, &[256], None, 256, 256), (600, 601, &[7], None, 7, 7),
        (600, 601, &[224], Some(300), 224, 224), (600, 601, &[256], Some(257), 256, 256), (600, 601, &[64], Some(1000), 64, 64),
        (600, 601, &[232], Some(333), 232, 232), (600, 601, &[224, 224], None, 224, 224), (600, 601, &[100, 37], None, 100, 37),
    ];
    for &(h, w, size, max_size, to_h, to_w) in CASES {
        assert_eq!(resized([h, w], size, max_size).unwrap(), [to_h, to_w], "{h} x {w}, {size:?}, {max_size:?}");
    }
}

/// Height, width; height and width of the crop; top and left of the crop in the picture, as
/// torchvision 0.29.2 has them (`_center_crop_compute_padding` and `..._crop_anchor`).
#[test]
#[rustfmt::skip]
fn center_crops_are_torchvisions() {
    type Case = (u32, u32, u32, u32, i64, i64);
    const CASES: &[Case] = &[
        (375, 500, 224, 224, 76, 138), (375, 500, 4, 3, 186, 248), (375, 500, 3, 4, 186, 248), (375, 500, 5, 5, 185, 248),
        (375, 500, 1, 2, 187, 249), (256, 341, 224, 224, 16, 58), (256, 341, 4, 3, 126, 169), (256, 341, 3, 4, 126, 168),
        (256, 341, 5, 5, 126, 168), (256, 341, 1, 2, 128, 170), (341, 256, 224, 224, 58, 16), (341, 256, 4, 3, 168, 126),
        (341, 256, 3, 4, 169, 126), (341, 256, 5, 5, 168, 126), (341, 256, 1, 2, 170, 127), (5, 6, 224, 224, -109, -109),
        (5, 6, 4, 3, 0, 2), (5, 6, 3, 4, 1, 1), (5, 6, 5, 5, 0, 0), (5, 6, 1, 2, 2, 2),
        (10, 10, 224, 224, -107, -107), (10, 10, 4, 3, 3, 4), (10, 10, 3, 4, 4, 3), (10, 10, 5, 5, 2, 2),
        (10, 10, 1, 2, 4, 4), (3, 3, 224, 224, -110, -110), (3, 3, 4, 3, 0, 0), (3, 3, 3, 4, 0, 0),
        (3, 3, 5, 5, -1, -1), (3, 3, 1, 2, 1, 0), (224, 100, 224, 224, 0, -62), (224, 100, 4, 3, 110, 48),
        (224, 100, 3, 4, 110, 48), (224, 100, 5, 5, 110, 48), (224, 100, 1, 2, 112, 49), (100, 224, 224, 224, -62, 0),
        (100, 224, 4, 3, 48, 110), (100, 224, 3, 4, 48, 110), (100, 224, 5, 5, 48, 110), (100, 224, 1, 2, 50, 111),
        (1, 1, 224, 224, -111, -111), (1, 1, 4, 3, -1, -1), (1, 1, 3, 4, -1, -1), (1, 1, 5, 5, -2, -2),
        (1, 1, 1, 2, 0, 0), (225, 227, 224, 224, 0, 2), (225, 227, 4, 3, 110, 112), (225, 227, 3, 4, 111, 112),
        (225, 227, 5, 5, 110, 111), (225, 227, 1, 2, 112, 112), (226, 223, 224, 224, 1, 0), (226, 223, 4, 3, 111, 110),
        (226, 223, 3, 4, 112, 110), (226, 223, 5, 5, 110, 109), (226, 223, 1, 2, 112, 110),
    ];
    for &(h, w, th, tw, y, x) in CASES {
        assert_eq!(center_crop([h, w], [th, tw]), Rect { x, y, w: tw, h: th }, "{h} x {w} to {th} x {tw}");
    }
}

#[test]
fn a_random_resized_crop_keeps_to_its_ranges() {
    let (mut flat, mut n_in, mut area_sum) = (0, 0, 0.0);
    for i in 0..4000 {
        let r = random_resized_crop([375, 500], [0.08, 1.0], [0.75, 4.0 / 3.0], row(i), 0);
        assert!(r.is_inside([375, 500]) && r.w > 0 && r.h > 0, "{r:?}");
        let area = f64::from(r.w) * f64::from(r.h) / (375.0 * 500.0);
        let ratio = f64::from(r.w) / f64::from(r.h);
        assert!((0.078..=1.0).contains(&area), "{r:?}");
        assert!((0.74..1.35).contains(&ratio), "{r:?}");
        area_sum += area;
        n_in += 1;
        flat += u32::from(r.w > r.h);
    }
    // torchvision's get_params has a mean area of 0.435 here, and 0.580 of its crops are wider than
    // tall (20,000 draws). Four standard errors to each side.
    let mean = area_sum / f64::from(n_in);
    assert!((0.419..0.451).contains(&mean), "{mean}");
    assert!((2196..2445).contains(&flat), "{flat}");
}

#[test]
fn a_random_resized_crop_that_cannot_fit_is_central() {
    // A picture of 10 x 1000: no crop of half its area has an aspect near 1.
    let r = random_resized_crop([10, 1000], [0.9, 1.0], [0.75, 4.0 / 3.0], ROW, 0);
    assert_eq!(r, Rect { x: (1000 - 13) / 2, y: 0, w: 13, h: 10 });
    let r = random_resized_crop([1000, 10], [0.9, 1.0], [0.75, 4.0 / 3.0], ROW, 0);
    assert_eq!(r, Rect { x: 0, y: (1000 - 13) / 2, w: 10, h: 13 });
    let r = random_resized_crop([1, 1], [0.08, 0.1], [0.75, 4.0 / 3.0], ROW, 0);
    assert_eq!(r.size(), [1, 1]);
}

/// T16: different draws for different samples, the same draws on a rerun.
#[test]
fn t16_draws_belong_to_the_row() {
    let crop = |row, op| random_resized_crop([375, 500], [0.08, 1.0], [0.75, 4.0 / 3.0], row, op);
    let all: std::collections::HashSet<_> = (0..100)
        .map(|i| {
            let r = crop(row(i), 0);
            assert_eq!(r, crop(row(i), 0));
            (r.x, r.y, r.w, r.h)
        })
        .collect();
    assert!(all.len() > 95, "{}", all.len());
    assert_ne!(crop(row(1), 0), crop(row(1), 1));
    assert_ne!(crop(row(1), 0), crop(RowKey { epoch: 1, ..row(1) }, 0));
    assert_ne!(crop(row(1), 0), crop(RowKey { seed: 8, ..row(1) }, 0));
}

/// The draws are part of what an epoch is: a change here changes every user's data.
#[test]
fn the_draws_do_not_change() {
    let r = random_resized_crop([375, 500], [0.08, 1.0], [0.75, 4.0 / 3.0], ROW, 0);
    let c = random_crop([375, 500], [224, 224], Some([4; 4]), false, ROW, 1).unwrap();
    let flips: Vec<bool> = (0..8).map(|i| row(i).draws(2).chance(0.5)).collect();
    assert_eq!(r, Rect { x: 184, y: 109, w: 185, h: 243 });
    assert_eq!(c, Rect { x: 46, y: 20, w: 224, h: 224 });
    assert_eq!(flips, [true, false, false, false, true, true, false, true]);
}

#[test]
fn a_random_crop_covers_every_place_and_no_other() {
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..500 {
        let r = random_crop([6, 7], [5, 5], Some([1, 0, 0, 0]), false, row(i), 0).unwrap();
        assert_eq!(r.size(), [5, 5]);
        seen.insert((r.x, r.y));
    }
    let all = (-1..=2).flat_map(|x| (0..=1).map(move |y| (x, y))).collect();
    assert_eq!(seen, all);
}

#[test]
fn a_picture_smaller_than_its_random_crop_says_so() {
    let e = random_crop([20, 30], [32, 32], None, false, ROW, 0).unwrap_err();
    assert_eq!(e.message(), "RandomCrop takes 32 x 32, and the picture is 30 x 20");
    assert!(e.hint().unwrap().contains("pad_if_needed"));
    let r = random_crop([20, 30], [32, 32], None, true, ROW, 0).unwrap();
    assert!((-12..=12).contains(&r.y) && (-2..=2).contains(&r.x), "{r:?}");
}

#[test]
fn wrong_parameters_name_their_place() {
    let bad = |op: ImageOp, text: &str| {
        let e = chain(&[ImageOp::RandomHorizontalFlip { p: 0.5 }, op]).unwrap_err();
        assert!(e.to_string().starts_with("map_image.ops[1]."), "{e}");
        assert!(e.to_string().contains(text), "{e}");
        assert!(e.is_usage());
    };
    let resize = |size: &[u32], max_size| ImageOp::Resize {
        size: size.to_vec(),
        interpolation: Interpolation::Bilinear,
        max_size,
        antialias: true,
    };
    bad(resize(&[], None), "size must be one number");
    bad(resize(&[0], None), "at least 1 pixel");
    bad(resize(&[1, 2], Some(3)), "one number only");
    bad(resize(&[224], Some(224)), "must be greater than the shorter edge");
    bad(ImageOp::RandomHorizontalFlip { p: 1.5 }, "p must be between 0 and 1, not 1.5");
    bad(ImageOp::RandomHorizontalFlip { p: f64::NAN }, "p must be between");
    let rrc = |scale, ratio| ImageOp::RandomResizedCrop {
        size: [4, 4],
        scale,
        ratio,
        interpolation: Interpolation::Bilinear,
        antialias: true,
    };
    bad(rrc([1.0, 0.5], [1.0, 1.0]), "scale must be");
    bad(rrc([0.5, 1.0], [0.0, 1.0]), "ratio must be");
    bad(rrc([0.5, f64::INFINITY], [1.0, 1.0]), "scale must be");
}

#[test]
fn a_fixed_size_is_known_beforehand() {
    let fixed = |ops: &[ImageOp]| chain(ops).unwrap().fixed_size();
    let resize = |size: &[u32]| ImageOp::Resize {
        size: size.to_vec(),
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    };
    assert_eq!(fixed(&[]), None);
    assert_eq!(fixed(&[resize(&[256])]), None);
    assert_eq!(
        fixed(&[resize(&[256]), ImageOp::CenterCrop { size: [224, 200] }]),
        Some([224, 200])
    );
    assert_eq!(fixed(&[ImageOp::CenterCrop { size: [100, 200] }, resize(&[50])]), Some([50, 100]));
    assert_eq!(
        fixed(&[ImageOp::CenterCrop { size: [100, 200] }, resize(&[50, 60])]),
        Some([50, 60])
    );
}

const OUTSIDE: Outside = Outside { mode: PaddingMode::Constant, fill: [0; 4] };

/// A picture whose pixels say where they were: (x, y) of the source, or `None` for the fill.
type Places = Vec<Vec<Option<(i64, i64)>>>;

fn crop_places(from: &Places, rect: Rect) -> Places {
    let at = |x: i64, y: i64| {
        usize::try_from(y)
            .ok()
            .and_then(|y| from.get(y))
            .and_then(|r| usize::try_from(x).ok().and_then(|x| r.get(x).copied()))
            .flatten()
    };
    (0..i64::from(rect.h))
        .map(|y| (0..i64::from(rect.w)).map(|x| at(rect.x + x, rect.y + y)).collect())
        .collect()
}

fn flip_places(from: &Places) -> Places {
    from.iter().map(|r| r.iter().rev().copied().collect()).collect()
}

proptest! {
    /// Any chain of crops and mirror images gives the same pixels fused as one after the other.
    #[test]
    fn fused_crops_and_flips_are_those_of_the_chain(
        steps in prop::collection::vec(prop_oneof![
            Just((Step::Flip, None)),
            Just((Step::FlipVertical, None)),
            (-4i64..9, -4i64..9, 1u32..9, 1u32..9).prop_map(|(x, y, w, h)| {
                let rect = Rect { x, y, w, h };
                (Step::Crop { rect, outside: OUTSIDE }, Some(rect))
            }),
        ], 0..7)
    ) {
        let source: Places = (0..8).map(|y| (0..9).map(|x| Some((x, y))).collect()).collect();
        let mut expected = source.clone();
        let mut chain = Vec::new();
        for (step, rect) in steps {
            expected = match rect {
                Some(rect) => crop_places(&expected, rect),
                None if step == Step::Flip => flip_places(&expected),
                None => expected.into_iter().rev().collect(),
            };
            chain.push(step);
        }
        let mut stages = Vec::new();
        fuse([8, 9], &chain, false, &mut stages);
        let mut now = source;
        for stage in &stages {
            now = match *stage {
                Stage::Fit { crop, resize, window, flip, upside_down } => {
                    prop_assert_eq!(resize, None);
                    prop_assert_eq!(crop, window);
                    prop_assert!(crop.is_inside([now.len() as u32, now[0].len() as u32]));
                    let mut now = crop_places(&now, crop);
                    if upside_down {
                        now.reverse();
                    }
                    if flip { flip_places(&now) } else { now }
                }
                Stage::Pixels(_) => unreachable!("no operator works on pixels"),
                Stage::Pad { rect, flip, .. } => {
                    let now = if flip { flip_places(&now) } else { now };
                    crop_places(&now, rect)
                }
            };
        }
        prop_assert_eq!(now, expected);
    }

    /// Hostile sizes neither panic nor pass the limit.
    #[test]
    fn any_size_gives_a_plan_or_an_error(h in 1u32..=u32::MAX >> 1, w in 1u32..=u32::MAX >> 1, edge in 1u32..5000) {
        let ops = [
            ImageOp::Resize { size: vec![edge], interpolation: Interpolation::Bilinear, max_size: Some(edge + 1), antialias: true },
            ImageOp::RandomResizedCrop { size: [edge, 3], scale: [0.08, 1.0], ratio: [0.75, 1.33], interpolation: Interpolation::Bilinear, antialias: true },
            ImageOp::CenterCrop { size: [7, edge] },
        ];
        let geometry = chain(&ops).unwrap();
        let (mut steps, mut stages) = (Vec::new(), Vec::new());
        if let Ok((size, _)) = geometry.plan([h, w], ImageMode::Rgb, ROW, 1 << 28, &mut steps) {
            prop_assert_eq!(size, [7, edge]);
            fuse([h, w], &steps, false, &mut stages);
            prop_assert!(wanted([h, w], &stages[0]).is_inside([h, w]));
        }
    }
}

/// The two chains that everybody uses are one pass each.
#[test]
fn usual_chains_are_one_pass() {
    let bilinear = Interpolation::Bilinear;
    let chains = [
        vec![
            ImageOp::RandomResizedCrop {
                size: [224, 224],
                scale: [0.08, 1.0],
                ratio: [0.75, 1.33],
                interpolation: bilinear,
                antialias: true,
            },
            ImageOp::RandomHorizontalFlip { p: 1.0 },
        ],
        vec![
            ImageOp::Resize {
                size: vec![256],
                interpolation: bilinear,
                max_size: None,
                antialias: true,
            },
            ImageOp::CenterCrop { size: [224, 224] },
            ImageOp::RandomHorizontalFlip { p: 1.0 },
        ],
    ];
    for ops in chains {
        let geometry = chain(&ops).unwrap();
        let (mut steps, mut stages) = (Vec::new(), Vec::new());
        let planned = geometry.plan([375, 500], ImageMode::Rgb, ROW, 1 << 28, &mut steps);
        assert_eq!(planned.unwrap().0, [224, 224]);
        fuse([375, 500], &steps, false, &mut stages);
        assert!(
            matches!(stages.as_slice(), [Stage::Fit { resize: Some(_), flip: true, .. }]),
            "{stages:?}"
        );
    }
}
