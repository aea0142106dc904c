//! libwebp, behind a safe face: its foreign calls are here.

use std::ffi::c_int;

use libwebp_sys as webp;

/// Decodes one still picture of `width` x `height` pixels into `out`: red, green and blue, and opacity
/// where `channels` is 4. False where the data are damaged or of another size.
pub(super) fn decode(
    bytes: &[u8],
    (width, height): (u32, u32),
    channels: usize,
    out: &mut [u8],
) -> bool {
    let (mut found_w, mut found_h) = (0, 0);
    // SAFETY: pointer and length are those of one slice, and both results are written to live locals.
    let is_read =
        unsafe { webp::WebPGetInfo(bytes.as_ptr(), bytes.len(), &mut found_w, &mut found_h) };
    if is_read == 0 || (u32::try_from(found_w), u32::try_from(found_h)) != (Ok(width), Ok(height)) {
        return false;
    }
    let row_bytes = width as usize * channels;
    let Ok(stride) = c_int::try_from(row_bytes) else { return false };
    if !matches!(channels, 3 | 4) || out.len() < row_bytes * height as usize {
        return false;
    }
    let into = match channels {
        4 => webp::WebPDecodeRGBAInto,
        _ => webp::WebPDecodeRGBInto,
    };
    // SAFETY: pointers and lengths are those of two slices, one read, one written. The library writes
    // `height` rows of `width` pixels at steps of `stride` bytes, takes both sizes from the header that
    // was read from these very bytes above, and refuses a buffer whose length is less than they need.
    let written = unsafe { into(bytes.as_ptr(), bytes.len(), out.as_mut_ptr(), out.len(), stride) };
    !written.is_null()
}
