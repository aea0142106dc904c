//! Small files for tests: JPEGs by libjpeg-turbo, PNGs by hand, so that every depth, colour type
//! and interlace can be had.

use std::ffi::{c_int, c_void};

use turbojpeg_sys as tj;

/// Colour spaces of the file.
#[derive(Clone, Copy)]
pub enum Space {
    Gray,
    YCbCr,
    Rgb,
    Cmyk,
    Ycck,
}

#[derive(Clone, Copy)]
pub struct JpegOptions {
    pub space: Space,
    pub quality: c_int,
    pub subsampling: tj::TJSAMP,
    pub progressive: bool,
    pub restart_rows: c_int,
}

impl Default for JpegOptions {
    fn default() -> Self {
        Self {
            space: Space::YCbCr,
            quality: 95,
            subsampling: tj::TJSAMP_TJSAMP_444,
            progressive: false,
            restart_rows: 0,
        }
    }
}

/// Encodes RGB, gray or CMYK pixels, told apart by their number.
pub fn jpeg(pixels: &[u8], w: u32, h: u32, options: JpegOptions) -> Vec<u8> {
    let channels = pixels.len() / (w * h) as usize;
    let format = match channels {
        1 => tj::TJPF_TJPF_GRAY,
        3 => tj::TJPF_TJPF_RGB,
        4 => tj::TJPF_TJPF_CMYK,
        n => panic!("{n} channels"),
    };
    let space = match options.space {
        Space::Gray => tj::TJCS_TJCS_GRAY,
        Space::YCbCr => tj::TJCS_TJCS_YCbCr,
        Space::Rgb => tj::TJCS_TJCS_RGB,
        Space::Cmyk => tj::TJCS_TJCS_CMYK,
        Space::Ycck => tj::TJCS_TJCS_YCCK,
    };
    let subsampling = if matches!(options.space, Space::Gray) {
        tj::TJSAMP_TJSAMP_GRAY
    } else {
        options.subsampling
    };
    // SAFETY: the handle is used and destroyed here; the pixels have w * h * channels bytes, as
    // checked by the division above for whole pixels; the output is the library's own, copied and
    // freed once.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
        assert!(!handle.is_null());
        for (param, value) in [
            (tj::TJPARAM_TJPARAM_QUALITY, options.quality),
            (tj::TJPARAM_TJPARAM_SUBSAMP, subsampling as c_int),
            (tj::TJPARAM_TJPARAM_COLORSPACE, space as c_int),
            (tj::TJPARAM_TJPARAM_PROGRESSIVE, c_int::from(options.progressive)),
            (tj::TJPARAM_TJPARAM_RESTARTROWS, options.restart_rows),
        ] {
            assert_eq!(tj::tj3Set(handle, param as c_int, value), 0);
        }
        let mut out = std::ptr::null_mut();
        let mut size: tj::size_t = 0;
        let rc = tj::tj3Compress8(
            handle,
            pixels.as_ptr(),
            w as c_int,
            0,
            h as c_int,
            format as c_int,
            &mut out,
            &mut size,
        );
        assert_eq!(rc, 0, "{:?}", std::ffi::CStr::from_ptr(tj::tj3GetErrorStr(handle)));
        let bytes = std::slice::from_raw_parts(out, size as usize).to_vec();
        tj::tj3Free(out.cast::<c_void>());
        tj::tj3Destroy(handle);
        bytes
    }
}

/// Puts a segment behind the SOI marker.
pub fn with_segment(jpeg: &[u8], marker: u8, body: &[u8]) -> Vec<u8> {
    let mut out = jpeg[..2].to_vec();
    out.extend([0xFF, marker]);
    out.extend((body.len() as u16 + 2).to_be_bytes());
    out.extend(body);
    out.extend(&jpeg[2..]);
    out
}

/// EXIF data, as a TIFF structure, with an orientation.
pub fn exif(orientation: u16, big: bool) -> Vec<u8> {
    let u16b = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let u32b = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut out = if big { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
    out.extend(u32b(8));
    out.extend(u16b(2));
    // A tag before it, so that the search has something to pass over.
    for (tag, value) in [(0x0103, 6), (0x0112, orientation)] {
        out.extend(u16b(tag));
        out.extend(u16b(3));
        out.extend(u32b(1));
        out.extend(u16b(value));
        out.extend([0, 0]);
    }
    out.extend(u32b(0));
    out
}

pub fn jpeg_with_orientation(jpeg: &[u8], orientation: u16, big: bool) -> Vec<u8> {
    let mut body = b"Exif\0\0".to_vec();
    body.extend(exif(orientation, big));
    with_segment(jpeg, 0xE1, &body)
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &b| {
        (0..8).fold(
            crc ^ u32::from(b),
            |c, _| if c & 1 == 1 { (c >> 1) ^ 0xEDB8_8320 } else { c >> 1 },
        )
    })
}

fn adler(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), &v| {
        let a = (a + u32::from(v)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// zlib data without compression.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut chunks = bytes.chunks(65535).peekable();
    while let Some(chunk) = chunks.next() {
        out.push(u8::from(chunks.peek().is_none()));
        out.extend((chunk.len() as u16).to_le_bytes());
        out.extend((!(chunk.len() as u16)).to_le_bytes());
        out.extend(chunk);
    }
    out.extend(adler(bytes).to_be_bytes());
    out
}

pub fn chunk(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut tagged = kind.to_vec();
    tagged.extend(body);
    let mut out = (body.len() as u32).to_be_bytes().to_vec();
    out.extend(&tagged);
    out.extend(crc(&tagged).to_be_bytes());
    out
}

/// A PNG of rows as they are packed in the file, with chunks before the pixels.
pub fn png(w: u32, h: u32, depth: u8, color: u8, rows: &[&[u8]], chunks: &[Vec<u8>]) -> Vec<u8> {
    png_of(
        w,
        h,
        depth,
        color,
        false,
        &rows.iter().flat_map(|r| [&[0][..], r].concat()).collect::<Vec<_>>(),
        chunks,
    )
}

fn png_of(
    w: u32,
    h: u32,
    depth: u8,
    color: u8,
    interlaced: bool,
    filtered: &[u8],
    chunks: &[Vec<u8>],
) -> Vec<u8> {
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = w.to_be_bytes().to_vec();
    header.extend(h.to_be_bytes());
    header.extend([depth, color, 0, 0, u8::from(interlaced)]);
    out.extend(chunk(b"IHDR", &header));
    for c in chunks {
        out.extend(c);
    }
    out.extend(chunk(b"IDAT", &stored(filtered)));
    out.extend(chunk(b"IEND", &[]));
    out
}

/// An interlaced RGB PNG.
pub fn interlaced_png(w: u32, h: u32, rgb: &[u8]) -> Vec<u8> {
    let mut filtered = Vec::new();
    for (x0, y0, dx, dy) in [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ] {
        for y in (y0..h).step_by(dy) {
            let xs: Vec<u32> = (x0..w).step_by(dx).collect();
            if xs.is_empty() {
                continue;
            }
            filtered.push(0);
            for x in xs {
                let at = (y * w + x) as usize * 3;
                filtered.extend(&rgb[at..at + 3]);
            }
        }
    }
    png_of(w, h, 8, 2, true, &filtered, &[])
}

/// A smooth RGB picture with an edge in it, different in every channel and direction.
pub fn scene(w: u32, h: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for y in 0..h {
        for x in 0..w {
            let (fx, fy) = (f64::from(x) / f64::from(w), f64::from(y) / f64::from(h));
            let edge = if fx + 2.0 * fy > 1.2 { 60.0 } else { 0.0 };
            out.push((255.0 * fx * 0.7 + edge) as u8);
            out.push((200.0 * fy + 40.0 * (fx * 20.0).sin().abs()) as u8);
            out.push((120.0 + 100.0 * ((fx - fy) * 9.0).cos()) as u8);
        }
    }
    out
}
