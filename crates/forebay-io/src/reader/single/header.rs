//! Page headers, as far as single values need them.
//!
//! The parquet crate reads headers too, but keeps encodings, checksums and sizes to itself. What a header
//! says is needed here before anything of its page is read, and a page of our own making needs one. So
//! this is the small part of Thrift's compact protocol that `PageHeader` of parquet.thrift takes. Anything
//! unexpected is `None`: the page is then read as a whole, and the parquet crate says what is wrong.

use std::ops::Range;

use super::input::Input;
use crate::pages::Look;

/// Most headers are smaller, statistics included.
const LOOK: u64 = 512;

/// Statistics of long values may be this long; a longer header is none that a writer makes.
const LONGEST: u64 = 64 << 10;

/// Structs within structs. `PageHeader` has three levels; more are none of its own.
const DEEPEST: u32 = 8;

pub(super) const PLAIN: i32 = 0;
pub(super) const PLAIN_DICTIONARY: i32 = 2;
pub(super) const RLE: i32 = 3;
pub(super) const RLE_DICTIONARY: i32 = 8;

const DATA_PAGE: i32 = 0;
const DICTIONARY_PAGE: i32 = 2;
const DATA_PAGE_V2: i32 = 3;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Levels and values are compressed together.
    Data,
    Dictionary,
    /// Levels come first, uncompressed.
    DataV2 {
        definition: u64,
        repetition: u64,
        compressed: bool,
        rows: u64,
    },
}

/// What a header says of its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    /// Values, nulls included.
    pub values: u64,
    pub encoding: i32,
    /// Of definition levels in a page of the first version.
    pub levels: i32,
    pub compressed: u64,
    pub uncompressed: u64,
    pub checksum: bool,
    /// Bytes of the header itself.
    pub len: u64,
}

impl Header {
    /// Reads the header at the beginning of a page, whose body fills the rest of the range.
    pub(super) fn read<L: Look>(file: &L, page: &Range<u64>) -> Option<Self> {
        let all = page.end.checked_sub(page.start)?;
        let parsed = [LOOK, LONGEST].into_iter().find_map(|most| {
            let mut bytes = Vec::new();
            let input = Input::new(file, page.clone());
            input.read(0..all.min(most), &mut bytes)?;
            Self::parse(&bytes)
        })?;
        (parsed.len.checked_add(parsed.compressed)? == all).then_some(parsed)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut thrift = Thrift { bytes, at: 0 };
        let (mut kind, mut sizes, mut checksum) = (None, [None; 2], false);
        // Numbers of the page's own header, by field; and the flag of version 2.
        let (mut of_page, mut compressed) = ([None; 10], true);
        thrift.fields(&mut |thrift, id, field| {
            match (id, field) {
                (1, I32) => kind = Some(thrift.int()?),
                (2 | 3, I32) => sizes[usize::from(id == 3)] = Some(thrift.size()?),
                (4, I32) => {
                    checksum = true;
                    thrift.int()?;
                }
                (5 | 7 | 8, STRUCT) => thrift.fields(&mut |thrift, id, field| {
                    match (usize::try_from(id).ok()?, field) {
                        (n @ 1..10, I32) => of_page[n] = Some(thrift.int()?),
                        (7, TRUE | FALSE) => compressed = field == TRUE,
                        _ => thrift.skip(field, 0)?,
                    }
                    Some(())
                })?,
                _ => thrift.skip(field, 0)?,
            }
            Some(())
        })?;
        let size = |n: usize| of_page[n].and_then(|v| u64::try_from(v).ok());
        let (kind, encoding) = match kind? {
            DATA_PAGE => (Kind::Data, of_page[2]?),
            DICTIONARY_PAGE => (Kind::Dictionary, of_page[2]?),
            DATA_PAGE_V2 => {
                let (definition, repetition, rows) = (size(5)?, size(6)?, size(3)?);
                (Kind::DataV2 { definition, repetition, compressed, rows }, of_page[4]?)
            }
            _ => return None,
        };
        Some(Self {
            kind,
            values: size(1)?,
            encoding,
            levels: if kind == Kind::Data { of_page[3]? } else { RLE },
            uncompressed: sizes[0]?,
            compressed: sizes[1]?,
            checksum,
            len: thrift.at as u64,
        })
    }
}

/// Writes the header of an uncompressed page of plain values.
pub(super) fn write_plain(values: i32, size: i32, out: &mut Vec<u8>) {
    // Field headers are the difference to the last field's number, and the type.
    let int = |value: i32, out: &mut Vec<u8>| {
        out.push(0x10 | I32);
        varint(u64::from(((value << 1) ^ (value >> 31)) as u32), out);
    };
    [DATA_PAGE, size, size].into_iter().for_each(|v| int(v, out));
    out.push(0x20 | STRUCT);
    [values, PLAIN, RLE, RLE].into_iter().for_each(|v| int(v, out));
    out.extend([0, 0]);
}

/// Writes an unsigned number of seven bits a byte.
pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I32: u8 = 5;
const STRUCT: u8 = 12;

/// The compact protocol. Every step takes at least one byte, so that reading ends.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn int(&mut self) -> Option<i32> {
        let value = self.varint()?;
        i32::try_from((value >> 1) as i64 ^ -((value & 1) as i64)).ok()
    }

    fn size(&mut self) -> Option<u64> {
        u64::try_from(self.int()?).ok()
    }

    /// Hands each field of a struct on, which takes or skips its value.
    fn fields(&mut self, each: &mut dyn FnMut(&mut Self, i16, u8) -> Option<()>) -> Option<()> {
        let mut last = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            last = match head >> 4 {
                0 => i16::try_from(self.int()?).ok()?,
                more => last.checked_add(i16::from(more))?,
            };
            each(self, last, head & 0x0f)?;
        }
    }

    fn skip(&mut self, field: u8, depth: u32) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match field {
            TRUE | FALSE => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.pass(8)?,
            8 => {
                let len = self.varint()?;
                self.pass(len)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                for _ in 0..len {
                    self.element(head & 0x0f, depth)?;
                }
            }
            11 => {
                let len = self.varint()?;
                let types = if len > 0 { self.byte()? } else { 0 };
                for _ in 0..len {
                    self.element(types >> 4, depth)?;
                    self.element(types & 0x0f, depth)?;
                }
            }
            STRUCT => self.fields(&mut |thrift, _, field| thrift.skip(field, depth + 1))?,
            _ => return None,
        }
        Some(())
    }

    /// Skips a value of a collection, where even a truth value takes a byte.
    fn element(&mut self, field: u8, depth: u32) -> Option<()> {
        if matches!(field, TRUE | FALSE) { self.pass(1) } else { self.skip(field, depth + 1) }
    }

    fn pass(&mut self, len: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(len).ok()?)?;
        (self.at <= self.bytes.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_written_header_is_read_again() {
        let mut bytes = Vec::new();
        write_plain(3, 70_000, &mut bytes);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.kind, header.values, header.encoding), (Kind::Data, 3, PLAIN));
        assert_eq!((header.levels, header.compressed, header.uncompressed), (RLE, 70_000, 70_000));
        assert_eq!((header.checksum, header.len), (false, bytes.len() as u64));
        // A checksum lies between the sizes and the numbers of the page.
        let mut checked = bytes.clone();
        let struct_at = checked.iter().position(|b| *b == 0x20 | STRUCT).unwrap();
        checked.splice(struct_at..=struct_at, [0x10 | I32, 9, 0x10 | STRUCT]);
        assert!(Header::parse(&checked).unwrap().checksum);
        for cut in 0..bytes.len() {
            assert_eq!(Header::parse(&bytes[..cut]), None);
        }
    }

    #[test]
    fn unknown_fields_of_any_type_are_passed_over() {
        let mut bytes = Vec::new();
        write_plain(3, 70, &mut bytes);
        bytes.pop();
        // Fields 6 to 15: a list of two truth values, a map of a number to bytes, a double, a set, a
        // struct in a struct, a list that counts its elements by a varint.
        bytes.extend([0x19, 0x21, 1, 2]);
        bytes.extend([0x4b, 1, 0x58, 9, 2, b'a', b'b']);
        bytes.extend([0x17, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0x1a, 0x15, 8]);
        bytes.extend([0x1c, 0x1c, 0x11, 0, 0]);
        bytes.extend([0x19, 0xf3, 3, 7, 7, 7, 0]);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.values, header.len), (3, bytes.len() as u64));
        // Too deep.
        let deep: Vec<u8> = std::iter::repeat_n(0x9c, 1).chain([0x1c; 40]).chain([0; 41]).collect();
        assert_eq!(Header::parse(&deep), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Header::parse(&bytes);
        }
    }
}
