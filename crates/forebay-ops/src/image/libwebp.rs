//! libwebp, behind a safe face: its foreign calls are here.

use std::ffi::c_int;

use libwebp_sys as webp;

use super::turbo::Lines;

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

/// How to encode, in libwebp's terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct WebPSettings {
    pub quality: u8,
    pub lossless: bool,
    pub method: u8,
    pub exact: bool,
}

/// Why there is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unwritten {
    NoMemory,
    /// A part of the file is larger than its length field.
    TooDetailed,
    /// What cannot happen; the library's number of it.
    Defect(u32),
}

/// A picture of the library's; what it has allocated is freed with it.
struct Owned(webp::WebPPicture);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the picture was initialised by the library, and is freed here only, once.
        unsafe { webp::WebPPictureFree(&mut self.0) }
    }
}

/// Encodes RGB, or RGBA where `channels` is 4, to the end of `out`. Of RGB in steps of four bytes the last
/// is not looked at.
pub(super) fn encode(
    pixels: &[u8],
    lines: &Lines,
    channels: usize,
    settings: WebPSettings,
    out: &mut Vec<u8>,
) -> Result<(), Unwritten> {
    let defect = || Unwritten::Defect(0);
    let import = match (channels, lines.step) {
        (3, 3) => webp::WebPPictureImportRGB,
        (3, 4) => webp::WebPPictureImportRGBX,
        (4, 4) => webp::WebPPictureImportRGBA,
        _ => return Err(defect()),
    };
    let row = lines.width as usize * lines.step;
    let needed = (lines.height as usize)
        .checked_sub(1)
        .and_then(|above| above.checked_mul(lines.pitch)?.checked_add(row));
    if row == 0 || row > lines.pitch || needed.is_none_or(|needed| needed > pixels.len()) {
        return Err(defect());
    }
    let (Ok(width), Ok(height), Ok(pitch)) =
        (c_int::try_from(lines.width), c_int::try_from(lines.height), c_int::try_from(lines.pitch))
    else {
        return Err(defect());
    };
    let mut config = webp::WebPConfig::new().map_err(|()| defect())?;
    config.lossless = c_int::from(settings.lossless);
    config.quality = f32::from(settings.quality);
    config.method = c_int::from(settings.method);
    config.exact = c_int::from(settings.exact);
    let mut picture = Owned(webp::WebPPicture::new().map_err(|()| defect())?);
    picture.0.width = width;
    picture.0.height = height;
    // As Pillow does for lossy pictures too: the library then makes their YUV itself.
    picture.0.use_argb = 1;
    picture.0.writer = Some(append);
    picture.0.custom_ptr = std::ptr::from_mut(out).cast();
    // SAFETY: the picture is initialised and has its size. The library reads `height` rows of `width`
    // pixels at steps of `pitch` bytes, and `pixels` has that many (`needed`).
    if unsafe { import(&mut picture.0, pixels.as_ptr(), pitch) } == 0 {
        return Err(Unwritten::NoMemory);
    }
    // SAFETY: config and picture are initialised and live. The library calls `append` with this picture,
    // whose `custom_ptr` is the `out` that is borrowed here and used by nobody else until it returns.
    if unsafe { webp::WebPEncode(&config, &mut picture.0) } != 0 {
        return Ok(());
    }
    use webp::WebPEncodingError as E;
    Err(match picture.0.error_code {
        E::VP8_ENC_ERROR_OUT_OF_MEMORY
        | E::VP8_ENC_ERROR_BITSTREAM_OUT_OF_MEMORY
        | E::VP8_ENC_ERROR_BAD_WRITE => Unwritten::NoMemory,
        E::VP8_ENC_ERROR_PARTITION0_OVERFLOW
        | E::VP8_ENC_ERROR_PARTITION_OVERFLOW
        | E::VP8_ENC_ERROR_FILE_TOO_BIG => Unwritten::TooDetailed,
        code => Unwritten::Defect(code as u32),
    })
}

/// Takes bytes from the encoder; 0 makes it give up.
///
/// # Safety
/// `data` has `length` bytes, and the picture's `custom_ptr` is a `Vec<u8>` that nobody else uses.
unsafe extern "C" fn append(
    data: *const u8,
    length: usize,
    picture: *const webp::WebPPicture,
) -> c_int {
    if length == 0 {
        return 1;
    }
    // SAFETY: as the caller promises.
    let (out, data) = unsafe {
        let out = &mut *(*picture).custom_ptr.cast::<Vec<u8>>();
        (out, std::slice::from_raw_parts(data, length))
    };
    // No panic may reach the library: there is room before anything is appended.
    if out.try_reserve(length).is_err() {
        return 0;
    }
    out.extend_from_slice(data);
    1
}
