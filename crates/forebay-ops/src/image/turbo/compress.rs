//! The compressor.
//!
//! # Implementation details
//!
//! One compressor is used for picture after picture, unlike a decoder: before each, every parameter is
//! set anew, and libjpeg sets its tables and its scans to their defaults, so that nothing of one picture
//! shows in the next. It writes into a buffer of ours that holds the largest JPEG of that many pixels.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

/// How pixels lie in their slice.
#[derive(Clone, Copy, Debug)]
pub(in crate::image) struct Lines {
    pub width: u32,
    pub height: u32,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Bytes of a pixel: 1 is gray; 3 are colours; of 4 the last is not looked at.
    pub step: usize,
}

/// How to compress.
#[derive(Clone, Copy, Debug)]
pub(in crate::image) struct Settings {
    pub quality: u8,
    /// Pixels that share one sample of colour, across and down: 1 x 1, 2 x 1 or 2 x 2.
    pub share: (u8, u8),
    pub progressive: bool,
    pub optimize: bool,
}

/// A compressor, which may be used again.
#[derive(Debug)]
pub(in crate::image) struct Compressor(NonNull<c_void>);

// SAFETY: the handle owns all that it points to, is used through `&mut self` alone, and the library
// ties nothing of it to a thread.
unsafe impl Send for Compressor {}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init and is destroyed here only, once.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}

impl Compressor {
    /// None where the library has no memory for one.
    pub fn new() -> Option<Self> {
        // SAFETY: tj3Init takes no pointer; it returns null or a handle that we own.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int) };
        NonNull::new(handle).map(Self)
    }

    /// The most bytes that a JPEG of this many pixels takes.
    pub fn most_bytes(lines: &Lines, settings: &Settings) -> usize {
        let (Ok(w), Ok(h)) = (c_int::try_from(lines.width), c_int::try_from(lines.height)) else {
            return 0;
        };
        // SAFETY: numbers in, a number out; 0 where they make no sense.
        unsafe { tj::tj3JPEGBufSize(w, h, subsampling(lines, settings)) as usize }
    }

    /// Compresses into the front of `out` and gives the length. The error is in the library's words.
    pub fn compress(
        &mut self,
        pixels: &[u8],
        lines: &Lines,
        settings: &Settings,
        out: &mut [u8],
    ) -> Result<usize, String> {
        let format = match lines.step {
            1 => tj::TJPF_TJPF_GRAY,
            3 => tj::TJPF_TJPF_RGB,
            4 => tj::TJPF_TJPF_RGBX,
            n => return Err(format!("defect: {n} bytes a pixel")),
        };
        let row = lines.width as usize * lines.step;
        let needed = (lines.height as usize)
            .checked_sub(1)
            .and_then(|above| above.checked_mul(lines.pitch)?.checked_add(row));
        if row == 0 || row > lines.pitch || needed.is_none_or(|needed| needed > pixels.len()) {
            return Err("defect: the pixels are not what their size says".into());
        }
        let (Ok(w), Ok(h), Ok(pitch)) = (
            c_int::try_from(lines.width),
            c_int::try_from(lines.height),
            c_int::try_from(lines.pitch),
        ) else {
            return Err("the picture is too large".into());
        };
        for (param, value) in [
            (tj::TJPARAM_TJPARAM_NOREALLOC, 1),
            (tj::TJPARAM_TJPARAM_QUALITY, c_int::from(settings.quality)),
            (tj::TJPARAM_TJPARAM_SUBSAMP, subsampling(lines, settings)),
            (tj::TJPARAM_TJPARAM_PROGRESSIVE, c_int::from(settings.progressive)),
            (tj::TJPARAM_TJPARAM_OPTIMIZE, c_int::from(settings.optimize)),
        ] {
            // SAFETY: the handle is live; the value is passed by value.
            if unsafe { tj::tj3Set(self.0.as_ptr(), param as c_int, value) } != 0 {
                return Err(self.words());
            }
        }
        let mut target = out.as_mut_ptr();
        let mut length = out.len() as tj::size_t;
        // SAFETY: the handle is live. The library reads `h` rows of `w` pixels at steps of `pitch` bytes,
        // and `pixels` has that many bytes (`needed`). With NOREALLOC, which was set above, it writes at
        // most `length` bytes to `target`, which are those of `out`, and neither frees nor moves it.
        let rc = unsafe {
            tj::tj3Compress8(
                self.0.as_ptr(),
                pixels.as_ptr(),
                w,
                pitch,
                h,
                format as c_int,
                &mut target,
                &mut length,
            )
        };
        if rc != 0 { Err(self.words()) } else { Ok(length as usize) }
    }

    /// What went wrong in the call that just failed, on this thread.
    fn words(&self) -> String {
        // SAFETY: the handle is live. The string is the handle's own or a thread-local of the library,
        // always terminated, and it is copied before any other call.
        let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0.as_ptr())) };
        text.to_string_lossy().into_owned()
    }
}

fn subsampling(lines: &Lines, settings: &Settings) -> c_int {
    (match (lines.step, settings.share) {
        (1, _) => tj::TJSAMP_TJSAMP_GRAY,
        (_, (1, _)) => tj::TJSAMP_TJSAMP_444,
        (_, (_, 1)) => tj::TJSAMP_TJSAMP_422,
        _ => tj::TJSAMP_TJSAMP_420,
    }) as c_int
}
