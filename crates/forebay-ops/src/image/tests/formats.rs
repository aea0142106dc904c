//! Known answers for WebP, GIF, BMP and TIFF. The expected values are those of Pillow 13.

use super::super::{image_frames, image_info};
use super::*;

use ImageMode::{L, Rgb, Rgba};

/// A file's own mode, and its pixels in this and other modes.
#[track_caller]
fn check(file: &[u8], natural: ImageMode, size: [usize; 2], expected: &[(ImageMode, &[u8])]) {
    let (mode, found, own) = pixels(file, None);
    assert_eq!((mode, found), (natural, size));
    let info = image_info(file).unwrap();
    assert_eq!((info.mode, [info.height as usize, info.width as usize]), (mode, found));
    for (mode, expected) in expected {
        assert_eq!(&pixels(file, Some(*mode)).2, expected, "{}", mode.name());
        if *mode == natural {
            assert_eq!(&own, expected);
        }
    }
}

#[track_caller]
fn refused(file: &[u8], kind: ErrorKind, text: &str) {
    let e = run(&pipeline(vec![], None), file).unwrap_err();
    assert_eq!(e.kind(), kind, "{e}");
    assert!(e.message().contains(text), "{e}");
}

// ---- GIF ---------------------------------------------------------------------------------------

/// A GIF of one frame at a place of its screen, its LZW codes of 9 bits as they come.
fn gif(
    screen: [u16; 2],
    at: [u16; 4],
    palette: &[u8],
    transparent: Option<u8>,
    pixels: &[u8],
) -> Vec<u8> {
    let mut file = b"GIF89a".to_vec();
    file.extend(screen.iter().flat_map(|v| v.to_le_bytes()));
    let bits = (palette.len() / 3).next_power_of_two().trailing_zeros().max(1) as u8;
    file.extend([0x80 | (bits - 1), 0, 0]);
    file.extend(palette);
    file.resize(13 + (3 << bits), 0);
    if let Some(index) = transparent {
        file.extend([b'!', 0xF9, 4, 1, 0, 0, index, 0]);
    }
    file.push(b',');
    file.extend(at.iter().flat_map(|v| v.to_le_bytes()));
    file.extend([0, 8]);
    let codes = pixels
        .chunks(100)
        .flat_map(|run| std::iter::once(256u32).chain(run.iter().map(|&v| u32::from(v))));
    let (mut data, mut held, mut count) = (Vec::new(), 0u32, 0);
    for code in codes.chain([257]) {
        held |= code << count;
        count += 9;
        while count >= 8 {
            data.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    data.push(held as u8);
    for piece in data.chunks(255) {
        file.push(piece.len() as u8);
        file.extend(piece);
    }
    file.extend([0, b';']);
    file
}

/// I3, I6: the first frame of a GIF.
#[test]
fn gif_as_pillow_shows_its_first_frame() {
    let palette = [10, 20, 30, 40, 50, 60];
    let file = gif([4, 1], [0, 0, 4, 1], &palette, None, &[0, 1, 2, 200]);
    let rgb = [10, 20, 30, 40, 50, 60, 0, 0, 0, 0, 0, 0];
    check(&file, Rgb, [1, 4], &[(Rgb, &rgb), (L, &[18, 48, 0, 0])]);
    assert_eq!(image_frames(&file, &Limits::default()).unwrap(), 1);
    // A transparent colour.
    let file = gif([3, 1], [0, 0, 3, 1], &palette, Some(1), &[0, 1, 0]);
    let rgba = [10, 20, 30, 255, 40, 50, 60, 0, 10, 20, 30, 255];
    check(&file, Rgba, [1, 3], &[(Rgba, &rgba), (L, &[18, 48, 18])]);
    // A gray palette: the transparent colour counts where opacity is asked for.
    let file = gif([3, 1], [0, 0, 3, 1], &[0, 0, 0, 1, 1, 1], Some(1), &[0, 1, 0]);
    check(&file, L, [1, 3], &[(L, &[0, 1, 0]), (Rgba, &[0, 0, 0, 255, 1, 1, 1, 0, 0, 0, 0, 255])]);
    // A frame that is smaller than the screen, and one that reaches beyond it.
    let file = gif([3, 2], [1, 1, 2, 1], &palette, None, &[0, 1]);
    let (a, b) = ([10, 20, 30], [40, 50, 60]);
    check(&file, Rgb, [2, 3], &[(Rgb, &[a, a, a, a, a, b].concat())]);
    let file = gif([1, 1], [1, 0, 1, 2], &palette, None, &[1, 1]);
    check(&file, Rgb, [2, 2], &[(Rgb, &[a, b, a, b].concat())]);
    let file = gif([2, 1], [1, 0, 1, 1], &palette, Some(200), &[1]);
    check(&file, Rgba, [1, 2], &[(Rgba, &[0, 0, 0, 0, 40, 50, 60, 255])]);
}

#[test]
fn gif_damage_and_bombs_are_errors() {
    let file = gif([4, 2], [0, 0, 4, 2], &[1, 2, 3, 4, 5, 6], None, &[0; 8]);
    for cut in 0..file.len() - 3 {
        assert!(run(&pipeline(vec![], None), &file[..cut]).is_err(), "{cut}");
    }
    let short = gif([4, 2], [0, 0, 4, 2], &[1, 2, 3, 4, 5, 6], None, &[0; 5]);
    assert!(run(&pipeline(vec![], None), &short).is_err());
    let bomb = gif([9000, 9000], [0, 0, 9000, 9000], &[1, 2, 3, 4, 5, 6], None, &[0; 5]);
    refused(&bomb, ErrorKind::Corrupt, "9000 x 9000 pixels, more than");
    let wide = gif([65535, 65535], [0, 0, 4, 2], &[1, 2, 3, 4, 5, 6], None, &[0; 8]);
    refused(&wide, ErrorKind::Resource, "beyond the limit of 357913940");
    // Frames are walked only to be counted, and no further than the limit.
    let mut many = file[..file.len() - 1].to_vec();
    let frame = file[13 + 6..file.len() - 1].to_vec();
    (0..99).for_each(|_| many.extend(&frame));
    many.push(b';');
    let limits = |frames| Limits { frames, ..Limits::default() };
    assert_eq!(image_frames(&many, &limits(100)).unwrap(), 100);
    let e = image_frames(&many, &limits(99)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Resource);
    assert!(run(&pipeline(vec![], None).with_limits(limits(1)), &many).is_ok());
}

// ---- BMP ---------------------------------------------------------------------------------------

/// A BMP of Windows 3, with what stands between header and pixels.
fn bmp(w: i32, h: i32, bits: u16, compression: u32, between: &[u8], data: &[u8]) -> Vec<u8> {
    let start = 54 + between.len() as u32;
    let mut file = b"BM".to_vec();
    for word in [start + data.len() as u32, 0, start, 40, w as u32, h as u32] {
        file.extend(word.to_le_bytes());
    }
    file.extend([1, 0]);
    file.extend(bits.to_le_bytes());
    let colors = if bits <= 8 { between.len() as u32 / 4 } else { 0 };
    for word in [compression, data.len() as u32, 0, 0, colors, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(between);
    file.extend(data);
    file
}

/// I3: BMPs of every kind, from bottom to top and from top to bottom.
#[test]
fn bmp_of_every_kind() {
    let colors = [30, 20, 10, 0, 60, 50, 40, 0];
    let (a, b) = ([10, 20, 30], [40, 50, 60]);
    // 8 bits; rows have four bytes.
    let file = bmp(2, 2, 8, 0, &colors, &[0, 1, 0, 0, 1, 1, 0, 0]);
    check(&file, Rgb, [2, 2], &[(Rgb, &[b, b, a, b].concat()), (L, &[48, 48, 18, 48])]);
    let file = bmp(2, -2, 8, 0, &colors, &[0, 1, 0, 0, 1, 1, 0, 0]);
    check(&file, Rgb, [2, 2], &[(Rgb, &[a, b, b, b].concat())]);
    // Black and white, and gray.
    let file = bmp(3, 1, 1, 0, &[0, 0, 0, 0, 255, 255, 255, 0], &[0b0100_0000, 0, 0, 0]);
    check(&file, L, [1, 3], &[(L, &[0, 255, 0])]);
    let gray: Vec<u8> = (0..=255u8).flat_map(|v| [v, v, v, 0]).collect();
    let file = bmp(3, 1, 8, 0, &gray, &[7, 200, 0, 0]);
    check(
        &file,
        L,
        [1, 3],
        &[(L, &[7, 200, 0]), (Rgba, &[7, 7, 7, 255, 200, 200, 200, 255, 0, 0, 0, 255])],
    );
    // 4 bits.
    let file = bmp(3, 1, 4, 0, &colors, &[0x01, 0x10, 0, 0]);
    check(&file, Rgb, [1, 3], &[(Rgb, &[a, b, b].concat())]);
    // 24 and 32 bits; the fourth byte is no opacity.
    let file = bmp(1, 1, 24, 0, &[], &[3, 2, 1, 0]);
    check(&file, Rgb, [1, 1], &[(Rgb, &[1, 2, 3])]);
    let file = bmp(1, 1, 32, 0, &[], &[3, 2, 1, 9]);
    check(&file, Rgb, [1, 1], &[(Rgb, &[1, 2, 3]), (Rgba, &[1, 2, 3, 255])]);
    // 16 bits.
    let file = bmp(2, 1, 16, 0, &[], &[0x1F, 0, 0, 0x7C]);
    check(&file, Rgb, [1, 2], &[(Rgb, &[0, 0, 255, 255, 0, 0])]);
    // Run lengths, and what they leave out.
    let runs = [2, 1, 0, 0, 1, 1, 0, 1];
    check(&bmp(2, 2, 8, 1, &colors, &runs), Rgb, [2, 2], &[(Rgb, &[b, a, b, b].concat())]);
    check(&bmp(2, -2, 8, 1, &colors, &runs), Rgb, [2, 2], &[(Rgb, &[b, b, b, a].concat())]);
}

#[test]
fn bmp_damage_and_bombs_are_errors() {
    let colors = [30, 20, 10, 0, 60, 50, 40, 0];
    let file = bmp(2, 2, 8, 0, &colors, &[0, 1, 0, 0, 1, 1]);
    assert!(run(&pipeline(vec![], None), &file).is_ok(), "the last row's padding may be missing");
    for cut in 0..file.len() {
        assert!(run(&pipeline(vec![], None), &file[..cut]).is_err(), "{cut}");
    }
    refused(&bmp(30_000, 10_000, 24, 0, &[], &[0; 99]), ErrorKind::Corrupt, "premature end");
    refused(&bmp(30_000, 10_000, 8, 1, &colors, &[0; 99]), ErrorKind::Corrupt, "more than");
    refused(&bmp(0, 1, 24, 0, &[], &[0; 99]), ErrorKind::Corrupt, "0 x 1 pixels");
    refused(&bmp(1, 1, 24, 4, &[], &[0; 99]), ErrorKind::Unsupported, "it holds a JPEG");
    refused(&bmp(1, 1, 7, 0, &[], &[0; 99]), ErrorKind::Unsupported, "7 bits a pixel");
    refused(&bmp(1, 1, 16, 3, &[1; 12], &[0; 99]), ErrorKind::Unsupported, "bit fields");
}

// ---- WebP --------------------------------------------------------------------------------------

/// A lossless WebP of RGBA pixels.
fn webp(rgba: &[u8], w: u32, h: u32) -> Vec<u8> {
    assert_eq!(rgba.len(), (w * h * 4) as usize);
    let mut file = std::ptr::null_mut();
    // SAFETY: the pixels are w * h * 4 bytes; the result is copied before it is freed.
    unsafe {
        let length = libwebp_sys::WebPEncodeLosslessRGBA(
            rgba.as_ptr(),
            w as i32,
            h as i32,
            w as i32 * 4,
            &mut file,
        );
        assert!(length > 0);
        let copy = std::slice::from_raw_parts(file, length).to_vec();
        libwebp_sys::WebPFree(file.cast());
        copy
    }
}

fn riff(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for (kind, data) in chunks {
        body.extend(*kind);
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(data);
        body.resize(body.len() + data.len() % 2, 0);
    }
    [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
}

/// The header of an extended file.
fn vp8x(flags: u8, w: u32, h: u32) -> Vec<u8> {
    let size = |v: u32| (v - 1).to_le_bytes()[..3].to_vec();
    [&[flags, 0, 0, 0][..], &size(w), &size(h)].concat()
}

const ABC_DEF: [u8; 24] = {
    let mut pixels = [255; 24];
    let text = b"abcdef";
    let mut i = 0;
    while i < 6 {
        pixels[4 * i] = text[i];
        pixels[4 * i + 1] = text[i];
        pixels[4 * i + 2] = text[i];
        i += 1;
    }
    pixels
};

#[test]
fn webp_with_and_without_opacity() {
    let opaque = [1, 2, 3, 255, 4, 5, 6, 255];
    check(
        &webp(&opaque, 2, 1),
        Rgb,
        [1, 2],
        &[(Rgb, &[1, 2, 3, 4, 5, 6]), (Rgba, &opaque), (L, &[2, 5])],
    );
    let clear = [1, 2, 3, 7, 4, 5, 6, 255];
    check(&webp(&clear, 2, 1), Rgba, [1, 2], &[(Rgba, &clear), (Rgb, &[1, 2, 3, 4, 5, 6])]);
}

/// I2: a WebP is turned as its EXIF says.
#[test]
fn i2_webp_is_turned() {
    let still = webp(&ABC_DEF, 3, 2)[20..].to_vec();
    for (tag, rows) in TURNED {
        let chunks = [
            (b"VP8X", vp8x(8, 3, 2)),
            (b"VP8L", still.clone()),
            (b"EXIF", make::exif(tag, tag % 2 == 0)),
        ];
        let file = riff(&chunks);
        let (_, size, out) = pixels(&file, Some(L));
        assert_eq!(size, [rows.len(), rows[0].len()], "{tag}");
        assert_eq!(String::from_utf8(out).unwrap(), rows.concat(), "{tag}");
        let info = image_info(&file).unwrap();
        assert_eq!([info.height as usize, info.width as usize], size);
    }
}

#[test]
fn webp_animations_show_their_first_frame() {
    let still = &webp(&[1, 2, 3, 255, 4, 5, 6, 255], 2, 1)[12..];
    let frame = |x: u8| {
        let mut frame = vec![x, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0];
        frame.extend(still);
        (b"ANMF", frame)
    };
    let file = riff(&[(b"VP8X", vp8x(0x12, 4, 3)), (b"ANIM", vec![0; 6]), frame(0), frame(1)]);
    let mut rgba = vec![0; 4 * 3 * 4];
    rgba[2 * 16..][..8].copy_from_slice(&[1, 2, 3, 255, 4, 5, 6, 255]);
    check(&file, Rgba, [3, 4], &[(Rgba, &rgba)]);
    assert_eq!(image_frames(&file, &Limits::default()).unwrap(), 2);
    let outside = riff(&[(b"VP8X", vp8x(0x12, 4, 3)), (b"ANIM", vec![0; 6]), frame(2)]);
    refused(&outside, ErrorKind::Corrupt, "outside of its canvas");
}

#[test]
fn webp_damage_and_bombs_are_errors() {
    let file = webp(&ABC_DEF, 3, 2);
    for cut in 0..file.len() - 1 {
        assert!(run(&pipeline(vec![], None), &file[..cut]).is_err(), "{cut}");
    }
    let still = file[20..].to_vec();
    let other = riff(&[(b"VP8X", vp8x(0, 30, 20)), (b"VP8L", still.clone())]);
    refused(&other, ErrorKind::Corrupt, "damaged");
    let giant = riff(&[(b"VP8X", vp8x(0, 1 << 24, 1 << 24)), (b"VP8L", still)]);
    refused(&giant, ErrorKind::Resource, "beyond the limit");
}

// ---- TIFF --------------------------------------------------------------------------------------

/// A TIFF of one page: tags with values, and pixels of one strip, or of the parts given.
fn tiff(big: bool, tags: &[(u16, &[u32])], parts: &[&[u8]]) -> Vec<u8> {
    let word = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let half = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut file = if big { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
    let is_tiled = tags.iter().any(|(tag, _)| *tag == 322);
    let mut offsets = Vec::new();
    file.extend([0; 4]);
    for part in parts {
        offsets.push(file.len() as u32);
        file.extend(*part);
    }
    let lengths: Vec<u32> = parts.iter().map(|p| p.len() as u32).collect();
    let mut tags: Vec<(u16, Vec<u32>)> = tags.iter().map(|(t, v)| (*t, v.to_vec())).collect();
    tags.push((if is_tiled { 324 } else { 273 }, offsets));
    tags.push((if is_tiled { 325 } else { 279 }, lengths));
    tags.sort();
    let mut entries = Vec::new();
    for (tag, values) in &tags {
        // ExtraSamples are SHORT and JPEG's tables bytes; LONG will do for all others.
        let (kind, mut bytes): (u16, Vec<u8>) = match tag {
            338 => (3, values.iter().flat_map(|&v| half(v as u16)).collect()),
            347 => (7, values.iter().map(|&v| v as u8).collect()),
            _ => (4, values.iter().flat_map(|&v| word(v)).collect()),
        };
        bytes.resize(bytes.len().max(4), 0);
        entries.extend(half(*tag));
        entries.extend(half(kind));
        entries.extend(word(values.len() as u32));
        if bytes.len() == 4 {
            entries.extend(bytes);
        } else {
            entries.extend(word(file.len() as u32));
            file.extend(bytes);
        }
    }
    let at = word(file.len() as u32);
    file[4..8].copy_from_slice(&at);
    file.extend(half(tags.len() as u16));
    file.extend(entries);
    file.extend([0; 4]);
    file
}

/// Size, bits, meaning of the samples, and their number.
fn base(w: u32, h: u32, bits: u32, photometric: u32, samples: u32) -> Vec<(u16, Vec<u32>)> {
    vec![
        (256, vec![w]),
        (257, vec![h]),
        (258, vec![bits]),
        (262, vec![photometric]),
        (277, vec![samples]),
    ]
}

fn with(
    mut tags: Vec<(u16, Vec<u32>)>,
    more: &[(u16, &[u32])],
    big: bool,
    parts: &[&[u8]],
) -> Vec<u8> {
    tags.extend(more.iter().map(|(t, v)| (*t, v.to_vec())));
    let tags: Vec<(u16, &[u32])> = tags.iter().map(|(t, v)| (*t, v.as_slice())).collect();
    tiff(big, &tags, parts)
}

/// I1, I3: TIFFs of every kind that is read, in both byte orders.
#[test]
fn tiff_of_every_kind() {
    for big in [false, true] {
        let words = |values: &[u16]| -> Vec<u8> {
            let bytes = |v: &u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
            values.iter().flat_map(bytes).collect()
        };
        // Bits, both ways round, and from the lowest on.
        let file = with(base(3, 2, 1, 1, 1), &[], big, &[&[0b0100_0000, 0b1010_0000]]);
        check(&file, L, [2, 3], &[(L, &[0, 255, 0, 255, 0, 255])]);
        let file = with(base(3, 1, 1, 0, 1), &[], big, &[&[0b0100_0000]]);
        check(&file, L, [1, 3], &[(L, &[255, 0, 255])]);
        let file = with(base(3, 1, 1, 1, 1), &[(266, &[2])], big, &[&[0b0000_0001]]);
        check(&file, L, [1, 3], &[(L, &[255, 0, 0])]);
        // Gray of 2, 4, 8 and 16 bits.
        let file = with(base(4, 1, 2, 1, 1), &[], big, &[&[0b0001_1011]]);
        check(&file, L, [1, 4], &[(L, &[0, 85, 170, 255])]);
        let file = with(base(3, 1, 4, 0, 1), &[], big, &[&[0x0F, 0x10]]);
        check(&file, L, [1, 3], &[(L, &[255, 0, 238])]);
        let file = with(base(2, 1, 8, 1, 1), &[], big, &[&[7, 200]]);
        check(&file, L, [1, 2], &[(L, &[7, 200]), (Rgb, &[7, 7, 7, 200, 200, 200])]);
        let file = with(base(3, 1, 16, 1, 1), &[], big, &[&words(&[7, 255, 40000])]);
        check(&file, L, [1, 3], &[(L, &[7, 255, 255])]);
        // Gray with opacity.
        let file = with(base(1, 1, 8, 1, 2), &[(338, &[2])], big, &[&[7, 200]]);
        check(&file, Rgba, [1, 1], &[(Rgba, &[7, 7, 7, 200]), (L, &[7])]);
        // A palette.
        let map: Vec<u32> =
            [10, 40, 0, 0, 20, 50, 0, 0, 30, 60, 0, 0].map(|v: u32| v << 8).to_vec();
        let file = with(base(2, 1, 2, 3, 1), &[(320, &map)], big, &[&[0b0100_0000]]);
        check(&file, Rgb, [1, 2], &[(Rgb, &[40, 50, 60, 10, 20, 30])]);
        // RGB, with opacity, straight and multiplied, and with a sample that means nothing.
        let file = with(base(1, 1, 8, 2, 3), &[], big, &[&[1, 2, 3]]);
        check(&file, Rgb, [1, 1], &[(Rgb, &[1, 2, 3])]);
        let file = with(base(1, 1, 8, 2, 4), &[(338, &[2])], big, &[&[1, 2, 3, 4]]);
        check(&file, Rgba, [1, 1], &[(Rgba, &[1, 2, 3, 4])]);
        let file =
            with(base(2, 1, 8, 2, 4), &[(338, &[1])], big, &[&[10, 20, 30, 100, 1, 2, 3, 0]]);
        check(&file, Rgba, [1, 2], &[(Rgba, &[25, 51, 76, 100, 0, 0, 0, 0])]);
        let file = with(base(1, 1, 8, 2, 4), &[(338, &[0])], big, &[&[1, 2, 3, 4]]);
        check(&file, Rgb, [1, 1], &[(Rgba, &[1, 2, 3, 255])]);
        let file = with(base(1, 1, 16, 2, 3), &[], big, &[&words(&[0x1234, 0x00FF, 0xFFFF])]);
        check(&file, Rgb, [1, 1], &[(Rgb, &[0x12, 0, 0xFF])]);
        // CMYK.
        let file = with(base(1, 1, 8, 5, 4), &[], big, &[&[200, 100, 50, 10]]);
        check(&file, Rgb, [1, 1], &[(Rgb, &[53, 149, 197])]);
        // Strips, planes, tiles with a part beyond the edge, and planes of tiles.
        let file = with(base(2, 3, 8, 1, 1), &[(278, &[2])], big, &[&[1, 2, 3, 4], &[5, 6]]);
        check(&file, L, [3, 2], &[(L, &[1, 2, 3, 4, 5, 6])]);
        let file = with(base(2, 1, 8, 2, 3), &[(284, &[2])], big, &[&[1, 2], &[3, 4], &[5, 6]]);
        check(&file, Rgb, [1, 2], &[(Rgb, &[1, 3, 5, 2, 4, 6])]);
        let tile = |first: u8| (0..16).map(|i| first + i).collect::<Vec<u8>>();
        let tiles = [(322, &[4u32][..]), (323, &[4])];
        let file = with(base(5, 3, 8, 1, 1), &tiles, big, &[&tile(0), &tile(100)]);
        check(&file, L, [3, 5], &[(L, &[0, 1, 2, 3, 100, 4, 5, 6, 7, 104, 8, 9, 10, 11, 108])]);
        let planes = [(322, &[4u32][..]), (323, &[4]), (284, &[2])];
        let file = with(base(1, 2, 8, 2, 3), &planes, big, &[&tile(0), &tile(50), &tile(100)]);
        check(&file, Rgb, [2, 1], &[(Rgb, &[0, 50, 100, 4, 54, 104])]);
        // PackBits: three 7s, then 1 and 2 as they are.
        let file = with(base(5, 1, 8, 1, 1), &[(259, &[32773])], big, &[&[0xFE, 7, 1, 1, 2]]);
        check(&file, L, [1, 5], &[(L, &[7, 7, 7, 1, 2])]);
    }
}

/// I2: a TIFF is turned as its own tag says.
#[test]
fn i2_tiff_is_turned() {
    for (tag, rows) in TURNED {
        let file = with(base(3, 2, 8, 1, 1), &[(274, &[u32::from(tag)])], false, &[b"abcdef"]);
        let (_, size, out) = pixels(&file, None);
        assert_eq!(size, [rows.len(), rows[0].len()], "{tag}");
        assert_eq!(String::from_utf8(out).unwrap(), rows.concat(), "{tag}");
    }
}

/// JPEG within TIFF: the colours are what the TIFF says, and tables may be shared.
#[test]
fn tiff_of_jpegs() {
    let rgb = make::scene(32, 16);
    let words = |bytes: &[u8]| bytes.iter().map(|&b| u32::from(b)).collect::<Vec<u32>>();
    for (space, photometric) in [(Space::YCbCr, 6), (Space::Rgb, 2)] {
        let jpeg = make::jpeg(&rgb, 32, 16, JpegOptions { space, ..Default::default() });
        let file = with(base(32, 16, 8, photometric, 3), &[(259, &[7])], false, &[&jpeg]);
        let (mode, size, out) = pixels(&file, None);
        assert_eq!((mode, size), (Rgb, [16, 32]));
        assert_eq!(out, pixels(&jpeg, None).2);
    }
    let jpeg = make::jpeg(&rgb, 32, 16, JpegOptions::default());
    let wrong = with(base(33, 16, 8, 6, 3), &[(259, &[7])], false, &[&jpeg]);
    refused(&wrong, ErrorKind::Corrupt, "a part of 33 x 16 pixels holds a JPEG of 32 x 16");
    let tables = words(&[0xFF, 0xD8]);
    let cut = with(base(32, 16, 8, 6, 3), &[(259, &[7]), (347, &tables)], false, &[&jpeg[..300]]);
    refused(&cut, ErrorKind::Corrupt, "premature end");
}

#[test]
fn tiff_of_other_kinds_is_refused_by_name() {
    let no = |tags: Vec<(u16, Vec<u32>)>, more: &[(u16, &[u32])], text: &str| {
        refused(&with(tags, more, false, &[&[0; 64]]), ErrorKind::Unsupported, text);
    };
    no(base(2, 1, 8, 1, 1), &[(259, &[6])], "it is compressed by the JPEG of TIFF 6.0");
    no(base(2, 1, 8, 1, 1), &[(259, &[34925])], "it is compressed by LZMA");
    no(base(2, 1, 32, 1, 1), &[], "gray with 1 x 32 bits");
    no(base(2, 1, 12, 1, 1), &[], "gray with 1 x 12 bits");
    no(base(2, 1, 16, 1, 1), &[(339, &[2])], "signed, of 16 bits");
    no(base(2, 1, 8, 8, 3), &[], "the colour space Lab");
    no(base(2, 1, 8, 6, 3), &[], "YCbCr outside of JPEG");
}

#[test]
fn tiff_damage_and_bombs_are_errors() {
    let file = with(base(4, 3, 8, 1, 1), &[], true, &[&[7; 12]]);
    for cut in 0..file.len() - 4 {
        assert!(run(&pipeline(vec![], None), &file[..cut]).is_err(), "{cut}");
    }
    for (compression, size) in [(1, 30_000), (5, 60_000), (8, 60_000), (32773, 30_000), (7, 30_000)]
    {
        let bomb = with(base(size, 5000, 8, 1, 1), &[(259, &[compression])], true, &[&[7; 12]]);
        refused(&bomb, ErrorKind::Corrupt, "more than");
    }
    let tile = [(322, &[1 << 30][..]), (323, &[1 << 30])];
    refused(&with(base(4, 3, 8, 1, 1), &tile, true, &[&[7; 12]]), ErrorKind::Corrupt, "parts of");
    refused(&with(base(0, 3, 8, 1, 1), &[], true, &[&[7; 12]]), ErrorKind::Corrupt, "0 x 3 pixels");
}

// ---- any damage --------------------------------------------------------------------------------

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// I6: whatever stands in a file, there are pixels or an error, and the same each time.
    #[test]
    fn i6_any_damage_is_survived(
        which in 0usize..8,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let colors = [30, 20, 10, 0, 60, 50, 40, 0];
        let tiles = [(322, &[4u32][..]), (323, &[4]), (259, &[32773])];
        let mut file = match which {
            0 => gif([4, 3], [1, 1, 3, 2], &colors[..6], Some(1), &[0, 1, 1, 0, 1, 1]),
            1 => bmp(2, -2, 8, 1, &colors, &[2, 1, 0, 0, 1, 1, 0, 1]),
            2 => bmp(3, 2, 4, 2, &colors, &[3, 0x10, 0, 0, 2, 0x11, 0, 1]),
            3 => bmp(3, 2, 16, 0, &[], &[9; 16]),
            4 => webp(&ABC_DEF, 3, 2),
            5 => with(base(4, 3, 8, 1, 1), &[], true, &[&[7; 12]]),
            6 => with(base(3, 3, 8, 2, 3), &tiles, false, &[&[0xD1, 7]]),
            _ => with(base(9, 3, 1, 0, 1), &[(259, &[4])], false, &[&[0x80, 0, 0x10, 0x01]]),
        };
        for (at, value) in edits {
            let at = at.index(file.len());
            file[at] = value;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let p = pipeline(vec![resize(&[8, 9], Interpolation::Bilinear)], Some(Rgba));
        let p = p.with_limits(Limits { pixels: 1 << 20, bytes: 1 << 22, frames: 100 });
        let once = || {
            let mut out = vec![0; 8 * 9 * 4];
            let done = p.run(&mut Scratch::new(), &file, ROW, &mut out);
            let frames = image_frames(&file, &Limits { frames: 100, ..Limits::default() });
            (done.map(|w| (w, out)).map_err(|e| e.to_string()), frames.map_err(|e| e.to_string()))
        };
        prop_assert_eq!(once(), once());
    }
}
