//! How a camera was held: the orientation tag of EXIF.
//!
//! Pillow's `exif_transpose` and torchvision's `apply_exif_orientation` turn a picture as this tag
//! says, and so does Forebay, always: a photograph is what its viewer shows. Values outside 1 to 8
//! and damaged EXIF data mean "as stored", as they do there.

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

/// Reads the orientation from a TIFF structure, as EXIF data are one. 1 where it is not there.
pub(super) fn orientation(tiff: &[u8]) -> u32 {
    find(tiff).filter(|v| (1..=8).contains(v)).unwrap_or(1)
}

fn find(tiff: &[u8]) -> Option<u32> {
    let big = match tiff.get(..4)? {
        b"MM\0*" => true,
        b"II*\0" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let b: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(u32::from(if big { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) }))
    };
    let u32_at = |at: usize| {
        let b: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
    };
    let directory = u32_at(4)? as usize;
    // At most 65,535 entries of 12 bytes, all within the data.
    for i in 0..u16_at(directory)? as usize {
        let entry = directory.checked_add(2 + 12 * i)?;
        if u16_at(entry)? == 0x0112 {
            return match (u16_at(entry + 2)?, u32_at(entry + 4)?) {
                (1, 1..) => tiff.get(entry + 8).map(|&b| u32::from(b)),
                (3, 1..) => u16_at(entry + 8),
                (4, 1..) => u32_at(entry + 8),
                _ => None,
            };
        }
    }
    None
}

/// Reads `tiff:Orientation` from an XMP packet, where Pillow looks when EXIF has none.
pub(super) fn orientation_of_xmp(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    let at = xmp.windows(NAME.len()).position(|w| w == NAME)? + NAME.len();
    let digit = match *xmp.get(at..at + 3)? {
        [b'=', b'"', d] => d,
        [b'>', d, _] => d,
        _ => return None,
    };
    digit.is_ascii_digit().then(|| u32::from(digit - b'0'))
}
