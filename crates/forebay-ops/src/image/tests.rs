//! Known answers for whole rows: formats, modes, orientation, chains, and hostile input.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod encode;
mod formats;
pub(super) mod make;

use forebay_plan::ImageOp;
use proptest::prelude::*;
use turbojpeg_sys as tj;

use self::make::{JpegOptions, Space};
use fast_image_resize as fir;
use forebay_core::ErrorKind;
use forebay_plan::{Interpolation, PaddingMode};

use super::resample::{SourceBox, View};
use super::*;

const ROW: RowKey = RowKey { seed: 7, epoch: 0, ordinal: 3, index: 0 };

fn row(ordinal: u64) -> RowKey {
    RowKey { ordinal, ..ROW }
}

fn spec(ops: Vec<ImageOp>) -> MapImage {
    MapImage {
        dtype: DType::UInt8,
        layout: Layout::Hwc,
        quality: Quality::Exact,
        ..MapImage::new("image", ops)
    }
}

fn pipeline(ops: Vec<ImageOp>, mode: Option<ImageMode>) -> ImagePipeline {
    ImagePipeline::new(&MapImage { mode, ..spec(ops) }, 0).unwrap()
}

fn run_with(
    p: &ImagePipeline,
    scratch: &mut Scratch,
    bytes: &[u8],
    row: RowKey,
) -> Result<(Written, Vec<u8>)> {
    let probe = p.probe(bytes, row)?;
    let mut out = vec![0xAA; probe.elements() * p.dtype().size()];
    let written = p.run(scratch, bytes, row, &mut out)?;
    assert_eq!(probe, written);
    Ok((written, out))
}

fn run(p: &ImagePipeline, bytes: &[u8]) -> Result<(Written, Vec<u8>)> {
    run_with(p, &mut Scratch::new(), bytes, ROW)
}

/// The pixels of a file in a mode, nothing else done.
#[track_caller]
fn pixels(bytes: &[u8], mode: Option<ImageMode>) -> (ImageMode, [usize; 2], Vec<u8>) {
    let (w, out) = run(&pipeline(vec![], mode), bytes).unwrap();
    (w.mode, [w.height, w.width], out)
}

fn mean_and_max(a: &[u8], b: &[u8]) -> (f64, u8) {
    assert_eq!(a.len(), b.len());
    let diffs: Vec<u8> = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).collect();
    let sum: u64 = diffs.iter().map(|&d| u64::from(d)).sum();
    (sum as f64 / diffs.len() as f64, diffs.into_iter().max().unwrap())
}

fn resize(size: &[u32], interpolation: Interpolation) -> ImageOp {
    ImageOp::Resize { size: size.to_vec(), interpolation, max_size: None, antialias: true }
}

fn rrc(size: [u32; 2]) -> ImageOp {
    ImageOp::RandomResizedCrop {
        size,
        scale: [0.08, 1.0],
        ratio: [3.0 / 4.0, 4.0 / 3.0],
        interpolation: Interpolation::Bilinear,
        antialias: true,
    }
}

fn flip(p: f64) -> ImageOp {
    ImageOp::RandomHorizontalFlip { p }
}

fn normalize() -> ImageOp {
    ImageOp::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
}

/// The real files, or `None` with a word about it.
fn data(folder: &str) -> Option<Vec<(String, Vec<u8>)>> {
    let root = std::env::var_os("FOREBAY_TEST_DATA").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        std::path::PathBuf::from,
    );
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else {
        eprintln!("skipped: {} is not there", root.join(folder).display());
        return None;
    };
    let mut files: Vec<_> = entries
        .map(|e| e.unwrap().path())
        .filter(|p| {
            let ext = p.extension().unwrap_or_default().to_ascii_lowercase();
            folder != "photos" || ext == "jpg" || ext == "jpeg"
        })
        .map(|p| {
            (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty());
    Some(files)
}

// ---- formats and modes -------------------------------------------------------------------------

#[test]
fn jpegs_come_back_as_they_were() {
    let rgb = make::scene(61, 43);
    for space in [Space::YCbCr, Space::Rgb] {
        for progressive in [false, true] {
            let file =
                make::jpeg(&rgb, 61, 43, JpegOptions { space, progressive, ..Default::default() });
            let (mode, size, out) = pixels(&file, None);
            assert_eq!((mode, size), (ImageMode::Rgb, [43, 61]));
            let (mean, max) = mean_and_max(&out, &rgb);
            assert!(mean < 1.5 && max < 24, "{mean} {max}");
        }
    }
}

#[test]
fn gray_jpegs_in_every_mode() {
    let gray: Vec<u8> = make::scene(40, 30).chunks(3).map(|p| p[0]).collect();
    let file = make::jpeg(&gray, 40, 30, JpegOptions { space: Space::Gray, ..Default::default() });
    let (mode, _, l) = pixels(&file, None);
    assert_eq!(mode, ImageMode::L);
    assert!(mean_and_max(&l, &gray).0 < 1.5);
    let rgb: Vec<u8> = l.iter().flat_map(|&v| [v, v, v]).collect();
    assert_eq!(pixels(&file, Some(ImageMode::Rgb)).2, rgb);
    let rgba: Vec<u8> = l.iter().flat_map(|&v| [v, v, v, 255]).collect();
    assert_eq!(pixels(&file, Some(ImageMode::Rgba)).2, rgba);
}

#[test]
fn gray_of_colour_is_pillows_and_not_y() {
    let file = make::jpeg(&make::scene(40, 30), 40, 30, JpegOptions::default());
    let (_, _, rgb) = pixels(&file, None);
    let expected: Vec<u8> = rgb
        .chunks(3)
        .map(|p| {
            ((u32::from(p[0]) * 19595 + u32::from(p[1]) * 38470 + u32::from(p[2]) * 7471 + 0x8000)
                >> 16) as u8
        })
        .collect();
    assert_eq!(pixels(&file, Some(ImageMode::L)).2, expected);
}

/// I1: CMYK and YCCK JPEGs are as Pillow's `convert("RGB")`.
#[test]
fn i1_cmyk_and_ycck() {
    let rgb = make::scene(40, 30);
    // Adobe's files hold 255 - ink. Black of a quarter; the colours keep 0..=255 - k.
    let stored: Vec<u8> = rgb.chunks(3).flat_map(|p| [p[0], p[1], p[2], 200]).collect();
    let expected: Vec<u8> = stored
        .chunks(4)
        .flat_map(|p| {
            let k = u32::from(255 - p[3]);
            [p[0], p[1], p[2]].map(|v| {
                let t = u32::from(255 - v) * (255 - k) + 128;
                (255 - k).saturating_sub((t + (t >> 8)) >> 8) as u8
            })
        })
        .collect();
    for space in [Space::Cmyk, Space::Ycck] {
        let file =
            make::jpeg(&stored, 40, 30, JpegOptions { space, quality: 100, ..Default::default() });
        for quality in [Quality::Exact, Quality::Fast] {
            let p = ImagePipeline::new(&MapImage { quality, ..spec(vec![]) }, 0).unwrap();
            let (written, out) = run(&p, &file).unwrap();
            assert_eq!((written.mode, written.channels), (ImageMode::Rgb, 3));
            let (mean, max) = mean_and_max(&out, &expected);
            assert!(mean < 1.0 && max < 6, "{mean} {max}");
        }
        let (_, _, gray) = pixels(&file, Some(ImageMode::L));
        assert_eq!(gray.len(), 40 * 30);
        let (_, _, rgba) = pixels(&file, Some(ImageMode::Rgba));
        assert!(rgba.chunks(4).all(|p| p[3] == 255));
    }
}

/// I3: palette PNG, 1-bit, gray+alpha, 16-bit, interlaced: values, not indices. The expected values
/// are those of Pillow 13.
#[test]
fn i3_every_kind_of_png() {
    use ImageMode::{L, Rgb, Rgba};
    let plte = make::chunk(b"PLTE", &[10, 20, 30, 40, 50, 60]);
    let trns = |body: &[u8]| make::chunk(b"tRNS", body);
    #[track_caller]
    fn check(file: &[u8], natural: ImageMode, expected: &[(ImageMode, &[u8])]) {
        let (mode, _, own) = pixels(file, None);
        assert_eq!(mode, natural);
        for (mode, expected) in expected {
            assert_eq!(&pixels(file, Some(*mode)).2, expected, "{}", mode.name());
            if *mode == natural {
                assert_eq!(&own, expected);
            }
        }
    }
    // 1 bit: 0 and 255.
    let file = make::png(8, 1, 1, 0, &[&[0b0001_1011]], &[]);
    check(&file, L, &[(L, &[0, 0, 0, 255, 255, 0, 255, 255])]);
    let file = make::png(8, 1, 1, 0, &[&[0b0001_1011]], &[trns(&[0, 0xff])]);
    let alpha: Vec<u8> =
        [0, 0, 0, 255, 255, 0, 255, 255].iter().flat_map(|&v: &u8| [v, v, v, 255 - v]).collect();
    check(&file, L, &[(L, &[0, 0, 0, 255, 255, 0, 255, 255]), (Rgba, &alpha)]);
    // 2 and 4 bits.
    check(&make::png(4, 1, 2, 0, &[&[0b0001_1011]], &[]), L, &[(L, &[0, 85, 170, 255])]);
    check(
        &make::png(2, 1, 4, 0, &[&[0x1b]], &[]),
        L,
        &[(L, &[17, 187]), (Rgb, &[17, 17, 17, 187, 187, 187])],
    );
    // 8 bits, a transparent value.
    let file = make::png(2, 1, 8, 0, &[&[27, 1]], &[trns(&[0, 1])]);
    check(&file, L, &[(L, &[27, 1]), (Rgba, &[27, 27, 27, 255, 1, 1, 1, 0])]);
    // 16 bits of gray: beyond 255 is 255.
    let file = make::png(4, 1, 16, 0, &[&[0, 0, 0, 127, 1, 0, 255, 255]], &[]);
    check(
        &file,
        L,
        &[(L, &[0, 127, 255, 255]), (Rgb, &[0, 0, 0, 127, 127, 127, 255, 255, 255, 255, 255, 255])],
    );
    // 16 bits of gray and opacity, of RGB: the high byte.
    let file = make::png(1, 1, 16, 4, &[&[0x12, 0x34, 0x80, 0xff]], &[]);
    check(&file, Rgba, &[(Rgba, &[0x12, 0x12, 0x12, 0x80]), (L, &[0x12])]);
    let file = make::png(1, 1, 16, 2, &[&[1, 2, 0x7f, 0xff, 0xff, 0xfe]], &[]);
    check(&file, Rgb, &[(Rgb, &[1, 0x7f, 0xff])]);
    // Gray and opacity.
    let file = make::png(2, 1, 8, 4, &[&[200, 10, 1, 200]], &[]);
    check(
        &file,
        Rgba,
        &[
            (Rgba, &[200, 200, 200, 10, 1, 1, 1, 200]),
            (Rgb, &[200, 200, 200, 1, 1, 1]),
            (L, &[200, 1]),
        ],
    );
    // Palette, with and without transparency; an index without a colour is black.
    let file = make::png(3, 1, 8, 3, &[&[0, 1, 1]], std::slice::from_ref(&plte));
    check(&file, Rgb, &[(Rgb, &[10, 20, 30, 40, 50, 60, 40, 50, 60]), (L, &[18, 48, 48])]);
    let file = make::png(3, 1, 8, 3, &[&[0, 1, 2]], &[plte.clone(), trns(&[5])]);
    check(
        &file,
        Rgba,
        &[
            (Rgba, &[10, 20, 30, 5, 40, 50, 60, 255, 0, 0, 0, 255]),
            (Rgb, &[10, 20, 30, 40, 50, 60, 0, 0, 0]),
        ],
    );
    let file = make::png(8, 1, 1, 3, &[&[0b0100_0001]], &[plte]);
    check(&file, Rgb, &[(L, &[18, 48, 18, 18, 18, 18, 18, 48])]);
    // RGB with a transparent colour.
    let file = make::png(2, 1, 8, 2, &[&[1, 2, 3, 4, 5, 6]], &[trns(&[0, 1, 0, 2, 0, 3])]);
    check(&file, Rgb, &[(Rgb, &[1, 2, 3, 4, 5, 6]), (Rgba, &[1, 2, 3, 0, 4, 5, 6, 255])]);
    // RGBA.
    let file = make::png(1, 1, 8, 6, &[&[200, 100, 50, 10]], &[]);
    check(&file, Rgba, &[(Rgba, &[200, 100, 50, 10]), (Rgb, &[200, 100, 50]), (L, &[124])]);
    // Interlaced.
    let rgb = make::scene(13, 11);
    check(&make::interlaced_png(13, 11, &rgb), Rgb, &[(Rgb, &rgb)]);
}

/// T12: with no declared mode, gray and RGB are told apart by what `probe` and `run` say; with one,
/// both come out alike.
#[test]
fn t12_modes_are_reported_or_converted() {
    let rgb = make::jpeg(&make::scene(32, 32), 32, 32, JpegOptions::default());
    let gray =
        make::jpeg(&[128; 1024], 32, 32, JpegOptions { space: Space::Gray, ..Default::default() });
    let keep = pipeline(vec![], None);
    assert_eq!(keep.mode(), None);
    assert_eq!(keep.probe(&rgb, ROW).unwrap().mode, ImageMode::Rgb);
    assert_eq!(keep.probe(&gray, ROW).unwrap().mode, ImageMode::L);
    let convert = pipeline(vec![], Some(ImageMode::Rgb));
    for file in [&rgb, &gray] {
        assert_eq!(run(&convert, file).unwrap().0.channels, 3);
    }
    // Three means and a gray picture.
    let spec = MapImage { dtype: DType::Float32, ..spec(vec![normalize()]) };
    let e = run(&ImagePipeline::new(&spec, 0).unwrap(), &gray).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert_eq!(e.message(), "Normalize has 3 means, and the picture has 1 channel (mode L)");
    assert!(e.hint().unwrap().contains("mode=\"RGB\""));
    assert_eq!(e.location().column.as_deref(), Some("image"));
}

// ---- orientation -------------------------------------------------------------------------------

/// What Pillow's `exif_transpose` makes of the rows `abc` / `def`.
const TURNED: [(u16, &[&str]); 9] = [
    (1, &["abc", "def"]),
    (2, &["cba", "fed"]),
    (3, &["fed", "cba"]),
    (4, &["def", "abc"]),
    (5, &["ad", "be", "cf"]),
    (6, &["da", "eb", "fc"]),
    (7, &["fc", "eb", "da"]),
    (8, &["cf", "be", "ad"]),
    (9, &["abc", "def"]),
];

/// I2: EXIF orientation is applied.
#[test]
fn i2_orientation_turns_the_picture() {
    for (tag, rows) in TURNED {
        for big in [false, true] {
            let exif = make::chunk(b"eXIf", &make::exif(tag, big));
            let file = make::png(3, 2, 8, 0, &[b"abc", b"def"], &[exif]);
            let (_, size, out) = pixels(&file, None);
            assert_eq!(size, [rows.len(), rows[0].len()], "{tag}");
            assert_eq!(String::from_utf8(out).unwrap(), rows.concat(), "{tag}");
        }
    }
    // By XMP, where EXIF says nothing.
    let xmp = make::chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation=\"6\"/>");
    let file = make::png(3, 2, 8, 0, &[b"abc", b"def"], &[xmp]);
    assert_eq!(pixels(&file, None).2, b"daebfc");
}

/// I2 with everything behind it: crops, resizes and the partial decode see the picture as held.
#[test]
fn i2_operators_see_the_turned_picture() {
    let upright = make::jpeg(&make::scene(200, 120), 200, 120, JpegOptions::default());
    let (_, _, stored) = pixels(&upright, None);
    for tag in 1..=8u16 {
        let file = make::jpeg_with_orientation(&upright, tag, tag % 2 == 0);
        let (_, [h, w], seen) = pixels(&file, None);
        assert_eq!([h, w], if tag < 5 { [120, 200] } else { [200, 120] });
        // The same picture as a PNG that needs no turning is the reference.
        let rows: Vec<&[u8]> = seen.chunks(w * 3).collect();
        let reference = make::png(w as u32, h as u32, 8, 2, &rows, &[]);
        assert_eq!(pixels(&reference, None).2, seen);
        if tag == 1 {
            assert_eq!(seen, stored);
        }
        for (i, ops) in [
            vec![rrc([32, 48]), flip(0.5)],
            vec![resize(&[40], Interpolation::Bilinear), ImageOp::CenterCrop { size: [30, 36] }],
        ]
        .into_iter()
        .enumerate()
        {
            for ordinal in 0..8 {
                let key = row(ordinal);
                let exact = pipeline(ops.clone(), None);
                let fast = ImagePipeline::new(
                    &MapImage { quality: Quality::Fast, ..spec(ops.clone()) },
                    0,
                )
                .unwrap();
                let (a, expected) = run_with(&exact, &mut Scratch::new(), &reference, key).unwrap();
                let (b, out) = run_with(&exact, &mut Scratch::new(), &file, key).unwrap();
                assert_eq!((a, &expected), (b, &out), "tag {tag}, chain {i}, row {ordinal}");
                let (_, out) = run_with(&fast, &mut Scratch::new(), &file, key).unwrap();
                let (mean, max) = mean_and_max(&out, &expected);
                assert!(
                    mean < 2.0 && max < 40,
                    "tag {tag}, chain {i}, row {ordinal}: {mean} {max}"
                );
            }
        }
    }
}

// ---- operators ---------------------------------------------------------------------------------

/// A PNG of RGB pixels.
fn rgb_png(w: u32, h: u32, rgb: &[u8]) -> Vec<u8> {
    make::png(w, h, 8, 2, &rgb.chunks(w as usize * 3).collect::<Vec<_>>(), &[])
}

#[test]
fn flips_are_mirrors() {
    let rgb = make::scene(7, 5);
    let file = rgb_png(7, 5, &rgb);
    let mirrored: Vec<u8> =
        rgb.chunks(21).flat_map(|r| r.rchunks(3).flatten().copied().collect::<Vec<_>>()).collect();
    assert_eq!(run(&pipeline(vec![flip(1.0)], None), &file).unwrap().1, mirrored);
    assert_eq!(run(&pipeline(vec![flip(1.0), flip(1.0)], None), &file).unwrap().1, rgb);
    assert_eq!(run(&pipeline(vec![flip(0.0)], None), &file).unwrap().1, rgb);
    let p = pipeline(vec![flip(0.5)], None);
    let flipped = (0..200)
        .filter(|&i| run_with(&p, &mut Scratch::new(), &file, row(i)).unwrap().1 == mirrored)
        .count();
    assert!((75..125).contains(&flipped), "{flipped}");
}

/// A mirror image before an operator is the operator on the mirrored file.
#[test]
fn flips_commute_with_what_follows() {
    let rgb = make::scene(50, 37);
    let mirrored: Vec<u8> =
        rgb.chunks(150).flat_map(|r| r.rchunks(3).flatten().copied().collect::<Vec<_>>()).collect();
    let (file, mirrored) = (rgb_png(50, 37, &rgb), rgb_png(50, 37, &mirrored));
    for op in [
        ImageOp::CenterCrop { size: [20, 31] },
        ImageOp::CenterCrop { size: [60, 31] },
        resize(&[24], Interpolation::Bilinear),
        resize(&[24, 70], Interpolation::Bicubic),
        resize(&[24, 70], Interpolation::Nearest),
        rrc([16, 17]),
    ] {
        // The flip takes operator 0, so that both chains draw alike.
        let flipped = run(&pipeline(vec![flip(1.0), op.clone()], None), &file).unwrap();
        let plain = run(&pipeline(vec![flip(0.0), op.clone()], None), &mirrored).unwrap();
        assert_eq!(flipped.0, plain.0);
        let (_, max) = mean_and_max(&flipped.1, &plain.1);
        let exact = !matches!(
            op,
            ImageOp::Resize { interpolation: Interpolation::Bilinear | Interpolation::Bicubic, .. }
                | ImageOp::RandomResizedCrop { .. }
        );
        assert!(max <= u8::from(!exact), "{op:?}: {max}");
    }
}

#[test]
fn center_crop_pads_with_zeros() {
    let file = make::png(3, 2, 8, 0, &[b"abc", b"def"], &[]);
    let (w, out) = run(&pipeline(vec![ImageOp::CenterCrop { size: [5, 2] }], None), &file).unwrap();
    assert_eq!([w.height, w.width], [5, 2]);
    // torchvision: [[0,0],[a,b],[d,e],[0,0],[0,0]]; round(0.5) is 0.
    assert_eq!(out, b"\0\0abde\0\0\0\0");
}

/// torchvision's `pad` with each mode, then a crop of all of it.
#[test]
fn padding_modes() {
    let file = make::png(4, 1, 8, 0, &[b"abcd"], &[]);
    for (mode, expected) in [
        (PaddingMode::Constant, b"zzzabcdzz"),
        (PaddingMode::Edge, b"aaaabcddd"),
        (PaddingMode::Reflect, b"dcbabcdcb"),
        (PaddingMode::Symmetric, b"cbaabcddc"),
    ] {
        let op = ImageOp::RandomCrop {
            size: [1, 9],
            padding: Some([3, 0, 2, 0]),
            pad_if_needed: false,
            fill: b'z',
            padding_mode: mode,
        };
        let (_, out) = run(&pipeline(vec![op], None), &file).unwrap();
        assert_eq!(out, expected, "{mode:?}");
    }
}

/// torch: `F.interpolate(mode="nearest")` of 0..7 to 3, 10 and 5, computed with torch 2.15.
#[test]
fn nearest_is_torchs() {
    let file = make::png(7, 1, 8, 0, &[&[0, 1, 2, 3, 4, 5, 6]], &[]);
    for (to, expected) in
        [(3, vec![0, 2, 4]), (10, vec![0, 0, 1, 2, 2, 3, 4, 4, 5, 6]), (5, vec![0, 1, 2, 4, 5])]
    {
        let (_, out) =
            run(&pipeline(vec![resize(&[1, to], Interpolation::Nearest)], None), &file).unwrap();
        assert_eq!(out, expected, "{to}");
    }
}

/// Known answers of torchvision's `resize(..., antialias=True)` on `uint8`, computed with 0.29.2.
#[test]
fn resizes_are_torchvisions() {
    let line: Vec<u8> = vec![0, 255, 30, 200, 90, 10, 170, 255, 0, 60, 120];
    let file = make::png(11, 1, 8, 0, &[&line], &[]);
    for (interpolation, antialias, to, expected) in [
        (Interpolation::Bilinear, true, 4, vec![125, 104, 133, 80]),
        (Interpolation::Bilinear, true, 7, vec![102, 121, 141, 61, 202, 59, 96]),
        (
            Interpolation::Bilinear,
            true,
            17,
            vec![0, 120, 229, 83, 100, 194, 122, 62, 10, 114, 195, 250, 105, 14, 53, 92, 120],
        ),
        (
            Interpolation::Bilinear,
            true,
            30,
            vec![
                0, 13, 106, 200, 221, 139, 56, 73, 135, 197, 162, 121, 83, 54, 25, 39, 98, 157,
                194, 225, 251, 157, 64, 7, 29, 51, 73, 95, 117, 120,
            ],
        ),
        (Interpolation::Bilinear, false, 4, vec![223, 131, 202, 68]),
        (Interpolation::Bilinear, false, 7, vec![73, 62, 153, 10, 219, 9, 103]),
        (
            Interpolation::Bilinear,
            false,
            17,
            vec![0, 120, 229, 83, 100, 194, 122, 62, 10, 114, 195, 250, 105, 14, 53, 92, 120],
        ),
        (
            Interpolation::Bilinear,
            false,
            30,
            vec![
                0, 13, 106, 200, 221, 139, 56, 73, 135, 197, 162, 121, 83, 54, 25, 39, 98, 157,
                194, 225, 251, 157, 64, 7, 29, 51, 73, 95, 117, 120,
            ],
        ),
        (Interpolation::Bicubic, true, 4, vec![120, 104, 137, 77]),
        (Interpolation::Bicubic, true, 7, vec![103, 126, 139, 47, 216, 47, 95]),
        (
            Interpolation::Bicubic,
            true,
            17,
            vec![0, 123, 248, 66, 86, 201, 129, 50, 10, 109, 211, 255, 100, 0, 51, 97, 124],
        ),
        (
            Interpolation::Bicubic,
            true,
            30,
            vec![
                0, 7, 105, 223, 243, 142, 41, 51, 137, 199, 181, 127, 82, 39, 10, 26, 90, 159, 209,
                253, 253, 168, 50, 0, 9, 48, 75, 101, 118, 126,
            ],
        ),
        (Interpolation::Bicubic, false, 4, vec![245, 150, 235, 71]),
        (Interpolation::Bicubic, false, 7, vec![77, 47, 178, 10, 255, 0, 107]),
        (
            Interpolation::Bicubic,
            false,
            17,
            vec![0, 139, 249, 68, 82, 202, 137, 41, 10, 102, 222, 255, 102, 0, 48, 97, 125],
        ),
        (
            Interpolation::Bicubic,
            false,
            30,
            vec![
                0, 10, 121, 228, 245, 145, 43, 49, 134, 199, 187, 135, 78, 30, 6, 26, 84, 154, 221,
                255, 253, 166, 54, 0, 0, 44, 78, 100, 118, 127,
            ],
        ),
    ] {
        let op = ImageOp::Resize { size: vec![1, to], interpolation, max_size: None, antialias };
        let (_, out) = run(&pipeline(vec![op], None), &file).unwrap();
        let (_, max) = mean_and_max(&out, &expected);
        assert!(max <= 1, "{interpolation:?} {antialias} {to}: {out:?}, {expected:?}");
    }
}

/// Resize and crop in one pass is the crop of the whole resize.
#[test]
fn a_crop_of_a_resize_is_computed_alone() {
    let rgb = make::scene(150, 101);
    let file = rgb_png(150, 101, &rgb);
    for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Nearest] {
        for size in [&[40u32][..], &[133], &[301], &[57, 190]] {
            let (w, whole) =
                run(&pipeline(vec![resize(size, interpolation)], None), &file).unwrap();
            let op = ImageOp::RandomCrop {
                size: [33, 29],
                padding: None,
                pad_if_needed: false,
                fill: 0,
                padding_mode: PaddingMode::Constant,
            };
            let rect = {
                let rows: Vec<&[u8]> = whole.chunks(w.width * 3).collect();
                let whole = make::png(w.width as u32, w.height as u32, 8, 2, &rows, &[]);
                // Operator 1 in both.
                run(&pipeline(vec![flip(0.0), op.clone()], None), &whole).unwrap().1
            };
            let (_, fused) =
                run(&pipeline(vec![resize(size, interpolation), op], None), &file).unwrap();
            assert!(mean_and_max(&fused, &rect).1 <= 1, "{interpolation:?} {size:?}");
        }
    }
}

/// Every vector unit of this machine resizes to the same bits.
#[test]
fn vector_units_agree() {
    use fir::CpuExtensions as Cpu;
    let rgb = make::scene(301, 203);
    let mut units = vec![Cpu::None, Cpu::default()];
    #[cfg(target_arch = "x86_64")]
    units.extend([Cpu::Sse4_1, Cpu::Avx2]);
    for channels in [1usize, 3, 4] {
        let w = (301 * 3 / channels) as u32;
        let pixels = &rgb[..(w as usize * 203 * channels).min(rgb.len())];
        let h = (pixels.len() / channels / w as usize) as u32;
        for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
            for antialias in [true, false] {
                let kernel = geometry::Kernel { interpolation, antialias };
                let from =
                    SourceBox { x: 3.25, y: 1.5, w: f64::from(w) - 7.5, h: f64::from(h) - 3.0 };
                let mut first: Option<Vec<u8>> = None;
                for unit in units.iter().filter(|u| u.is_supported()) {
                    let mut resizer = fir::Resizer::new();
                    // SAFETY: the unit is supported, as asked one line above.
                    unsafe { resizer.set_cpu_extensions(*unit) };
                    for to in [(97, 61), (400, 300)] {
                        let mut out = vec![0; (to.0 * to.1) as usize * channels];
                        let (order, mut between) = (resample::Order::RowsFirst, Vec::new());
                        resample::resize(
                            &mut resizer,
                            pixels,
                            channels,
                            View::whole(w, h),
                            from,
                            kernel,
                            order,
                            &mut between,
                            to,
                            &mut out,
                        )
                        .unwrap();
                        if to.0 == 97 {
                            let first = first.get_or_insert_with(|| out.clone());
                            assert!(*first == out, "{unit:?} {channels} {kernel:?}");
                        }
                    }
                }
            }
        }
    }
}

// ---- output ------------------------------------------------------------------------------------

#[test]
fn every_dtype_and_layout() {
    let rgb = make::scene(6, 4);
    let file = rgb_png(6, 4, &rgb);
    let mean = [0.485f32, 0.456, 0.406];
    let std = [0.229f32, 0.224, 0.225];
    for layout in [Layout::Hwc, Layout::Chw] {
        for p_flip in [0.0, 1.0] {
            for normal in [false, true] {
                for dtype in [DType::UInt8, DType::Float16, DType::BFloat16, DType::Float32] {
                    if normal && dtype == DType::UInt8 {
                        continue;
                    }
                    let mut ops = vec![flip(p_flip)];
                    ops.extend(normal.then(normalize));
                    let p =
                        ImagePipeline::new(&MapImage { dtype, layout, ..spec(ops) }, 0).unwrap();
                    // An odd address, so that nothing relies on alignment.
                    let mut out = vec![0u8; 1 + 72 * dtype.size()];
                    p.run(&mut Scratch::new(), &file, ROW, &mut out[1..]).unwrap();
                    let mut at = 1;
                    let order: Vec<(usize, usize, usize)> = match layout {
                        Layout::Hwc => (0..4)
                            .flat_map(|y| (0..6).flat_map(move |x| (0..3).map(move |c| (y, x, c))))
                            .collect(),
                        Layout::Chw => (0..3)
                            .flat_map(|c| (0..4).flat_map(move |y| (0..6).map(move |x| (y, x, c))))
                            .collect(),
                    };
                    for (y, x, c) in order {
                        let x = if p_flip == 1.0 { 5 - x } else { x };
                        let v = rgb[(y * 6 + x) * 3 + c];
                        let f = f32::from(v) / 255.0;
                        let f = if normal { (f - mean[c]) / std[c] } else { f };
                        let expected: Vec<u8> = match dtype {
                            DType::UInt8 => vec![v],
                            DType::Float16 => half::f16::from_f32(f).to_ne_bytes().to_vec(),
                            DType::BFloat16 => half::bf16::from_f32(f).to_ne_bytes().to_vec(),
                            _ => f.to_ne_bytes().to_vec(),
                        };
                        assert_eq!(
                            out[at..at + dtype.size()],
                            expected,
                            "{layout:?} {dtype} {normal} {p_flip}"
                        );
                        at += dtype.size();
                    }
                }
            }
        }
    }
}

#[test]
fn the_surface_says_what_it_was_given() {
    let p = ImagePipeline::new(
        &MapImage::new("image", vec![rrc([224, 200]), flip(0.5), normalize()]),
        0,
    )
    .unwrap();
    assert_eq!(p.fixed_size(), Some([224, 200]));
    assert_eq!((p.dtype(), p.layout(), p.column()), (DType::Float32, Layout::Chw, "image"));
    assert_eq!(p.shape(3), Some([3, 224, 200]));
    fn shared<T: Send + Sync>() {}
    shared::<ImagePipeline>();
    fn moved<T: Send>() {}
    moved::<Scratch>();
    // T6: without a fixed size each row has its own shape.
    let p = pipeline(vec![resize(&[10], Interpolation::Bilinear)], None);
    assert_eq!((p.fixed_size(), p.shape(3)), (None, None));
    for (w, h) in [(100, 100), (200, 100), (100, 300)] {
        let file = rgb_png(w, h, &make::scene(w, h));
        let (written, _) = run(&p, &file).unwrap();
        assert_eq!(
            [written.height, written.width],
            if w >= h { [10, (10 * w / h) as usize] } else { [30, 10] }
        );
    }
}

#[test]
fn wrong_specs_are_usage_errors_with_a_place() {
    let bad = |spec: MapImage, text: &str| {
        let e = ImagePipeline::new(&spec, 0).unwrap_err();
        assert!(e.is_usage() && e.to_string().contains(text), "{e}");
    };
    let float = |ops| MapImage::new("image", ops);
    bad(
        spec(vec![normalize()]),
        "map_image.ops[0].normalize: Normalize needs a float dtype, not uint8",
    );
    bad(
        float(vec![normalize(), flip(0.5)]),
        "map_image.ops[1].random_horizontal_flip: normalize stands before random_horizontal_flip",
    );
    bad(float(vec![ImageOp::Normalize { mean: vec![0.5], std: vec![0.0] }]), "std not 0");
    bad(float(vec![ImageOp::Normalize { mean: vec![0.5], std: vec![1e-60] }]), "std not 0");
    bad(
        float(vec![ImageOp::Normalize { mean: vec![0.5; 3], std: vec![1.0] }]),
        "mean has 3 numbers and std has 1",
    );
    bad(
        MapImage { dtype: DType::Int32, ..float(vec![]) },
        "map_image.dtype: images do not come out as int32",
    );
    bad(
        MapImage { mode: Some(ImageMode::L), ..float(vec![normalize()]) },
        "3 means, and the picture has 1 channel",
    );
}

// ---- determinism -------------------------------------------------------------------------------

/// T16, and no state between rows: any order and any scratch give the same bytes.
#[test]
fn t16_rows_do_not_depend_on_their_neighbours() {
    let files: Vec<Vec<u8>> = [(120, 90), (64, 200), (301, 33)]
        .iter()
        .map(|&(w, h)| {
            make::jpeg(
                &make::scene(w, h),
                w,
                h,
                JpegOptions { subsampling: tj::TJSAMP_TJSAMP_420, ..Default::default() },
            )
        })
        .collect();
    for quality in [Quality::Exact, Quality::Fast] {
        let spec = MapImage {
            quality,
            ..MapImage::new("image", vec![rrc([32, 32]), flip(0.5), normalize()])
        };
        let p = ImagePipeline::new(&spec, 5).unwrap();
        let fresh: Vec<Vec<u8>> = (0..30)
            .map(|i| run_with(&p, &mut Scratch::new(), &files[i % 3], row(i as u64)).unwrap().1)
            .collect();
        let mut scratch = Scratch::new();
        for i in (0..30).rev().chain(0..30) {
            assert!(
                run_with(&p, &mut scratch, &files[i % 3], row(i as u64)).unwrap().1 == fresh[i]
            );
        }
        let distinct: std::collections::HashSet<_> = fresh.iter().collect();
        assert!(distinct.len() > 27, "{}", distinct.len());
        let other = ImagePipeline::new(&spec, 6).unwrap();
        assert!(run_with(&other, &mut scratch, &files[0], row(0)).unwrap().1 != fresh[0]);
    }
}

/// I5: neighbours of size 1280 x 532 and 1280 x 530 have each their own crop.
#[test]
fn i5_sizes_that_differ_by_two_rows() {
    let a = make::jpeg(&make::scene(1280, 532), 1280, 532, JpegOptions::default());
    let b = make::jpeg(&make::scene(1280, 530), 1280, 530, JpegOptions::default());
    for quality in [Quality::Exact, Quality::Fast] {
        let spec = MapImage {
            quality,
            ..spec(vec![
                resize(&[256], Interpolation::Bilinear),
                ImageOp::CenterCrop { size: [224, 224] },
            ])
        };
        let p = ImagePipeline::new(&spec, 0).unwrap();
        let alone = [run(&p, &a).unwrap(), run(&p, &b).unwrap()];
        let mut scratch = Scratch::new();
        for _ in 0..2 {
            for (file, alone) in [&a, &b].into_iter().zip(&alone) {
                assert!(run_with(&p, &mut scratch, file, ROW).unwrap() == *alone);
            }
        }
    }
}

/// I5, the nasty neighbours: a half header, and a file without tables, which an old decoder would
/// decode by the tables of the picture before it.
#[test]
fn i5_no_state_is_carried_over() {
    let good = make::jpeg(&make::scene(64, 48), 64, 48, JpegOptions::default());
    let p = pipeline(vec![], None);
    let alone = run(&p, &good).unwrap();
    let mut without_tables = good[..2].to_vec();
    let mut at = 2;
    while good[at + 1] != 0xDA {
        let len = 2 + usize::from(u16::from_be_bytes([good[at + 2], good[at + 3]]));
        if good[at + 1] != 0xDB && good[at + 1] != 0xC4 {
            without_tables.extend(&good[at..at + len]);
        }
        at += len;
    }
    without_tables.extend(&good[at..]);
    let first = run(&p, &without_tables).map_err(|e| e.to_string());
    assert!(first.is_err(), "there are no quantisation tables");
    let mut scratch = Scratch::new();
    for bad in [&good[..30], &good[..good.len() / 2], &without_tables] {
        assert!(run_with(&p, &mut scratch, bad, ROW).is_err());
        assert!(run_with(&p, &mut scratch, &good, ROW).unwrap() == alone);
        assert_eq!(
            run_with(&p, &mut scratch, &without_tables, ROW).map_err(|e| e.to_string()),
            first
        );
    }
}

// ---- damage and hostility ----------------------------------------------------------------------

/// I4: a truncated file is an error wherever it ends, in both qualities, for any crop.
#[test]
fn i4_truncated_files_are_errors() {
    let options = JpegOptions { subsampling: tj::TJSAMP_TJSAMP_420, ..Default::default() };
    let baseline = make::jpeg(&make::scene(160, 120), 160, 120, options);
    let progressive =
        make::jpeg(&make::scene(160, 120), 160, 120, JpegOptions { progressive: true, ..options });
    let rgb = make::scene(60, 40);
    let png = rgb_png(60, 40, &rgb);
    for quality in [Quality::Exact, Quality::Fast] {
        let p = ImagePipeline::new(&MapImage { quality, ..spec(vec![rrc([16, 16])]) }, 0).unwrap();
        let mut scratch = Scratch::new();
        for file in [&baseline, &progressive, &png] {
            assert!(run_with(&p, &mut scratch, file, ROW).is_ok());
            for cut in (0..file.len()).step_by(37).chain([file.len() - 1]) {
                let e = run_with(&p, &mut scratch, &file[..cut], row(cut as u64)).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
                assert_eq!(e.location().column.as_deref(), Some("image"));
            }
        }
    }
    let p = pipeline(vec![], None);
    let cut = baseline.len() - 100;
    assert_eq!(
        run(&p, &baseline[..cut]).unwrap_err().to_string(),
        "cannot decode the JPEG: premature end of file (column image)",
    );
    assert_eq!(
        run(&p, &png[..png.len() - 20]).unwrap_err().to_string(),
        "cannot decode the PNG: premature end of file (column image)",
    );
}

/// I4: damage in the middle is an error, not gray pixels.
#[test]
fn i4_corrupt_files_are_errors() {
    let mut file = make::jpeg(
        &make::scene(160, 120),
        160,
        120,
        JpegOptions { restart_rows: 1, ..Default::default() },
    );
    let p = pipeline(vec![], None);
    assert!(run(&p, &file).is_ok());
    let middle = file.len() / 2;
    // An early end of the scan in the middle of the data.
    file[middle] = 0xFF;
    file[middle + 1] = 0xD9;
    let e = run(&p, &file).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.message().starts_with("cannot decode the JPEG: "), "{e}");

    let rgb = make::scene(60, 40);
    let mut png = rgb_png(60, 40, &rgb);
    let middle = png.len() / 2;
    png[middle] ^= 0x55;
    let e = run(&p, &png).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
}

/// What does not harm pixels is no error: bytes between segments, bytes after the end.
#[test]
fn harmless_warnings_are_none() {
    let file = make::jpeg(&make::scene(64, 48), 64, 48, JpegOptions::default());
    let p = pipeline(vec![], None);
    let (_, expected) = run(&p, &file).unwrap();
    // Behind the first segment, which is 18 bytes of JFIF.
    let mut junk = file[..20].to_vec();
    junk.extend([0, 17, 42]);
    junk.extend(&file[20..]);
    assert!(run(&p, &junk).unwrap().1 == expected);
    let mut tail = file.clone();
    tail.extend(b"trailing bytes");
    assert!(run(&p, &tail).unwrap().1 == expected);
    // But junk does not hide a premature end behind it.
    assert!(run(&p, &junk[..junk.len() - 50]).is_err());
}

/// I6: a bomb, no bytes, a text named .jpg: errors, and nothing large is allocated.
#[test]
fn i6_hostile_files_are_errors_within_limits() {
    let mut scratch = Scratch::new();
    let p = pipeline(vec![], None);
    let mut check = |bytes: &[u8], kind: ErrorKind, text: &str| {
        for e in [
            p.run(&mut scratch, bytes, ROW, &mut [0; 3]).unwrap_err(),
            p.probe(bytes, ROW).unwrap_err(),
        ] {
            assert_eq!(e.kind(), kind, "{e}");
            assert!(e.message().contains(text), "{e}");
        }
        assert!(scratch.bytes() < 1 << 20, "{}", scratch.bytes());
    };
    check(b"", ErrorKind::Corrupt, "0 bytes");
    check(b"hello, this is text", ErrorKind::Corrupt, "begin with \"hello, this \"");
    check(b"\xFF\xD8\xFF", ErrorKind::Corrupt, "premature end");
    check(b"GIF89a......", ErrorKind::Corrupt, "no frame");
    check(b"RIFF....WEBPVP8 ", ErrorKind::Corrupt, "premature end");
    check(b"BM..........", ErrorKind::Corrupt, "premature end");
    check(b"II*\0........", ErrorKind::Corrupt, "no directory");
    check(b"....ftypavif....", ErrorKind::Unsupported, "it is AVIF; read are JPEG, PNG, WebP");
    check(b"\xFF\x0A....", ErrorKind::Unsupported, "it is JPEG XL");
    // 65,500 x 65,500 pixels, in 600 bytes: the header alone.
    let mut jpeg = make::jpeg(&make::scene(16, 16), 16, 16, JpegOptions::default());
    let sof = jpeg.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    jpeg[sof + 5..sof + 9].copy_from_slice(&[0xFF, 0xDC, 0xFF, 0xDC]);
    check(&jpeg, ErrorKind::Corrupt, "65500 x 65500 pixels, more than");
    // With arithmetic coding there is no such floor; the limit holds.
    jpeg[sof + 1] = 0xC9;
    check(&jpeg, ErrorKind::Resource, "beyond the limit of 357913940");
    jpeg[sof + 5..sof + 9].copy_from_slice(&[0, 0, 0, 16]);
    check(&jpeg, ErrorKind::Corrupt, "16 x 0 pixels");
    check(
        &make::png(60000, 60000, 8, 2, &[&[0; 10]], &[]),
        ErrorKind::Corrupt,
        "60000 x 60000 pixels, more than",
    );
    check(&make::png(0, 5, 8, 2, &[], &[]), ErrorKind::Corrupt, "0 x 5 pixels");
    let mut png = make::png(4_000_000_000, 1, 8, 2, &[&[0; 10]], &[]);
    check(&png, ErrorKind::Corrupt, "pixels");
    png.truncate(20);
    check(&png, ErrorKind::Corrupt, "premature end");
}

/// Limits are the caller's to set.
#[test]
fn limits_hold_for_pictures_and_for_what_operators_make() {
    let file = rgb_png(60, 40, &make::scene(60, 40));
    let tight = |ops, pixels, bytes| {
        pipeline(ops, None).with_limits(Limits { pixels, bytes, ..Limits::default() })
    };
    assert!(run(&tight(vec![], 2400, 9600), &file).is_ok());
    let e = run(&tight(vec![], 2399, 9600), &file).unwrap_err();
    assert_eq!(e.message(), "the picture has 60 x 40 = 2400 pixels, beyond the limit of 2399");
    assert_eq!(run(&tight(vec![], 2400, 9599), &file).unwrap_err().kind(), ErrorKind::Resource);
    let e =
        run(&tight(vec![resize(&[50], Interpolation::Bilinear)], 2400, 9600), &file).unwrap_err();
    assert_eq!(
        e.message(),
        "Resize would make a picture of 75 x 50 pixels, beyond the limit of 2400"
    );
}

/// A giant does not hold its memory for the rest of the epoch.
#[test]
fn scratch_gives_giants_back() {
    let mut scratch = Scratch::new();
    let p = pipeline(vec![ImageOp::CenterCrop { size: [8, 8] }], None);
    let (w, h) = (4000u32, 3000u32);
    let giant = make::jpeg(&vec![77; (w * h) as usize * 3], w, h, JpegOptions::default());
    run_with(&p, &mut scratch, &giant, ROW).unwrap();
    assert!(scratch.bytes() < 1 << 20, "{}", scratch.bytes());
    let small = make::jpeg(&make::scene(500, 400), 500, 400, JpegOptions::default());
    run_with(&p, &mut scratch, &small, ROW).unwrap();
    let held = scratch.bytes();
    assert!(held >= 500 * 400 * 3);
    run_with(&p, &mut scratch, &small, ROW).unwrap();
    assert_eq!(scratch.bytes(), held, "the steady state allocates nothing of a picture's size");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any damage gives pixels or an error, never a panic, and the same each time.
    #[test]
    fn i4_any_damage_is_survived(
        which in 0usize..4,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        fast: bool,
    ) {
        let options = JpegOptions { subsampling: tj::TJSAMP_TJSAMP_420, ..Default::default() };
        let mut file = match which {
            0 => make::jpeg(&make::scene(48, 40), 48, 40, options),
            1 => make::jpeg(&make::scene(48, 40), 48, 40, JpegOptions { progressive: true, ..options }),
            2 => make::jpeg_with_orientation(&make::jpeg(&make::scene(48, 40), 48, 40, options), 6, true),
            _ => rgb_png(20, 10, &make::scene(20, 10)),
        };
        for (at, value) in edits {
            let at = at.index(file.len());
            file[at] = value;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let quality = if fast { Quality::Fast } else { Quality::Exact };
        let p = ImagePipeline::new(&MapImage { quality, ..spec(vec![rrc([9, 8]), flip(0.5)]) }, 0).unwrap();
        // A damaged header may ask for much; what is asked here is bounded.
        let p = p.with_limits(Limits { pixels: 1 << 22, bytes: 1 << 24, ..Limits::default() });
        let mut out = vec![0; 9 * 8 * 4];
        let mut once = || {
            let channels = p.probe(&file, ROW).map_or(3, |probe| probe.channels);
            p.run(&mut Scratch::new(), &file, ROW, &mut out[..9 * 8 * channels])
                .map(|w| (w, out.clone()))
                .map_err(|e| e.to_string())
        };
        prop_assert_eq!(once(), once());
    }
}

// ---- real files --------------------------------------------------------------------------------

/// Unusual, damaged and hostile files give pixels or an error, in every mode and quality.
#[test]
fn odd_images_give_pixels_or_an_error() {
    let Some(files) = data("odd-images") else { return };
    let mut scratch = Scratch::new();
    let mut refused = Vec::new();
    for (name, bytes) in &files {
        for mode in [None, Some(ImageMode::Rgb), Some(ImageMode::L), Some(ImageMode::Rgba)] {
            for quality in [Quality::Exact, Quality::Fast] {
                let p =
                    ImagePipeline::new(&MapImage { mode, quality, ..spec(vec![rrc([16, 16])]) }, 0)
                        .unwrap();
                let done = run_with(&p, &mut scratch, bytes, ROW);
                if let Err(e) = &done {
                    assert_ne!(e.kind(), ErrorKind::Internal, "{name}: {e}");
                    if mode.is_none() && quality == Quality::Exact {
                        refused.push(format!("{name}: {}", e.message()));
                    }
                }
            }
        }
    }
    let names: Vec<&str> = refused.iter().filter_map(|r| r.split(':').next()).collect();
    // TIFFs of kinds that are not read, and damaged files.
    let of =
        |ending: &[&str]| names.iter().filter(|n| ending.iter().any(|e| n.ends_with(e))).count();
    assert_eq!(of(&[".tif", ".tiff"]), 13, "{refused:#?}");
    assert_eq!(of(&[".bmp"]), 9, "{refused:#?}");
    assert_eq!(of(&[".png"]), 2, "{refused:#?}");
    assert_eq!(names.len(), 24, "{refused:#?}");
}

/// The partial decode, the shrinking and the fast upsampling stay near the full decode: a mean below
/// 2 of 255, for every picture.
#[test]
fn fast_stays_near_exact_on_photographs() {
    let Some(files) = data("photos") else { return };
    let chains = [
        (
            "evaluation",
            vec![resize(&[256], Interpolation::Bilinear), ImageOp::CenterCrop { size: [224, 224] }],
        ),
        ("training", vec![rrc([224, 224]), flip(0.5)]),
        (
            "small",
            vec![resize(&[64], Interpolation::Bilinear), ImageOp::CenterCrop { size: [56, 56] }],
        ),
    ];
    for (name, ops) in chains {
        let (mut sum, mut worst, mut n) = (0.0, 0.0f64, 0.0);
        let mut scratch = Scratch::new();
        for (i, (_, bytes)) in files.iter().enumerate().step_by(4) {
            let run = |scratch: &mut Scratch, quality| {
                let spec = MapImage { quality, mode: Some(ImageMode::Rgb), ..spec(ops.clone()) };
                run_with(&ImagePipeline::new(&spec, 0).unwrap(), scratch, bytes, row(i as u64))
                    .unwrap()
                    .1
            };
            let (exact, fast) =
                (run(&mut scratch, Quality::Exact), run(&mut scratch, Quality::Fast));
            let (mean, _) = mean_and_max(&exact, &fast);
            sum += mean;
            worst = worst.max(mean);
            n += 1.0;
        }
        eprintln!("{name}: mean {:.3}, worst picture {worst:.3}", sum / n);
        assert!(sum / n < 0.6 && worst < 2.0, "{name}: {} {worst}", sum / n);
    }
}
