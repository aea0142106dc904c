//! The row index: which rows of each block take part, known before the first batch.
//!
//! A loader needs exact counts before it can lay out an epoch. Without filters they are in the
//! footers; with them the filter's columns are read once.

use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_core::{Account, Result};
use forebay_sql::{Applied, Relation};

use crate::pipeline::Pipeline;
use crate::scan::Scan;
use crate::stats::Stats;
use crate::window::{locate, origin};

/// The rows of one block that take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockRows {
    /// All of them.
    All,
    /// These, ascending.
    Some(Vec<u32>),
}

/// The rows of all blocks that take part.
#[derive(Debug)]
pub struct RowIndex {
    blocks: Vec<BlockRows>,
    totals: Vec<u64>,
}

impl RowIndex {
    /// The rows of a block.
    pub fn block(&self, block: usize) -> &BlockRows {
        &self.blocks[block]
    }

    /// How many rows of a block take part.
    pub fn rows(&self, block: usize) -> u64 {
        match &self.blocks[block] {
            BlockRows::All => self.totals[block],
            BlockRows::Some(rows) => rows.len() as u64,
        }
    }

    /// Rows over all blocks.
    pub fn total(&self) -> u64 {
        (0..self.blocks.len()).map(|b| self.rows(b)).sum()
    }

    /// Bytes of the index.
    pub fn bytes(&self) -> u64 {
        self.blocks
            .iter()
            .map(|b| match b {
                BlockRows::All => 0,
                BlockRows::Some(rows) => rows.capacity() as u64 * 4,
            })
            .sum()
    }

    /// Builds the index. `tick` is called while waiting and may stop it.
    pub fn build(
        pipeline: &Pipeline,
        account: Account,
        threads: usize,
        stats: &Arc<Stats>,
        mut tick: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let totals: Vec<u64> =
            pipeline.dataset.blocks.iter().map(|b| b.rows.end - b.rows.start).collect();
        let Some(filter) = pipeline.relation.row_filter() else {
            return Ok(Self { blocks: vec![BlockRows::All; totals.len()], totals });
        };
        let mut blocks = vec![BlockRows::Some(Vec::new()); totals.len()];
        if !filter.has_filter() {
            // Limits alone need no data.
            let mut left =
                filter.segments().iter().filter_map(|s| s.limit()).min().unwrap_or(u64::MAX);
            for (rows, total) in blocks.iter_mut().zip(&totals) {
                *rows = if left >= *total {
                    BlockRows::All
                } else {
                    BlockRows::Some((0..left as u32).collect())
                };
                left = left.saturating_sub(*total);
            }
            return Ok(Self { blocks, totals });
        }
        let candidates = candidates(pipeline);
        let reader = pipeline.reader.select(&filter.input_columns())?;
        let relation = Arc::new(filter);
        let first = Arc::clone(&relation);
        let owner = pipeline.clone();
        let mut scan = Scan::start(
            reader,
            candidates.clone(),
            account,
            threads,
            Arc::clone(stats),
            Arc::new(move |block, batches: Vec<RecordBatch>, _: &mut _| {
                first_segment(&owner, &first, block, batches)
            }),
        )?;
        let mut limits = Limits::new(&relation);
        while let Some(scanned) = scan.next(&mut tick) {
            let scanned = scanned?;
            let block = candidates[scanned.position];
            let mut kept = Vec::new();
            for piece in scanned.value {
                let piece = limits.apply(piece)?;
                kept.extend(piece.rows());
            }
            blocks[block] = if kept.len() as u64 == totals[block] {
                BlockRows::All
            } else {
                kept.shrink_to_fit();
                BlockRows::Some(kept)
            };
            if limits.exhausted() {
                break;
            }
        }
        Ok(Self { blocks, totals })
    }
}

/// Blocks that can hold a row of the result, by their statistics.
pub fn candidates(pipeline: &Pipeline) -> Vec<usize> {
    let dataset = &pipeline.dataset;
    (0..dataset.blocks.len())
        .filter(|b| {
            let block = &dataset.blocks[*b];
            let file = &dataset.files[block.file];
            block.rows.end > block.rows.start
                && pipeline.relation.may_contain(file, block.row_group)
        })
        .collect()
}

/// Rows of one decoded batch on their way through a relation.
pub struct Piece {
    /// The rows so far.
    pub batch: RecordBatch,
    /// Which rows of the block's decoded batch they are; `None` for all.
    pub kept: Option<Vec<u32>>,
    /// First row of the decoded batch within the block.
    pub at: u32,
    /// Where that batch comes from.
    pub origin: crate::part::Origin,
}

impl Piece {
    /// The rows as numbers within the block.
    fn rows(&self) -> Vec<u32> {
        match &self.kept {
            Some(kept) => kept.iter().map(|r| r + self.at).collect(),
            None => (self.at..self.at + self.batch.num_rows() as u32).collect(),
        }
    }

    fn then(&mut self, applied: Applied) {
        self.batch = applied.batch;
        self.kept = match (self.kept.take(), applied.kept) {
            (None, kept) => kept,
            (kept, None) => kept,
            (Some(before), Some(kept)) => {
                Some(kept.iter().filter_map(|r| before.get(*r as usize).copied()).collect())
            }
        };
    }

    fn truncate(&mut self, rows: u64) {
        if (self.batch.num_rows() as u64) > rows {
            let rows = rows as usize;
            self.batch = self.batch.slice(0, rows);
            match &mut self.kept {
                Some(kept) => kept.truncate(rows),
                None => self.kept = Some((0..rows as u32).collect()),
            }
        }
    }
}

/// The first segment of a relation, which needs no order.
pub fn first_segment(
    pipeline: &Pipeline,
    relation: &Relation,
    block: usize,
    batches: Vec<RecordBatch>,
) -> Result<Vec<Piece>> {
    let mut at = 0u32;
    let mut pieces = Vec::with_capacity(batches.len());
    for batch in batches {
        let origin = origin(pipeline, block, u64::from(at));
        let rows = batch.num_rows() as u32;
        let mut piece = Piece { batch, kept: None, at, origin };
        if let Some(segment) = relation.segments().first() {
            let applied =
                segment.apply(&piece.batch).map_err(|e| locate(e, &piece.origin, None))?;
            piece.then(applied);
        }
        at += rows;
        pieces.push(piece);
    }
    Ok(pieces)
}

/// The limits of a relation and the segments behind them, applied to pieces in order.
pub struct Limits {
    relation: Relation,
    left: Vec<Option<u64>>,
}

impl Limits {
    /// Nothing has passed yet.
    pub fn new(relation: &Relation) -> Self {
        let left = relation.segments().iter().map(|s| s.limit()).collect();
        Self { relation: relation.clone(), left }
    }

    /// Whether the relation has no limit at all, so that pieces need no order.
    pub fn none(&self) -> bool {
        self.left.iter().all(Option::is_none)
    }

    /// Whether no further row can pass.
    pub fn exhausted(&self) -> bool {
        self.left.contains(&Some(0))
    }

    /// Applies the first segment's limit, then each further segment and its limit.
    pub fn apply(&mut self, mut piece: Piece) -> Result<Piece> {
        for (n, segment) in self.relation.segments().iter().enumerate() {
            if n > 0 {
                let applied = segment
                    .apply(&piece.batch)
                    .map_err(|e| locate(e, &piece.origin, piece.kept.as_deref()))?;
                piece.then(applied);
            }
            if let Some(left) = self.left.get_mut(n).and_then(Option::as_mut) {
                piece.truncate(*left);
                *left -= piece.batch.num_rows() as u64;
            }
        }
        Ok(piece)
    }
}

