//! What a picture is, from its header alone.

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::format::{self, Format};
use super::{Limits, gif, png, tiff, webp};

/// What [`image_info`] says of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Width as seen: after the EXIF orientation, as the first operator gets it.
    pub width: u32,
    /// Height as seen.
    pub height: u32,
    /// The mode that the picture keeps where none is declared.
    pub mode: ImageMode,
    /// `JPEG`, `PNG`, `WEBP`, `GIF`, `BMP` or `TIFF`.
    pub format: &'static str,
}

/// Reads size, mode and format from the header of a picture; nothing is decoded or allocated, and no
/// limit is set, so that giants can be told by their size.
///
/// # Errors
/// `Corrupt` where the bytes are no picture, `Unsupported` for formats and kinds that are not read. Bytes
/// behind the header are not looked at: [`super::ImagePipeline::run`] may find that they are damaged.
pub fn image_info(bytes: &[u8]) -> Result<ImageInfo> {
    let header = format::read(bytes)?;
    let [height, width] = header.size();
    Ok(ImageInfo { width, height, mode: header.mode, format: header.format.name() })
}

/// Counts the frames of an animation or the pages of a document; any other picture has one. No frame
/// is decoded, but in GIF, WebP and TIFF they must be walked.
///
/// # Errors
/// As [`image_info`], and `Resource` where there are more than `limits.frames`.
pub fn image_frames(bytes: &[u8], limits: &Limits) -> Result<u64> {
    let frames = match format::read(bytes)?.format {
        Format::Jpeg | Format::Bmp => 1,
        Format::Png => png::frames(bytes),
        Format::WebP => webp::frames(bytes, limits.frames),
        Format::Gif => gif::frames(bytes, limits.frames),
        Format::Tiff => tiff::frames(bytes, limits.frames),
    };
    if frames > limits.frames {
        return Err(Error::new(
            ErrorKind::Resource,
            format!("the image has more frames than the limit of {}", limits.frames),
        ));
    }
    Ok(frames.max(1))
}
