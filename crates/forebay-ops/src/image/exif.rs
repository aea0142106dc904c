//! How a camera was held: the orientation tag of EXIF.
//!
//! Pillow's `exif_transpose` and torchvision's `apply_exif_orientation` turn a picture as this tag
//! says, and so does Forebay, always: a photograph is what its viewer shows. Values outside 1 to 8
//! and damaged EXIF data mean "as stored", as they do there.

use super::ifd::Directory;

/// One of the eight ways to store a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    /// Columns are read from right to left.
    pub mirror_x: bool,
    /// Rows are read from bottom to top.
    pub mirror_y: bool,
    /// Rows of the picture are columns of the file. Mirrors are those of the stored axes.
    pub transpose: bool,
}

impl Orientation {
    /// From the tag's value, 1 to 8.
    pub fn from_tag(tag: u32) -> Self {
        let (mirror_x, mirror_y, transpose) = match tag {
            2 => (true, false, false),
            3 => (true, true, false),
            4 => (false, true, false),
            5 => (false, false, true),
            6 => (false, true, true),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { mirror_x, mirror_y, transpose }
    }

    pub fn is_identity(self) -> bool {
        self == Self::default()
    }
}

/// Reads the orientation from a TIFF structure, as EXIF data are one. A value that means nothing is 1;
/// none is there where the tag is not.
pub(super) fn orientation(tiff: &[u8]) -> Option<u32> {
    let value = Directory::first(tiff)?.number(0x0112)?;
    Some(u32::try_from(value).ok().filter(|v| (1..=8).contains(v)).unwrap_or(1))
}

/// Reads `tiff:Orientation` from an XMP packet, where Pillow looks when EXIF has none.
pub(super) fn orientation_of_xmp(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    xmp.windows(NAME.len() + 3).find_map(|at| {
        let digit = match at.strip_prefix(NAME)? {
            [b'=', b'"', d] => d,
            [b'>', d, _] => d,
            _ => return None,
        };
        digit.is_ascii_digit().then(|| u32::from(digit - b'0'))
    })
}
