//! Ranges of what a Snappy stream decompresses to, without decompressing the stream.
//!
//! A stream is its decompressed length and a row of elements: literals, which are bytes as they are, and
//! copies of what came before. Pictures and other compressed values have no repetitions that Snappy could
//! find, so their streams are literals of up to 64 KiB and little else: one can step from tag to tag, and
//! read what lies between from the file.
//!
//! All encoders in use compress 64 KiB at a time, each for itself. Such a fragment is the unit here: its
//! elements are known together, and where a copy is wanted the fragment is decompressed, nothing more. A
//! stream that was made otherwise (a copy from further back, an element that crosses a border) is `None`.

use std::ops::Range;

use super::input::Input;
use crate::pages::Look;

/// What encoders compress at a time.
const FRAGMENT: u64 = 64 << 10;

/// Copies of copies that are followed to find a single byte. Beyond that, a fragment is decompressed.
const HOPS: usize = 64;

/// Reads that are served from the bytes around a tag, if they are at hand.
const SMALL: u64 = 4;

#[derive(Clone, Copy)]
struct Element {
    /// Where it begins, in the fragment.
    at: u64,
    from: From,
}

#[derive(Clone, Copy)]
enum From {
    /// A position in the stream.
    Literal(u64),
    /// A distance back.
    Copy(u64),
}

/// A stream that is read forwards, as far as it is wanted.
pub(super) struct Stream<'a, L> {
    input: Input<'a, L>,
    len: u64,
    /// The next tag, and the decompressed bytes before it: the end of the fragment at hand.
    next: u64,
    end: u64,
    /// The first tag of the fragment, and the decompressed bytes before it.
    first: u64,
    start: u64,
    elements: Vec<Element>,
    /// The fragment, where it had to be decompressed.
    whole: Option<Vec<u8>>,
}

impl<'a, L: Look> Stream<'a, L> {
    pub(super) fn new(mut input: Input<'a, L>) -> Option<Self> {
        let (bytes, have) = input.look::<5>(0)?;
        let last = bytes[..have].iter().position(|b| b & 0x80 == 0)?;
        let len = bytes[..=last].iter().rev().fold(0u64, |len, b| len << 7 | u64::from(b & 0x7f));
        u32::try_from(len).ok()?;
        let next = last as u64 + 1;
        Some(Self {
            input,
            len,
            next,
            end: 0,
            first: next,
            start: 0,
            elements: Vec::new(),
            whole: None,
        })
    }

    /// Decompressed bytes, as the stream says.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Reads a range behind what is in `out`. Ranges are asked for in order: none begins in a fragment
    /// before that of the last one.
    pub(super) fn read(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Option<()> {
        if range.end > self.len {
            return None;
        }
        let mut at = range.start;
        while at < range.end {
            while at >= self.end {
                self.advance()?;
            }
            let upto = range.end.min(self.end);
            self.piece(at.checked_sub(self.start)?..upto - self.start, out)?;
            at = upto;
        }
        Some(())
    }

    /// Finds the elements of the next fragment.
    fn advance(&mut self) -> Option<()> {
        (self.first, self.start, self.whole) = (self.next, self.end, None);
        self.elements.clear();
        let goal = FRAGMENT.min(self.len - self.start);
        let mut at = 0;
        while at < goal {
            let (tag, have) = self.input.look::<5>(self.next)?;
            let code = tag[0] >> 2;
            // Bytes of the tag, bytes that the element stands for, distance back.
            let (head, len, back) = match tag[0] & 3 {
                0 if code < 60 => (1, u64::from(code) + 1, None),
                0 => {
                    let more = usize::from(code) - 59;
                    (1 + more, little(&tag[1..1 + more]) + 1, None)
                }
                1 => (
                    2,
                    u64::from(code & 7) + 4,
                    Some(u64::from(code >> 3) << 8 | u64::from(tag[1])),
                ),
                2 => (3, u64::from(code) + 1, Some(little(&tag[1..3]))),
                _ => (5, u64::from(code) + 1, Some(little(&tag[1..5]))),
            };
            if head > have || len > goal - at || back.is_some_and(|b| b == 0 || b > at) {
                return None;
            }
            self.next += head as u64;
            let from = match back {
                Some(back) => From::Copy(back),
                None => {
                    let literal = From::Literal(self.next);
                    self.next += len;
                    if self.next > self.input.len() {
                        return None;
                    }
                    literal
                }
            };
            self.elements.push(Element { at, from });
            at += len;
        }
        self.end = self.start + goal;
        (goal > 0).then_some(())
    }

    /// The element that a byte of the fragment comes from.
    fn element(&self, at: u64) -> Option<usize> {
        self.elements.partition_point(|e| e.at <= at).checked_sub(1)
    }

    /// Where an element ends, in the fragment.
    fn end_of(&self, element: usize) -> u64 {
        self.elements.get(element + 1).map_or(self.end - self.start, |e| e.at)
    }

    /// Reads a range of the fragment.
    fn piece(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Option<()> {
        if self.whole.is_none() {
            if range.end - range.start <= SMALL && self.few(range.clone(), out).is_some() {
                return Some(());
            }
            let (first, last) = (self.element(range.start)?, self.element(range.end - 1)?);
            let found = self.elements.get(first..=last)?;
            if found.iter().all(|e| matches!(e.from, From::Literal(_))) {
                for (i, e) in (first..=last).zip(found) {
                    let From::Literal(from) = e.from else { return None };
                    let (a, b) = (range.start.max(e.at), range.end.min(self.end_of(i)));
                    self.input.read(from + (a - e.at)..from + (b - e.at), out)?;
                }
                return Some(());
            }
            self.whole = Some(self.decompress()?);
        }
        let whole = self.whole.as_deref()?;
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        out.extend_from_slice(whole.get(start..end)?);
        Some(())
    }

    /// Reads a few bytes of the fragment by following each to its literal, all or none.
    fn few(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Option<()> {
        let mut found = [0u8; SMALL as usize];
        let len = usize::try_from(range.end - range.start).ok()?;
        for (byte, at) in found.iter_mut().zip(range) {
            *byte = self.byte(at)?;
        }
        out.extend_from_slice(found.get(..len)?);
        Some(())
    }

    fn byte(&mut self, mut at: u64) -> Option<u8> {
        for _ in 0..HOPS {
            let e = *self.elements.get(self.element(at)?)?;
            match e.from {
                From::Literal(from) => {
                    let (byte, have) = self.input.look::<1>(from + (at - e.at))?;
                    return (have == 1).then_some(byte[0]);
                }
                // Out of the element at once, also where it repeats itself.
                From::Copy(back) => at -= ((at - e.at) / back + 1) * back,
            }
        }
        None
    }

    fn decompress(&self) -> Option<Vec<u8>> {
        let mut stream = Vec::new();
        self.input.read(self.first..self.next, &mut stream)?;
        let mut out: Vec<u8> = Vec::with_capacity(FRAGMENT as usize);
        for (i, e) in self.elements.iter().enumerate() {
            let len = usize::try_from(self.end_of(i) - e.at).ok()?;
            match e.from {
                From::Literal(from) => {
                    let from = usize::try_from(from - self.first).ok()?;
                    out.extend_from_slice(stream.get(from..from + len)?);
                }
                From::Copy(back) => {
                    let back = usize::try_from(back).ok()?;
                    let mut left = len;
                    while left > 0 {
                        // A copy may reach into itself: then it repeats what there is.
                        let from = out.len().checked_sub(back)?;
                        let n = left.min(back);
                        out.extend_from_within(from..from + n);
                        left -= n;
                    }
                }
            }
        }
        Some(out)
    }
}

/// A number of a few bytes, the least one first.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// Bytes that do not compress, bytes that do, and a mix.
    fn data() -> impl Strategy<Value = Vec<u8>> {
        let random = (any::<u64>(), 1usize..150_000).prop_map(|(seed, len)| noise(seed, len));
        let runs = (any::<u8>(), 1usize..150_000).prop_map(|(b, len)| vec![b; len]);
        let words = (any::<u64>(), 1usize..4_000, 1usize..40)
            .prop_map(|(seed, len, times)| noise(seed, len).repeat(times));
        proptest::collection::vec(prop_oneof![4 => random, 1 => runs, 2 => words], 0..5)
            .prop_map(|parts| parts.concat())
    }

    fn noise(mut seed: u64, len: usize) -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (seed >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn ranges(len: usize, cuts: &[u16]) -> Vec<Range<u64>> {
        let mut cuts: Vec<u64> =
            cuts.iter().map(|c| u64::from(*c) * (len as u64 + 1) / 65_536).collect();
        cuts.sort_unstable();
        cuts.chunks_exact(2).map(|c| c[0]..c[1]).collect()
    }

    fn stream(bytes: &Vec<u8>) -> Option<Stream<'_, Vec<u8>>> {
        Stream::new(Input::new(bytes, 0..bytes.len() as u64))
    }

    /// Whatever is read is right; whether everything could be read.
    fn check(packed: &Vec<u8>, plain: &[u8], ranges: &[Range<u64>]) -> bool {
        let Some(mut stream) = stream(packed) else { return false };
        assert_eq!(stream.len(), plain.len() as u64);
        for r in ranges {
            let tiny = r.start..r.end.min(r.start + 4);
            for r in [tiny, r.clone()] {
                let mut out = vec![1, 2, 3];
                if stream.read(r.clone(), &mut out).is_none() {
                    return false;
                }
                assert_eq!(out[3..], plain[r.start as usize..r.end as usize]);
            }
        }
        true
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn ranges_are_those_of_the_whole(
            plain in data(),
            cuts in proptest::collection::vec(any::<u16>(), 0..12),
        ) {
            let packed = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
            let all = check(&packed, &plain, &ranges(plain.len(), &cuts));
            // Tags are few in what does not compress, and looking at them pays.
            prop_assert!(all || packed.len() < plain.len() - plain.len() / 100);
        }

        #[test]
        fn damaged_streams_give_nothing_wrong(
            plain in data(),
            cuts in proptest::collection::vec(any::<u16>(), 0..12),
            damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6),
            near in any::<bool>(),
        ) {
            let mut packed = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
            let len = packed.len();
            for (at, byte) in damage {
                let at = usize::from(at) % if near { len.min(40) } else { len };
                packed[at] = byte;
            }
            match snap::raw::Decoder::new().decompress_vec(&packed) {
                Ok(plain) => {
                    check(&packed, &plain, &ranges(plain.len(), &cuts));
                }
                Err(_) => {
                    let Some(mut stream) = stream(&packed) else { return Ok(()) };
                    for r in ranges(stream.len() as usize, &cuts) {
                        let mut out = Vec::new();
                        if stream.read(r.clone(), &mut out).is_none() {
                            break;
                        }
                        prop_assert_eq!(out.len() as u64, r.end - r.start);
                    }
                }
            }
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(mut stream) = stream(&bytes) {
                let len = stream.len();
                let mut out = Vec::new();
                let _ = stream.read(len / 3..len / 2, &mut out);
                let _ = stream.read(0..len.min(1 << 20), &mut out);
            }
        }
    }

    #[test]
    fn every_kind_of_element() {
        // A literal of 5 with each length of tag, and copies with each length of offset.
        let mut packed = vec![5 * 5 + 4 + 9 + 3];
        packed.extend([4 << 2, 1, 2, 3, 4, 5]);
        packed.extend([60 << 2, 4, 6, 7, 8, 9, 10]);
        packed.extend([61 << 2, 4, 0, 11, 12, 13, 14, 15]);
        packed.extend([62 << 2, 4, 0, 0, 16, 17, 18, 19, 20]);
        packed.extend([63 << 2, 4, 0, 0, 0, 21, 22, 23, 24, 25]);
        packed.extend([1, 25]);
        packed.extend([8 << 2 | 2, 1, 0]);
        packed.extend([2 << 2 | 3, 38, 0, 0, 0]);
        let plain = snap::raw::Decoder::new().decompress_vec(&packed).unwrap();
        assert_eq!(plain.len(), 41);
        for a in 0..41 {
            assert!(check(&packed, &plain, std::slice::from_ref(&(a..41))));
        }
    }

    #[test]
    fn streams_of_other_encoders_are_left_alone() {
        // A literal that crosses the border of fragments, and a copy from before it.
        let plain = noise(1, 70_000);
        let mut packed = vec![0xf0, 0xa2, 0x04, 62 << 2, 0x6f, 0x11, 0x01];
        packed.extend(&plain);
        assert_eq!(snap::raw::Decoder::new().decompress_vec(&packed).unwrap(), plain);
        assert!(stream(&packed).unwrap().read(0..4, &mut Vec::new()).is_none());
        let mut packed = vec![0x84, 0x80, 0x04, 61 << 2, 0xff, 0xff];
        packed.extend(&plain[..65_536]);
        packed.extend([3 << 2 | 2, 4, 0]);
        assert_eq!(snap::raw::Decoder::new().decompress_vec(&packed).unwrap().len(), 65_540);
        let mut found = stream(&packed).unwrap();
        assert!(found.read(65_000..65_536, &mut Vec::new()).is_some());
        assert!(found.read(65_535..65_540, &mut Vec::new()).is_none());
    }
}
