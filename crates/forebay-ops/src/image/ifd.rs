//! TIFF directories: lists of tagged values, in TIFF files and in the EXIF data of all others.
//!
//! Nothing is copied or allocated: a directory is a place in the bytes, and every value is looked up
//! there. Whatever lies outside of the bytes is not there.

/// A directory in either byte order, of TIFF or BigTIFF.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory<'a> {
    bytes: Bytes<'a>,
    /// Of the first entry.
    entries: usize,
    count: usize,
}

/// Where a tag's values are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    bytes: Bytes<'a>,
    /// Size of one value.
    size: usize,
    pub count: usize,
    /// Of the first value.
    pub at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bytes<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
    is_big_tiff: bool,
}

impl<'a> Bytes<'a> {
    fn number(&self, at: usize, size: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at.checked_add(size)?)?;
        let fold = |n: u64, &byte: &u8| n << 8 | u64::from(byte);
        Some(match self.is_big_endian {
            true => bytes.iter().fold(0, fold),
            false => bytes.iter().rev().fold(0, fold),
        })
    }

    fn place(&self, at: usize, size: usize) -> Option<usize> {
        usize::try_from(self.number(at, size)?).ok()
    }

    fn directory(self, at: usize) -> Option<Directory<'a>> {
        let size = if self.is_big_tiff { 8 } else { 2 };
        Some(Directory {
            bytes: self,
            entries: at.checked_add(size)?,
            count: self.place(at, size)?,
        })
    }
}

impl<'a> Directory<'a> {
    /// The first directory of a TIFF structure.
    pub fn first(bytes: &'a [u8]) -> Option<Self> {
        let (is_big_endian, is_big_tiff) = match bytes.get(..4)? {
            b"MM\0*" => (true, false),
            b"II*\0" => (false, false),
            b"MM\0+" => (true, true),
            b"II+\0" => (false, true),
            _ => return None,
        };
        let bytes = Bytes { bytes, is_big_endian, is_big_tiff };
        let at = if is_big_tiff { bytes.place(8, 8)? } else { bytes.place(4, 4)? };
        bytes.directory(at)
    }

    fn entry_size(&self) -> usize {
        if self.bytes.is_big_tiff { 20 } else { 12 }
    }

    /// Where the place of the next directory stands, and of how many bytes it is.
    fn next_place(&self) -> Option<(usize, usize)> {
        let at = self.count.checked_mul(self.entry_size())?.checked_add(self.entries)?;
        Some((at, if self.bytes.is_big_tiff { 8 } else { 4 }))
    }

    /// Makes this one the last, in a copy of the bytes.
    pub fn end_here(&self, copy: &mut [u8]) {
        let place = self.next_place().and_then(|(at, size)| copy.get_mut(at..at + size));
        if let Some(place) = place {
            place.fill(0);
        }
    }

    /// The directory after this one.
    pub fn next(&self) -> Option<Self> {
        let (at, size) = self.next_place()?;
        let next = self.bytes.place(at, size).filter(|&next| next != 0)?;
        self.bytes.directory(next).filter(|next| next.count > 0)
    }

    /// Where it is.
    pub fn place(&self) -> usize {
        self.entries
    }

    /// Whether each of these tags is there once at most, with all of its values within the bytes.
    pub fn is_sound(&self, tags: &[u16]) -> bool {
        let mut seen = 0u64;
        self.places().all(|(tag, at)| match tags.iter().position(|&known| known == tag) {
            Some(i) => {
                let is_first = seen >> i & 1 == 0;
                seen |= 1 << i;
                is_first && self.entry_at(at).is_some()
            }
            None => true,
        })
    }

    /// The values of a tag.
    pub fn entry(&self, tag: u16) -> Option<Entry<'a>> {
        let (_, at) = self.places().find(|(found, _)| *found == tag)?;
        self.entry_at(at)
    }

    /// The tags, and where each entry begins. Past the end of the bytes, none follows.
    fn places(&self) -> impl Iterator<Item = (u16, usize)> + use<'a> {
        let Self { bytes, entries, count } = *self;
        let size = self.entry_size();
        (0..count).map_while(move |i| {
            let at = entries.checked_add(i.checked_mul(size)?)?;
            Some((bytes.number(at, 2)? as u16, at))
        })
    }

    fn entry_at(&self, at: usize) -> Option<Entry<'a>> {
        let b = self.bytes;
        let size = match b.number(at + 2, 2)? {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16 | 17 | 18 => 8,
            _ => return None,
        };
        let wide = if b.is_big_tiff { 8 } else { 4 };
        let count = b.place(at + 4, wide)?;
        let inline = at + 4 + wide;
        let length = count.checked_mul(size)?;
        let at = if length <= wide { inline } else { b.place(inline, wide)? };
        let fits = at.checked_add(length)? <= b.bytes.len();
        (fits && count > 0).then_some(Entry { bytes: b, size, count, at })
    }

    /// The first number of a tag.
    pub fn number(&self, tag: u16) -> Option<u64> {
        self.entry(tag)?.numbers().next()
    }
}

impl<'a> Entry<'a> {
    /// The values as whole numbers.
    pub fn numbers(self) -> impl Iterator<Item = u64> + 'a {
        (0..self.count).map_while(move |i| self.bytes.number(self.at + i * self.size, self.size))
    }

    /// Writes a small number over the first value, in a copy of the bytes.
    pub fn overwrite(&self, copy: &mut [u8], value: u8) {
        let Some(place) = copy.get_mut(self.at..self.at + self.size) else { return };
        place.fill(0);
        let lowest = if self.bytes.is_big_endian { place.last_mut() } else { place.first_mut() };
        if let Some(lowest) = lowest {
            *lowest = value;
        }
    }

    /// The values as bytes.
    pub fn slice(self) -> &'a [u8] {
        self.bytes.bytes.get(self.at..self.at + self.count * self.size).unwrap_or_default()
    }
}
