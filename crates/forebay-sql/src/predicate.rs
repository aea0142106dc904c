//! The part of a filter that statistics can answer.
//!
//! A [`Test`] is weaker than the filter it comes from: every row that the filter keeps passes the
//! test. It is built from a short list of forms that minimum, maximum and null count decide —
//! comparison of a column with a constant, IN, LIKE with a prefix, IS NULL — and whatever is not on
//! the list becomes `true`. So a mistake here can only be in a form that is written out below.
//!
//! Why not DataFusion's `PruningPredicate`: it takes any expression and trusts the maximum of a
//! float column although a NaN beyond it passes `x > 60`, and it would bring the execution engine
//! and the data sources into the build (`docs/decisions/0002-datafusion-as-expressions.md`).

use std::collections::BTreeSet;
use std::fmt;

use arrow::datatypes::{DataType, Schema};

use crate::df::{Expr, Operator, ScalarValue, TreeNode, TreeNodeRecursion};

/// A column as statistics see it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatColumn {
    /// Its name in the dataset.
    pub(crate) name: String,
    /// The type in which values are compared: the column's own without dictionary or view, or the
    /// target of a cast that keeps the order.
    pub(crate) dtype: DataType,
    /// Whether it may hold NaN: it is a float, and no cast of an integer.
    pub(crate) nan: bool,
}

/// Comparisons of a column with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
}

/// A test that every row which passes the filter passes too.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// Nothing is known.
    Always,
    /// No row passes.
    Never,
    And(Vec<Test>),
    Or(Vec<Test>),
    /// Column (by index) against a constant that is neither null nor NaN.
    Compare(usize, Compare, ScalarValue),
    IsNull(usize),
    IsNotNull(usize),
}

/// An IN list up to this length is tested value by value; a longer one by its least and greatest
/// value, which costs the same for any length.
const LIST: usize = 64;

/// Builds tests and collects the columns that they read.
pub(crate) struct Builder<'a> {
    schema: &'a Schema,
    pub(crate) columns: Vec<StatColumn>,
}

/// The number of nodes of an expression.
pub(crate) fn size(expr: &Expr) -> usize {
    let mut count = 0;
    // The closure never fails.
    let _ = expr.apply(|_| {
        count += 1;
        Ok(TreeNodeRecursion::Continue)
    });
    count
}

impl<'a> Builder<'a> {
    pub(crate) fn new(schema: &'a Schema) -> Self {
        Self { schema, columns: Vec::new() }
    }

    /// The test of several filters that a row passes one after the other.
    pub(crate) fn all(&mut self, filters: &[Expr]) -> Test {
        let tests = filters.iter().map(|f| self.raw(f)).collect();
        let test = self.and(tests);
        self.settle(test)
    }

    /// The test, in which lower bounds on floats may still be unsafe; [`Builder::settle`] ends that.
    fn raw(&mut self, expr: &Expr) -> Test {
        match expr {
            Expr::Literal(ScalarValue::Boolean(Some(true)), _) => Test::Always,
            Expr::Literal(ScalarValue::Boolean(_) | ScalarValue::Null, _) => Test::Never,
            Expr::Column(_) => self.boolean(expr, true),
            Expr::IsTrue(inner) => self.boolean(inner, true),
            // Not deeper: NOT (b IS TRUE) holds for null, and b = false does not.
            Expr::Not(inner) | Expr::IsFalse(inner) => self.boolean(inner, false),
            Expr::IsNull(inner) => self.own_column(inner).map_or(Test::Always, Test::IsNull),
            Expr::IsNotNull(inner) => self.own_column(inner).map_or(Test::Always, Test::IsNotNull),
            Expr::BinaryExpr(b) => match b.op {
                Operator::And => {
                    let sides = vec![self.raw(&b.left), self.raw(&b.right)];
                    self.and(sides)
                }
                Operator::Or => {
                    let sides = [self.raw(&b.left), self.raw(&b.right)];
                    // A side on its own must be safe: the other may be what a NaN fails.
                    or(sides.into_iter().map(|t| self.settle(t)).collect())
                }
                op => match (&*b.left, &*b.right) {
                    (column, Expr::Literal(value, _)) => self.compare(column, op, value),
                    (Expr::Literal(value, _), column) => match op.swap() {
                        Some(op) => self.compare(column, op, value),
                        None => Test::Always,
                    },
                    _ => Test::Always,
                },
            },
            Expr::Between(between) if !between.negated => match (&*between.low, &*between.high) {
                (Expr::Literal(low, _), Expr::Literal(high, _)) => {
                    let sides = vec![
                        self.compare(&between.expr, Operator::GtEq, low),
                        self.compare(&between.expr, Operator::LtEq, high),
                    ];
                    self.and(sides)
                }
                _ => Test::Always,
            },
            Expr::InList(list) => {
                let values: Option<Vec<&ScalarValue>> = list
                    .list
                    .iter()
                    .map(|e| if let Expr::Literal(value, _) = e { Some(value) } else { None })
                    .collect();
                match values {
                    Some(values) => self.in_list(&list.expr, &values, list.negated),
                    None => Test::Always,
                }
            }
            Expr::Like(like) if !like.negated && !like.case_insensitive => match &*like.pattern {
                Expr::Literal(pattern, _) => match text(pattern) {
                    Some(pattern) => self.prefix(&like.expr, like_prefix(pattern)),
                    None => Test::Always,
                },
                _ => Test::Always,
            },
            Expr::ScalarFunction(call) if call.name() == "starts_with" => {
                match call.args.as_slice() {
                    [column, Expr::Literal(prefix, _)] => match text(prefix) {
                        Some(prefix) => self.prefix(column, prefix),
                        None => Test::Always,
                    },
                    _ => Test::Always,
                }
            }
            _ => Test::Always,
        }
    }

    /// A boolean column that must be `value`, and so not null.
    fn boolean(&mut self, expr: &Expr, value: bool) -> Test {
        match self.own_column(expr) {
            Some(i) if self.columns.get(i).is_some_and(|c| c.dtype == DataType::Boolean) => {
                Test::Compare(i, Compare::Eq, ScalarValue::Boolean(Some(value)))
            }
            _ => Test::Always,
        }
    }

    fn compare(&mut self, column: &Expr, op: Operator, value: &ScalarValue) -> Test {
        let op = match op {
            Operator::Eq | Operator::IsNotDistinctFrom => Compare::Eq,
            Operator::NotEq => Compare::NotEq,
            Operator::Lt => Compare::Lt,
            Operator::LtEq => Compare::LtEq,
            Operator::Gt => Compare::Gt,
            Operator::GtEq => Compare::GtEq,
            _ => return Test::Always,
        };
        let Some(column) = self.column(column) else { return Test::Always };
        let Some(value) = self.columns.get(column).and_then(|c| constant(value, &c.dtype)) else {
            return Test::Always;
        };
        Test::Compare(column, op, value)
    }

    fn in_list(&mut self, column: &Expr, values: &[&ScalarValue], negated: bool) -> Test {
        if negated {
            let tests = values.iter().map(|v| self.compare(column, Operator::NotEq, v)).collect();
            return self.and(tests);
        }
        // NULL in the list makes nothing equal.
        let values: Vec<&ScalarValue> = values.iter().copied().filter(|v| !v.is_null()).collect();
        if values.len() <= LIST {
            return or(values.iter().map(|v| self.compare(column, Operator::Eq, v)).collect());
        }
        let mut range: Option<(&ScalarValue, &ScalarValue)> = None;
        for value in values {
            range = Some(match range {
                None => (value, value),
                Some((low, high)) => match (value.partial_cmp(low), value.partial_cmp(high)) {
                    (Some(a), Some(b)) => {
                        (if a.is_lt() { value } else { low }, if b.is_gt() { value } else { high })
                    }
                    _ => return Test::Always,
                },
            });
        }
        let Some((low, high)) = range else { return Test::Never };
        let sides = vec![
            self.compare(column, Operator::GtEq, low),
            self.compare(column, Operator::LtEq, high),
        ];
        self.and(sides)
    }

    /// Text that begins with `prefix`.
    fn prefix(&mut self, column: &Expr, prefix: &str) -> Test {
        if prefix.is_empty() {
            return Test::Always;
        }
        let low = ScalarValue::Utf8(Some(prefix.to_owned()));
        let mut tests = vec![self.compare(column, Operator::GtEq, &low)];
        // What follows all texts with the prefix: the last character replaced by the next one.
        // Only where that is an ASCII character too; else the lower bound has to do.
        let mut next = prefix.to_owned();
        if let Some(last) = next.pop().filter(|c| c.is_ascii() && *c < '~') {
            next.push(char::from(last as u8 + 1));
            tests.push(self.compare(column, Operator::Lt, &ScalarValue::Utf8(Some(next))));
        }
        self.and(tests)
    }

    /// A column, or a cast of one that keeps the order of all values.
    fn column(&mut self, expr: &Expr) -> Option<usize> {
        let (name, target) = match expr {
            Expr::Column(c) => (&c.name, None),
            Expr::Cast(cast) => match &*cast.expr {
                Expr::Column(c) => (&c.name, Some(cast.field.data_type())),
                _ => return None,
            },
            Expr::TryCast(cast) => match &*cast.expr {
                Expr::Column(c) => (&c.name, Some(cast.field.data_type())),
                _ => return None,
            },
            _ => return None,
        };
        let own = plain(self.schema.field_with_name(name).ok()?.data_type())?;
        let dtype = match target {
            None => own.clone(),
            Some(target) => {
                let target = plain(target)?;
                if !keeps_order(&own, &target) {
                    return None;
                }
                target
            }
        };
        Some(self.index(StatColumn { name: name.clone(), nan: own.is_floating(), dtype }))
    }

    /// A column itself: null counts say nothing about a cast, which may make nulls.
    fn own_column(&mut self, expr: &Expr) -> Option<usize> {
        if matches!(expr, Expr::Column(_)) { self.column(expr) } else { None }
    }

    fn index(&mut self, column: StatColumn) -> usize {
        match self.columns.iter().position(|c| *c == column) {
            Some(i) => i,
            None => {
                self.columns.push(column);
                self.columns.len() - 1
            }
        }
    }

    /// AND of raw tests, flat.
    fn and(&self, tests: Vec<Test>) -> Test {
        let mut flat = Vec::new();
        for test in tests {
            match test {
                Test::Always => {}
                Test::Never => return Test::Never,
                Test::And(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Test::Always,
            1 => flat.remove(0),
            _ => Test::And(flat),
        }
    }

    /// Drops what a NaN that statistics do not show could pass.
    ///
    /// NaN is greater than every number, and writers leave it out of minimum and maximum. So the
    /// minimum of a float column holds for every row, and the maximum only for rows that are not
    /// NaN. `x <= 5`, `x < 5` and `x = 5` are never true for NaN; `x > 5`, `x >= 5` and `x <> 5`
    /// are, unless one of the former has to be true as well.
    fn settle(&self, test: Test) -> Test {
        let parts = match test {
            Test::And(parts) => parts,
            other => vec![other],
        };
        let excludes_nan: BTreeSet<&str> = parts
            .iter()
            .filter_map(|t| match t {
                Test::Compare(i, Compare::Eq | Compare::Lt | Compare::LtEq, _) => {
                    self.columns.get(*i)
                }
                _ => None,
            })
            .map(|c| c.name.as_str())
            .collect();
        let safe = |t: &Test| match t {
            Test::Compare(i, Compare::Gt | Compare::GtEq | Compare::NotEq, _) => self
                .columns
                .get(*i)
                .is_some_and(|c| !c.nan || excludes_nan.contains(c.name.as_str())),
            _ => true,
        };
        self.and(parts.iter().filter(|t| safe(t)).cloned().collect())
    }
}

/// OR of settled tests, flat.
fn or(tests: Vec<Test>) -> Test {
    let mut flat = Vec::new();
    for test in tests {
        match test {
            Test::Always => return Test::Always,
            Test::Never => {}
            Test::Or(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    match flat.len() {
        0 => Test::Never,
        1 => flat.remove(0),
        _ => Test::Or(flat),
    }
}

impl Test {
    /// What is left of the test if only the columns in `known` have statistics.
    pub(crate) fn restrict(&self, known: &dyn Fn(usize) -> bool) -> Self {
        match self {
            Self::And(tests) => {
                let kept: Vec<Self> = tests
                    .iter()
                    .map(|t| t.restrict(known))
                    .filter(|t| *t != Self::Always)
                    .collect();
                if kept.is_empty() { Self::Always } else { Self::And(kept) }
            }
            Self::Or(tests) => or(tests.iter().map(|t| t.restrict(known)).collect()),
            Self::Compare(i, ..) | Self::IsNull(i) | Self::IsNotNull(i) if !known(*i) => {
                Self::Always
            }
            other => other.clone(),
        }
    }

    /// The test as text.
    pub(crate) fn describe(&self, columns: &[StatColumn]) -> String {
        let name = |i: &usize| columns.get(*i).map_or("?", |c| c.name.as_str());
        let list = |tests: &[Self], word: &str| {
            let parts: Vec<String> = tests
                .iter()
                .map(|t| match t {
                    Self::And(_) | Self::Or(_) => format!("({})", t.describe(columns)),
                    _ => t.describe(columns),
                })
                .collect();
            parts.join(word)
        };
        match self {
            Self::Always => "true".to_owned(),
            Self::Never => "false".to_owned(),
            Self::And(tests) => list(tests, " AND "),
            Self::Or(tests) => list(tests, " OR "),
            Self::Compare(i, op, value) => match text(value) {
                Some(text) => format!("{} {op} '{text}'", name(i)),
                None => format!("{} {op} {value}", name(i)),
            },
            Self::IsNull(i) => format!("{} IS NULL", name(i)),
            Self::IsNotNull(i) => format!("{} IS NOT NULL", name(i)),
        }
    }
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "=",
            Self::NotEq => "<>",
            Self::Lt => "<",
            Self::LtEq => "<=",
            Self::Gt => ">",
            Self::GtEq => ">=",
        })
    }
}

/// A type without dictionary, view or large offsets; None for types whose statistics are not used.
pub(crate) fn plain(dtype: &DataType) -> Option<DataType> {
    match dtype {
        DataType::Dictionary(_, value) => plain(value),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::Utf8),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(DataType::Binary),
        DataType::Boolean
        | DataType::FixedSizeBinary(_)
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Some(dtype.clone()),
        other if other.is_numeric() => Some(other.clone()),
        _ => None,
    }
}

/// Whether casting keeps the order (equal values may come of different ones): a ≤ b gives
/// cast(a) ≤ cast(b) wherever the cast succeeds.
pub(crate) fn keeps_order(from: &DataType, to: &DataType) -> bool {
    if from == to || (from.is_integer() && (to.is_integer() || to.is_floating())) {
        return true;
    }
    match (from, to) {
        (DataType::Float16, DataType::Float32 | DataType::Float64)
        | (DataType::Float32, DataType::Float64) => true,
        (DataType::Timestamp(_, a), DataType::Timestamp(_, b)) => a.is_some() == b.is_some(),
        _ => false,
    }
}

/// The constant in the type of the column: not null, not NaN.
fn constant(value: &ScalarValue, dtype: &DataType) -> Option<ScalarValue> {
    let value = match value {
        ScalarValue::Dictionary(_, inner) => inner,
        other => other,
    };
    let value = if value.data_type() == *dtype {
        value.clone()
    } else if plain(&value.data_type())? == *dtype {
        value.cast_to(dtype).ok()?
    } else {
        return None;
    };
    let nan = match &value {
        ScalarValue::Float16(Some(v)) => v.is_nan(),
        ScalarValue::Float32(Some(v)) => v.is_nan(),
        ScalarValue::Float64(Some(v)) => v.is_nan(),
        _ => false,
    };
    (!value.is_null() && !nan).then_some(value)
}

fn text(value: &ScalarValue) -> Option<&str> {
    match value {
        ScalarValue::Utf8(Some(s))
        | ScalarValue::LargeUtf8(Some(s))
        | ScalarValue::Utf8View(Some(s)) => Some(s),
        ScalarValue::Dictionary(_, inner) => text(inner),
        _ => None,
    }
}

/// The part of a LIKE pattern before the first wildcard or escape.
fn like_prefix(pattern: &str) -> &str {
    pattern.split(['%', '_', '\\']).next().unwrap_or("")
}
