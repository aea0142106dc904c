//! Which row groups and pages cannot hold a row that passes.
//!
//! Promise: what is pruned holds no row that the filters before the first limit would keep. A row
//! that would only have made a filter fail may be pruned away with its row group.

use std::fmt;

use arrow::array::{Array, ArrayRef, BooleanArray, Scalar, UInt64Array};
use arrow::compute::kernels::cmp;
use arrow::compute::{and_kleene, or_kleene};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

use crate::df::{Expr, ScalarValue};
use crate::predicate::{Builder, Compare, StatColumn, Test};
use crate::relation::Relation;
use crate::stats::{self, Bounds, FileStats};

/// The test of a relation's filters on statistics.
pub(crate) struct Pruner {
    columns: Vec<StatColumn>,
    test: Test,
}

/// Bounds of all columns of a test, for the same containers.
struct Containers {
    bounds: Vec<Option<Bounds>>,
    rows: UInt64Array,
}

impl Relation {
    /// Which row groups may hold a row that passes, one answer for each row group of the file.
    pub fn prune_row_groups(&self, file: &FileStats<'_>) -> Vec<bool> {
        let groups: Vec<usize> = (0..file.metadata.num_row_groups()).collect();
        self.pruner().map_or_else(|| vec![true; groups.len()], |p| p.row_groups(file, &groups))
    }

    /// Whether a row group may hold a row that passes (false: it need not be read).
    pub fn prune_row_group(&self, file: &FileStats<'_>, row_group: usize) -> bool {
        self.pruner()
            .is_none_or(|p| p.row_groups(file, &[row_group]).first().copied().unwrap_or(true))
    }

    /// Whether a file may hold a row that passes, from its partition columns alone: its footer need
    /// not have been read.
    pub fn prune_file(&self, constants: &[(String, ArrayRef)]) -> bool {
        self.pruner().is_none_or(|p| p.constants(constants))
    }

    /// The rows of a row group that may pass, where a page index says so. None: all of them, or
    /// there is no index.
    pub fn prune_pages(&self, file: &FileStats<'_>, row_group: usize) -> Option<RowSelection> {
        self.pruner().and_then(|p| p.pages(file, row_group))
    }

    /// The test on statistics as text; None where no statistics could decide anything.
    pub fn pruning_text(&self) -> Option<String> {
        self.pruner().map(ToString::to_string)
    }
}

impl Pruner {
    /// The test of filters over the columns of `schema`; None if it lets everything through.
    pub(crate) fn new(filters: &[Expr], schema: &SchemaRef) -> Option<Self> {
        let mut builder = Builder::new(schema);
        let test = builder.all(filters);
        let columns = builder.columns;
        (test != Test::Always).then_some(Self { columns, test })
    }

    fn row_groups(&self, file: &FileStats<'_>, groups: &[usize]) -> Vec<bool> {
        let bounds =
            self.columns.iter().map(|c| Some(stats::row_groups(file, c, groups))).collect();
        let rows = groups.iter().map(|g| stats::rows_of(file.metadata, *g)).collect();
        passes(&self.test, &Containers { bounds, rows })
    }

    fn constants(&self, constants: &[(String, ArrayRef)]) -> bool {
        let known = |i: usize| {
            self.columns.get(i).is_some_and(|c| constants.iter().any(|(n, _)| *n == c.name))
        };
        let test = self.test.restrict(&known);
        let bounds = self
            .columns
            .iter()
            .map(|c| {
                constants
                    .iter()
                    .find(|(n, _)| *n == c.name)
                    .map(|(_, v)| stats::constant(v, &c.dtype, &[1]))
            })
            .collect();
        passes(&test, &Containers { bounds, rows: UInt64Array::from(vec![1]) })
            .first()
            .copied()
            .unwrap_or(true)
    }

    fn pages(&self, file: &FileStats<'_>, group: usize) -> Option<RowSelection> {
        let mut selection: Option<RowSelection> = None;
        // Pages of different columns have different borders, so each column is tested on its own:
        // what the test says of the others is taken as true.
        let mut names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let own = |c: &StatColumn| c.name == name;
            let mut rows = None;
            let mut bounds: Vec<Option<Bounds>> = self
                .columns
                .iter()
                .map(|c| {
                    let (bounds, pages) = if own(c) { stats::pages(file, c, group) } else { None }?;
                    rows = Some(pages);
                    Some(bounds)
                })
                .collect();
            let Some(rows) = rows else { continue };
            // Columns that are the same in every row have no pages, and are known all the same.
            for (column, bounds) in self.columns.iter().zip(&mut bounds) {
                if bounds.is_none() {
                    *bounds = stats::whole_file(file, column, &rows);
                }
            }
            let known = |i: usize| bounds.get(i).is_some_and(Option::is_some);
            let test = self.test.restrict(&known);
            if test == Test::Always {
                continue;
            }
            let may = passes(&test, &Containers { bounds, rows: UInt64Array::from(rows.clone()) });
            if may.iter().all(|m| *m) {
                continue;
            }
            let mut selectors: Vec<RowSelector> = Vec::new();
            for (rows, may) in rows.iter().zip(may) {
                let rows = usize::try_from(*rows).unwrap_or(usize::MAX);
                match selectors.last_mut() {
                    Some(last) if last.skip != may => last.row_count += rows,
                    _ => selectors.push(if may {
                        RowSelector::select(rows)
                    } else {
                        RowSelector::skip(rows)
                    }),
                }
            }
            let this = RowSelection::from(selectors);
            selection = Some(match selection {
                Some(before) => before.intersection(&this),
                None => this,
            });
        }
        selection
    }
}

impl fmt::Display for Pruner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::explain::shorten(&self.test.describe(&self.columns)))
    }
}

/// One answer per container: may it hold a row that passes? In doubt, or on an error, yes.
fn passes(test: &Test, containers: &Containers) -> Vec<bool> {
    let count = containers.rows.len();
    match evaluate(test, containers) {
        Ok(answer) if answer.len() == count => (0..count)
            .map(|i| answer.is_null(i) || answer.value(i) || containers.rows.value(i) == 0)
            .collect(),
        _ => vec![true; count],
    }
}

/// Three-valued: null is "cannot tell".
fn evaluate(test: &Test, containers: &Containers) -> Result<BooleanArray, ArrowError> {
    let count = containers.rows.len();
    match test {
        Test::Always => Ok(BooleanArray::from(vec![true; count])),
        Test::Never => Ok(BooleanArray::from(vec![false; count])),
        Test::And(tests) => {
            tests.iter().try_fold(BooleanArray::from(vec![true; count]), |all, t| {
                and_kleene(&all, &evaluate(t, containers)?)
            })
        }
        Test::Or(tests) => {
            tests.iter().try_fold(BooleanArray::from(vec![false; count]), |any, t| {
                or_kleene(&any, &evaluate(t, containers)?)
            })
        }
        Test::IsNull(i) => match bounds(containers, *i) {
            Some(b) => cmp::gt(&b.nulls, &UInt64Array::new_scalar(0)),
            None => Ok(BooleanArray::new_null(count)),
        },
        Test::IsNotNull(i) => match bounds(containers, *i) {
            Some(b) => cmp::neq(&b.nulls, &containers.rows),
            None => Ok(BooleanArray::new_null(count)),
        },
        Test::Compare(i, op, value) => match bounds(containers, *i) {
            Some(b) => {
                let not_all_null = cmp::neq(&b.nulls, &containers.rows)?;
                and_kleene(&not_all_null, &compare(b, *op, value)?)
            }
            None => Ok(BooleanArray::new_null(count)),
        },
    }
}

fn bounds(containers: &Containers, column: usize) -> Option<&Bounds> {
    containers.bounds.get(column).and_then(Option::as_ref)
}

/// Whether a value between the bounds can compare as asked.
fn compare(bounds: &Bounds, op: Compare, value: &ScalarValue) -> Result<BooleanArray, ArrowError> {
    let value: ArrayRef = value.to_array().map_err(|e| ArrowError::ComputeError(e.to_string()))?;
    let value = Scalar::new(value);
    let (min, max) = (&bounds.min, &bounds.max);
    match op {
        Compare::Eq => and_kleene(&cmp::lt_eq(min, &value)?, &cmp::gt_eq(max, &value)?),
        // Only if all values are the constant is none different.
        Compare::NotEq => or_kleene(&cmp::neq(min, &value)?, &cmp::neq(max, &value)?),
        Compare::Lt => cmp::lt(min, &value),
        Compare::LtEq => cmp::lt_eq(min, &value),
        Compare::Gt => cmp::gt(max, &value),
        Compare::GtEq => cmp::gt_eq(max, &value),
    }
}
