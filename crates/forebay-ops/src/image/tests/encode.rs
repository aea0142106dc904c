//! Pictures written back: what is encoded is what the chain makes, and nothing else shows in it.

use forebay_plan::{Encoding, Subsampling};

use super::*;

fn encoder(ops: &[ImageOp], encoding: Encoding, quality: Quality) -> ImagePipeline {
    let ops = [ops, &[ImageOp::encode_image(encoding)]].concat();
    ImagePipeline::new(&MapImage { quality, ..MapImage::new("image", ops) }, 0).unwrap()
}

#[track_caller]
fn encode(p: &ImagePipeline, scratch: &mut Scratch, bytes: &[u8]) -> Vec<u8> {
    let mut out = b"before".to_vec();
    let written = p.encode(scratch, bytes, ROW, &mut out).unwrap();
    assert_eq!(p.probe(bytes, ROW).unwrap(), written);
    out.split_off(6)
}

fn jpeg_settings(
    quality: u8,
    subsampling: Subsampling,
    progressive: bool,
    optimize: bool,
) -> Encoding {
    Encoding::Jpeg { quality, subsampling, progressive, optimize }
}

const LOSSLESS: Encoding = Encoding::WebP { quality: 50, lossless: true, method: 0, exact: true };

/// Files of every mode: JPEGs, whose pixels may come with a fourth byte, one that was held askew, and
/// PNGs with opacity and gray.
fn files() -> Vec<Vec<u8>> {
    let (w, h) = (61, 47);
    let scene = make::scene(w, h);
    let colour = make::jpeg(&scene, w, h, JpegOptions::default());
    let gray: Vec<u8> = scene.chunks(3).map(|p| p[1]).collect();
    let opacity: Vec<u8> =
        scene.chunks(3).flat_map(|p| [p[0], p[1], p[2], p[0] / 128 * 255]).collect();
    let rows = |pixels: &[u8], channels: usize, color: u8| {
        let rows: Vec<&[u8]> = pixels.chunks(w as usize * channels).collect();
        make::png(w, h, 8, color, &rows, &[])
    };
    vec![
        make::jpeg_with_orientation(&colour, 6, true),
        colour,
        rows(&gray, 1, 0),
        rows(&scene, 3, 2),
        rows(&opacity, 4, 6),
    ]
}

fn chains() -> Vec<Vec<ImageOp>> {
    let resize = || resize(&[20], Interpolation::Bilinear);
    vec![
        vec![],
        vec![resize()],
        vec![resize(), ImageOp::center_crop([15, 11])],
        vec![flip(1.0)],
        vec![resize(), flip(1.0)],
        vec![ImageOp::center_crop([30, 20]), flip(1.0)],
        vec![ImageOp::center_crop([30, 20])],
        vec![ImageOp::center_crop([70, 70])],
        vec![resize(), ImageOp::RandomVerticalFlip { p: 1.0 }],
        vec![rrc([16, 24]), ImageOp::RandomInvert { p: 1.0 }],
        vec![ImageOp::random_erasing(), resize()],
    ]
}

#[test]
fn lossless_files_hold_what_the_chain_makes() {
    let mut scratch = Scratch::new();
    for quality in [Quality::Fast, Quality::Exact] {
        for ops in chains() {
            let plain = ImagePipeline::new(&MapImage { quality, ..spec(ops.clone()) }, 0).unwrap();
            for file in files() {
                let (written, want) = run(&plain, &file).unwrap();
                for encoding in [Encoding::png(), LOSSLESS] {
                    let p = encoder(&ops, encoding, quality);
                    let made = encode(&p, &mut scratch, &file);
                    let (mode, size, got) = pixels(&made, Some(written.mode));
                    assert_eq!((mode, size), (written.mode, [written.height, written.width]));
                    assert!(got == want, "{encoding:?} {ops:?} {quality:?}");
                }
            }
        }
    }
}

/// However pixels lie, with a fourth byte or in a part of their buffer: the same JPEG as of the same
/// pixels without gaps.
#[test]
fn lossy_files_are_those_of_the_same_pixels() {
    let mut scratch = Scratch::new();
    for ops in chains() {
        for file in files() {
            let p = encoder(&ops, Encoding::png(), Quality::Fast);
            let still = encode(&p, &mut scratch, &file);
            let opaque = p.probe(&file, ROW).unwrap().mode != ImageMode::Rgba;
            let lossy = [Encoding::jpeg().with_quality(85), Encoding::webp()];
            for encoding in lossy.into_iter().filter(|e| opaque || e.takes(ImageMode::Rgba)) {
                let direct = encode(&encoder(&ops, encoding, Quality::Fast), &mut scratch, &file);
                let plain = encode(&encoder(&[], encoding, Quality::Fast), &mut scratch, &still);
                assert!(direct == plain, "{encoding:?} {ops:?}");
            }
        }
    }
}

/// One compressor for pictures of all kinds gives the bytes that a new one gives.
#[test]
fn nothing_of_one_picture_shows_in_the_next() {
    let mut scratch = Scratch::new();
    let settings = [
        jpeg_settings(95, Subsampling::S444, false, true),
        jpeg_settings(20, Subsampling::S420, false, false),
        jpeg_settings(75, Subsampling::S422, true, false),
        jpeg_settings(75, Subsampling::S420, false, false),
        Encoding::png(),
        Encoding::webp(),
    ];
    let ops = [ImageOp::center_crop([33, 41])];
    let pipelines = settings.map(|encoding| encoder(&ops, encoding, Quality::Fast));
    let files: Vec<_> = files().into_iter().take(4).collect();
    let mut sizes = Vec::new();
    for _ in 0..2 {
        for p in &pipelines {
            for file in &files {
                let made = encode(p, &mut scratch, file);
                assert!(made == encode(p, &mut Scratch::new(), file), "{:?}", p.encoding());
                sizes.push(made.len());
            }
        }
    }
    let (first, second) = sizes.split_at(sizes.len() / 2);
    assert_eq!(first, second);
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let mut scratch = Scratch::new();
    let mut refused = |encoding, file: &[u8], kind, text: &str| {
        let mut out = b"before".to_vec();
        let p = encoder(&[], encoding, Quality::Fast);
        let error = p.encode(&mut scratch, file, ROW, &mut out).unwrap_err();
        assert_eq!((error.kind(), out.as_slice()), (kind, &b"before"[..]), "{error:?}");
        assert!(error.message().contains(text), "{error:?}");
        assert_eq!(error.location().column.as_deref(), Some("image"));
    };
    let opacity = files().pop().unwrap();
    refused(Encoding::jpeg(), &opacity, ErrorKind::InvalidInput, "JPEG has no opacity");
    let wide = |w: u32| make::png(w, 1, 8, 0, &[&vec![7; w as usize]], &[]);
    let (jpeg, webp) = (Encoding::jpeg(), Encoding::webp());
    refused(jpeg, &wide(65_501), ErrorKind::InvalidInput, "65501 x 1");
    refused(webp, &wide(16_384), ErrorKind::InvalidInput, "16384 x 1");
    refused(webp, b"", ErrorKind::Corrupt, "0 bytes");
    encode(&encoder(&[], jpeg, Quality::Fast), &mut scratch, &wide(65_500));
    encode(&encoder(&[], webp, Quality::Fast), &mut scratch, &wide(16_383));

    // Known before any picture is.
    let ops = vec![resize(&[16_384, 2], Interpolation::Bilinear), ImageOp::encode_image(webp)];
    let error = ImagePipeline::new(&MapImage::new("image", ops), 0).unwrap_err();
    assert_eq!(error.place(), Some("map_image.ops[1].encode_image"));
}

/// Sizes that say more than there is never reach the libraries.
#[test]
fn pixels_are_held_against_their_size() {
    use crate::image::libwebp::{self, Unwritten, WebPSettings};
    use crate::image::turbo::{Compressor, Lines, Settings};

    let settings = Settings { quality: 75, share: (2, 2), progressive: false, optimize: false };
    let webp = WebPSettings { quality: 75, lossless: false, method: 0, exact: false };
    let pixels = [0; 4 * 3 * 3];
    let lines = |width, height, pitch, step| Lines { width, height, pitch, step };
    for wrong in [
        lines(4, 4, 12, 3),
        lines(4, 3, 13, 3),
        lines(5, 3, 12, 3),
        lines(0, 3, 12, 3),
        lines(4, 0, 12, 3),
        lines(4, 3, 12, 2),
        lines(u32::MAX, u32::MAX, usize::MAX, 3),
    ] {
        let mut out = vec![0; 10_000];
        let made = Compressor::new().unwrap().compress(&pixels, &wrong, &settings, &mut out);
        assert!(made.is_err(), "{wrong:?}");
        let made = libwebp::encode(&pixels, &wrong, 3, webp, &mut out);
        assert_eq!(made, Err(Unwritten::Defect(0)), "{wrong:?}");
    }
    // A buffer that is too small is an error, not a write beyond it.
    let right = lines(4, 3, 12, 3);
    let mut small = [0; 64];
    assert!(Compressor::new().unwrap().compress(&pixels, &right, &settings, &mut small).is_err());
}
