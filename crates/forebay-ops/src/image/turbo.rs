//! libjpeg-turbo, behind a safe face: its foreign calls are here.
//!
//! # Implementation details
//!
//! A [`Jpeg`] borrows the compressed bytes for its whole life, so the header that sized the buffer
//! and the header that the decoder reads again are the same bytes. A decoder is made for each
//! picture and thrown away with it. That costs about a microsecond, and it is what makes a
//! picture's pixels depend on its own bytes alone: libjpeg keeps quantisation and Huffman tables
//! and a half-read header between pictures, so with a decoder that lived on, a file without tables
//! would come out by those of its neighbour.

mod compress;

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use turbojpeg_sys as tj;

pub(super) use self::compress::{Compressor, Lines, Settings};

/// More scans than any encoder writes; each costs a pass over the whole picture, so a small file of
/// very many scans would hold a thread for minutes. The figure is libjpeg-turbo's own.
const MAX_SCANS: c_int = 500;

/// What the header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct JpegInfo {
    pub width: u32,
    pub height: u32,
    pub color: Color,
    /// Width of the smallest unit that can be left out, in pixels; none where parts of this file
    /// cannot be decoded alone.
    pub unit_width: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Gray,
    /// YCbCr or RGB.
    Rgb,
    /// CMYK or YCCK.
    Cmyk,
}

/// What comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PixelFormat {
    Gray,
    Rgb,
    /// Alpha is 255.
    Rgba,
    Cmyk,
}

impl PixelFormat {
    pub fn channels(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Rgb => 3,
            Self::Rgba | Self::Cmyk => 4,
        }
    }

    fn code(self) -> c_int {
        (match self {
            Self::Gray => tj::TJPF_TJPF_GRAY,
            Self::Rgb => tj::TJPF_TJPF_RGB,
            Self::Rgba => tj::TJPF_TJPF_RGBA,
            Self::Cmyk => tj::TJPF_TJPF_CMYK,
        }) as c_int
    }
}

/// What to decode, in pixels after scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub x: u32,
    pub y: u32,
    pub w: u32,
    pub h: u32,
}

/// How to decode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub format: PixelFormat,
    /// 1, 2, 4 or 8: every so many pixels become one, in each direction.
    pub shrink: u32,
    pub part: Option<Part>,
    pub fast_upsampling: bool,
}

/// Why libjpeg-turbo did not do as asked, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The pixels are there, and something was wrong with the data.
    Warning(String),
    /// There are no pixels.
    Fatal(String),
}

/// One JPEG, its header read.
pub(super) struct Jpeg<'a> {
    handle: NonNull<c_void>,
    bytes: &'a [u8],
    info: JpegInfo,
    // The handle may move to another thread only with its borrow; nothing needs it to.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for Jpeg<'_> {
    fn drop(&mut self) {
        // SAFETY: `handle` came from tj3Init and is destroyed here only, once.
        unsafe { tj::tj3Destroy(self.handle.as_ptr()) }
    }
}

impl<'a> Jpeg<'a> {
    /// Reads the header. Warnings about it come again, and are judged, when the pixels are read.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Failure> {
        // SAFETY: tj3Init takes no pointer; it returns null or a handle that we own.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(Failure::Fatal("libjpeg-turbo could not allocate a decoder".into()));
        };
        let info = JpegInfo { width: 0, height: 0, color: Color::Gray, unit_width: None };
        let mut jpeg = Self { handle, bytes, info, _not_send: PhantomData };
        jpeg.set(tj::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS);
        // Colour profiles would be copied out of every file, and nobody asks for them.
        jpeg.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0);
        // SAFETY: the handle is live, and pointer and length are those of one slice, which lives as
        // long as `jpeg`. An empty slice is refused by the length before it is read.
        let rc = unsafe {
            tj::tj3DecompressHeader(handle.as_ptr(), bytes.as_ptr(), bytes.len() as tj::size_t)
        };
        if rc != 0
            && let fatal @ Failure::Fatal(_) = jpeg.failure()
        {
            return Err(fatal);
        }
        jpeg.info = jpeg.read_info()?;
        Ok(jpeg)
    }

    pub fn info(&self) -> JpegInfo {
        self.info
    }

    fn read_info(&self) -> Result<JpegInfo, Failure> {
        let (w, h) =
            (self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH), self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT));
        // A file of tables alone leaves them at -1.
        let (Ok(width @ 1..), Ok(height @ 1..)) = (u32::try_from(w), u32::try_from(h)) else {
            return Err(Failure::Fatal("there is no picture in the file".into()));
        };
        let color = match self.get(tj::TJPARAM_TJPARAM_COLORSPACE) as tj::TJCS {
            tj::TJCS_TJCS_GRAY => Color::Gray,
            tj::TJCS_TJCS_RGB | tj::TJCS_TJCS_YCbCr => Color::Rgb,
            tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK => Color::Cmyk,
            _ => return Err(Failure::Fatal("its colour space is unknown".into())),
        };
        let unit_width = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            _ if self.get(tj::TJPARAM_TJPARAM_LOSSLESS) != 0 => None,
            s if s == tj::TJSAMP_TJSAMP_444 as c_int
                || s == tj::TJSAMP_TJSAMP_GRAY as c_int
                || s == tj::TJSAMP_TJSAMP_440 as c_int =>
            {
                Some(8)
            }
            s if s == tj::TJSAMP_TJSAMP_422 as c_int || s == tj::TJSAMP_TJSAMP_420 as c_int => {
                Some(16)
            }
            _ => None,
        };
        Ok(JpegInfo { width, height, color, unit_width })
    }

    /// The size of the whole picture at a shrink of 1, 2, 4 or 8.
    pub fn scaled(&self, shrink: u32) -> (u32, u32) {
        (self.info.width.div_ceil(shrink), self.info.height.div_ceil(shrink))
    }

    /// Decodes into the front of `out`, rows without gaps.
    pub fn decode(self, request: &Request, out: &mut [u8]) -> Result<(), Failure> {
        let refuse = |why: &str| Err(Failure::Fatal(format!("defect: {why}")));
        if !matches!(request.shrink, 1 | 2 | 4 | 8) {
            return refuse("no such shrink");
        }
        let (full_w, full_h) = self.scaled(request.shrink);
        let part = request.part.unwrap_or(Part { x: 0, y: 0, w: full_w, h: full_h });
        let inside = |at: u32, len: u32, size: u32| {
            len > 0 && at.checked_add(len).is_some_and(|end| end <= size)
        };
        if !inside(part.x, part.w, full_w) || !inside(part.y, part.h, full_h) {
            return refuse("the part reaches outside the picture");
        }
        let pitch = part.w as usize * request.format.channels();
        let (Some(needed), Ok(c_pitch)) =
            (pitch.checked_mul(part.h as usize), c_int::try_from(pitch))
        else {
            return refuse("the picture is too wide");
        };
        if out.len() < needed {
            return refuse("the buffer is too small");
        }
        self.set(tj::TJPARAM_TJPARAM_FASTUPSAMPLE, c_int::from(request.fast_upsampling));
        // A second look at the size, by the library itself: should the header it reads again say
        // more pixels than the one that sized the buffer, it refuses. (0 would mean no limit; the
        // product is at least 1, and one beyond `c_int` is beyond every limit of ours.)
        let pixels = u64::from(self.info.width) * u64::from(self.info.height);
        self.set(tj::TJPARAM_TJPARAM_MAXPIXELS, c_int::try_from(pixels).unwrap_or(c_int::MAX));
        if request.shrink != 1 {
            let factor = tj::tjscalingfactor { num: 1, denom: request.shrink as c_int };
            // SAFETY: the handle is live; the factor is passed by value.
            if unsafe { tj::tj3SetScalingFactor(self.handle.as_ptr(), factor) } != 0 {
                return Err(self.failure());
            }
        }
        if request.part.is_some() {
            let Part { x, y, w, h } = part;
            let region =
                tj::tjregion { x: x as c_int, y: y as c_int, w: w as c_int, h: h as c_int };
            // SAFETY: the handle is live; the region is passed by value.
            if unsafe { tj::tj3SetCroppingRegion(self.handle.as_ptr(), region) } != 0 {
                return Err(self.failure());
            }
        }
        // SAFETY: the handle is live and its header was read from these very bytes, which the borrow
        // keeps unchanged. tj3Decompress8 writes rows of `w` pixels at steps of `c_pitch` bytes:
        // `h` rows of a part, or all rows of the scaled picture. Both were taken from that header
        // (or checked against it above), `needed` is their product in bytes, and `out` has at least
        // that many. With a part of the full width, the library does not crop in width, and rows
        // are `full_w == w` pixels.
        let rc = unsafe {
            tj::tj3Decompress8(
                self.handle.as_ptr(),
                self.bytes.as_ptr(),
                self.bytes.len() as tj::size_t,
                out.as_mut_ptr(),
                c_pitch,
                request.format.code(),
            )
        };
        if rc != 0 { Err(self.failure()) } else { Ok(()) }
    }

    fn get(&self, param: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is live; an unknown parameter gives -1.
        unsafe { tj::tj3Get(self.handle.as_ptr(), param as c_int) }
    }

    fn set(&self, param: tj::TJPARAM, value: c_int) {
        // A value that is refused leaves the default, which is safe for all that are set here.
        // SAFETY: the handle is live; the value is passed by value.
        unsafe { tj::tj3Set(self.handle.as_ptr(), param as c_int, value) };
    }

    /// What went wrong in the call that just failed, on this thread.
    fn failure(&self) -> Failure {
        // SAFETY: the handle is live. The string is the handle's own or a thread-local of the
        // library, always terminated, and it is copied before any other call.
        let (text, code) = unsafe {
            let text = CStr::from_ptr(tj::tj3GetErrorStr(self.handle.as_ptr()));
            (text.to_string_lossy().into_owned(), tj::tj3GetErrorCode(self.handle.as_ptr()))
        };
        if code == tj::TJERR_TJERR_WARNING as c_int {
            Failure::Warning(text)
        } else {
            Failure::Fatal(text)
        }
    }
}
