//! Windows of dense rows, stored in the order in which they are delivered.
//!
//! Several threads decode the blocks of a window, and each puts its rows where the window's
//! permutation wants them. The window is memory of many chunks: batches read them one after the
//! other, and a chunk is given back as soon as the last batch over it is done, long before the
//! window's end. What is consumed of the open windows so makes room for the next ones.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::buffer::{Buffer, MutableBuffer};
use forebay_core::{Error, Result};

use crate::outputs::{Make, OutputSpec};
use crate::part::{Part, PartColumn, Places};

/// Bytes of a chunk: small against a window, and large enough that it is a mapping of its own, which
/// the system can have back.
const CHUNK: usize = 256 << 10;

/// Room for the rows of a window, filled by the [`Writer`]s of its blocks.
pub struct Arrangement {
    /// Bytes of a row in each output.
    widths: Vec<usize>,
    /// Rows of a chunk are 1 << shift.
    shift: u32,
    rows: usize,
    /// Entry r is the position of row r; `None` where that is r.
    places: Option<Vec<u32>>,
    /// Memory that is not initialised before all rows are written.
    chunks: Vec<MutableBuffer>,
    /// Rows of the blocks that are complete.
    written: AtomicUsize,
    /// Where the chunks begin.
    bases: Vec<NonNull<u8>>,
}

// SAFETY: The pointers lead to the chunks, which the same value owns and nobody resizes or reads
// before `finish` takes the value apart. Through a shared reference only writers write, and no two
// of them the same bytes: see `Writer::push`.
unsafe impl Send for Arrangement {}
// SAFETY: As above.
unsafe impl Sync for Arrangement {}

impl Arrangement {
    /// The bytes of a row of each output, where all are dense.
    pub fn widths(outputs: &[OutputSpec]) -> Option<Vec<usize>> {
        let width = |o: &OutputSpec| match &o.make {
            Make::Dense(spec) => Some(spec.width()),
            _ => None,
        };
        outputs.iter().map(width).collect()
    }

    /// Room for blocks of `lens` rows, and a writer for each of them. `permutation` says which row
    /// comes at each position. With `whole` all rows are one chunk: they stay, and are looked up.
    pub fn new(
        widths: Vec<usize>,
        permutation: Option<&[u32]>,
        lens: &[usize],
        whole: bool,
    ) -> Result<(Arc<Self>, Vec<Writer>)> {
        let rows: usize = lens.iter().sum();
        let places = permutation.map(|order| inverse(order, rows)).transpose()?;
        let width = widths.iter().sum::<usize>().max(1);
        let chunk = if whole { rows.next_power_of_two() } else { (CHUNK / width).max(1) };
        let shift = chunk.ilog2();
        let room = |rows: usize| widths.iter().map(|w| w * rows).sum();
        let mut chunks: Vec<MutableBuffer> = (0..rows)
            .step_by(1 << shift)
            .map(|first| MutableBuffer::with_capacity(room((rows - first).min(1 << shift))))
            .collect();
        let bases = chunks
            .iter_mut()
            .map(|c| NonNull::new(c.as_mut_ptr()).ok_or_else(|| Error::internal("no memory")))
            .collect::<Result<_>>()?;
        let written = AtomicUsize::new(0);
        let all = Arc::new(Self { widths, shift, rows, places, chunks, written, bases });
        let mut end = 0;
        let writer = |len: &usize| {
            let first = end;
            end += len;
            Writer { to: Arc::clone(&all), first, len: *len, at: 0 }
        };
        let writers = lens.iter().map(writer).collect();
        Ok((all, writers))
    }

    /// Rows of a chunk.
    fn rows_of(&self, chunk: usize) -> usize {
        (self.rows - (chunk << self.shift)).min(1 << self.shift)
    }

    /// The rows in order, once all writers are done.
    pub fn finish(self: Arc<Self>) -> Result<Vec<Part>> {
        let mut this = Arc::into_inner(self)
            .ok_or_else(|| Error::internal("a window was read while it was written"))?;
        if *this.written.get_mut() != this.rows {
            return Err(Error::internal("a window was read before all of its rows were written"));
        }
        let width: usize = this.widths.iter().sum();
        let chunks = std::mem::take(&mut this.chunks);
        let part = |(i, mut chunk): (usize, MutableBuffer)| {
            let rows = this.rows_of(i);
            // SAFETY: The capacity is that at least (`new`). Every byte was written: the blocks that
            // are complete have as many rows together as the window, so all are; each wrote all of
            // its rows, to positions that are apart, so every row of this chunk was written, in
            // every output.
            unsafe { chunk.set_len(width * rows) };
            let all = Buffer::from(chunk);
            let mut at = 0;
            let column = |width: &usize| {
                let bytes = all.slice_with_length(at, width * rows);
                at += width * rows;
                PartColumn::Dense(bytes)
            };
            let columns = this.widths.iter().map(column).collect();
            Part { places: Places::Many, rows, columns }
        };
        Ok(chunks.into_iter().enumerate().map(part).collect())
    }
}

/// Puts the rows of one block into their places.
pub struct Writer {
    to: Arc<Arrangement>,
    /// The block's first row within the window.
    first: usize,
    /// Rows of the block.
    len: usize,
    /// Rows so far.
    at: usize,
}

impl Writer {
    /// Writes the next `rows` rows; `columns` has them row by row, for each output.
    pub fn push(&mut self, rows: usize, columns: &[MutableBuffer]) -> Result<()> {
        let to = &*self.to;
        let fits = columns.len() == to.widths.len()
            && columns.iter().zip(&to.widths).all(|(c, w)| c.len() == rows * w);
        if rows > self.len - self.at || !fits {
            return Err(Error::internal("a block is not as large as its window expects"));
        }
        let first = self.first + self.at;
        // Bytes of the columns before, in a row.
        let mut before = 0;
        for (values, &width) in columns.iter().zip(&to.widths) {
            let source = values.as_ptr();
            let put = |row: usize, position: usize, n: usize| {
                let (chunk, within) = (position >> to.shift, position & ((1 << to.shift) - 1));
                let offset = before * to.rows_of(chunk) + within * width;
                // SAFETY: The source has rows * width bytes (checked above) and row + n <= rows.
                // The target: positions are below `rows` (`inverse` has checked them, and
                // first + row + n <= self.first + self.len is checked above), so the chunk exists;
                // within + n is at most the chunk's rows (for n > 1 the caller cuts at its end);
                // and the chunk has `before` bytes and then `width` bytes for each of its rows. No
                // other writer writes there: the writers' rows are apart (`new` lays them end to
                // end, and pushing needs &mut self) and `places` takes no two rows to one position.
                // Nobody reads: `finish` needs the only reference, and this writer holds another.
                unsafe {
                    let target = to.bases[chunk].as_ptr().add(offset);
                    target.copy_from_nonoverlapping(source.add(row * width), n * width);
                }
            };
            match &to.places {
                Some(places) => {
                    for (row, place) in places[first..first + rows].iter().enumerate() {
                        put(row, *place as usize, 1);
                    }
                }
                None => {
                    let mut row = 0;
                    while row < rows {
                        let position = first + row;
                        let end = ((position >> to.shift) + 1) << to.shift;
                        let n = (end - position).min(rows - row);
                        put(row, position, n);
                        row += n;
                    }
                }
            }
            before += width;
        }
        self.at += rows;
        Ok(())
    }

    /// Begins the block anew.
    pub fn restart(&mut self) {
        self.at = 0;
    }

    /// Checks that the block is complete.
    pub fn finish(self) -> Result<()> {
        if self.at == self.len {
            // What was written is seen by whoever holds the last reference.
            self.to.written.fetch_add(self.len, Ordering::Relaxed);
            return Ok(());
        }
        Err(Error::internal(format!(
            "a block has {} rows where the schedule has {}",
            self.at, self.len
        )))
    }
}

/// The position of each row; an error unless `order` is a permutation of 0..rows.
fn inverse(order: &[u32], rows: usize) -> Result<Vec<u32>> {
    let no = || Error::internal("the order of a window is not a permutation of its rows");
    if order.len() != rows || u32::try_from(rows).is_err() {
        return Err(no());
    }
    let mut places = vec![u32::MAX; rows];
    for (position, row) in (0u32..).zip(order) {
        let place = places.get_mut(*row as usize).filter(|p| **p == u32::MAX).ok_or_else(no)?;
        *place = position;
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(part: &Part, column: usize) -> Vec<u8> {
        match &part.columns[column] {
            PartColumn::Dense(b) => b.to_vec(),
            PartColumn::Arrow(_) => Vec::new(),
        }
    }

    /// Rows of two outputs, 4 and 3 bytes, as a function of the row number.
    fn row(r: usize) -> ([u8; 4], [u8; 3]) {
        let four = (r as u32).to_le_bytes();
        (four, [four[0] ^ 7, four[1], 9])
    }

    fn filled(
        permutation: Option<&[u32]>,
        lens: &[usize],
        wide: usize,
        whole: bool,
    ) -> Result<Vec<Part>> {
        let (all, writers) = Arrangement::new(vec![4, 3 * wide], permutation, lens, whole)?;
        std::thread::scope(|scope| {
            for mut writer in writers {
                scope.spawn(move || {
                    let (first, len) = (writer.first, writer.len);
                    for again in [false, true] {
                        for at in (0..len).step_by(5) {
                            let rows = at..(at + 5).min(len);
                            let mut columns = [MutableBuffer::new(0), MutableBuffer::new(0)];
                            for r in rows.clone() {
                                columns[0].extend_from_slice(&row(first + r).0);
                                columns[1].extend_from_slice(&row(first + r).1.repeat(wide));
                            }
                            writer.push(rows.len(), &columns)?;
                        }
                        if !again {
                            writer.restart();
                        }
                    }
                    writer.finish()
                });
            }
        });
        all.finish()
    }

    #[test]
    fn rows_come_in_the_order_of_the_permutation() -> Result<()> {
        // A stride that shares no factor with the rows visits each once.
        let rows = 17 + 3 + 40;
        let order: Vec<u32> = (0..rows).map(|p| (p * 7 + 5) % rows).collect();
        let cases = [(None, false), (None, true), (Some(order.as_slice()), false)];
        for (permutation, whole) in cases {
            // Chunks of 8 rows, so that there are several and the last is not full.
            let wide = CHUNK / 3 / 8 - 1;
            let parts = filled(permutation, &[17, 3, 0, 40], wide, whole)?;
            let lens: Vec<usize> = parts.iter().map(|p| p.rows).collect();
            assert_eq!(lens, if whole { vec![60] } else { vec![8, 8, 8, 8, 8, 8, 8, 4] });
            let mut position = 0;
            for part in &parts {
                let (four, three) = (dense(part, 0), dense(part, 1));
                for (a, b) in four.chunks(4).zip(three.chunks(3 * wide)) {
                    let r = permutation.map_or(position, |o| o[position] as usize);
                    assert_eq!(a, row(r).0, "position {position}");
                    assert_eq!(b, row(r).1.repeat(wide), "position {position}");
                    position += 1;
                }
            }
            assert_eq!(position, rows as usize);
        }
        Ok(())
    }

    #[test]
    fn what_is_no_permutation_is_refused() {
        for wrong in [&[0u32, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, u32::MAX]] {
            assert!(Arrangement::new(vec![4], Some(wrong), &[3], false).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn blocks_of_another_size_are_refused() -> Result<()> {
        let (all, mut writers) = Arrangement::new(vec![2], None, &[2, 2], false)?;
        let mut first = writers.remove(0);
        let rows = |n: usize| [MutableBuffer::from_len_zeroed(n * 2)];
        assert!(first.push(3, &rows(3)).is_err(), "more rows than the block has");
        assert!(first.push(2, &rows(1)).is_err(), "fewer bytes than rows");
        first.push(1, &rows(1))?;
        assert!(first.push(2, &rows(2)).is_err(), "more rows than are left");
        assert!(first.finish().is_err(), "a row is missing");
        assert!(all.finish().is_err(), "a writer is at work");
        let (all, writers) = Arrangement::new(vec![2], None, &[2, 2], false)?;
        drop(writers);
        assert!(all.finish().is_err(), "nothing was written");
        Ok(())
    }
}
