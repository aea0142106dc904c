//! Pruning never drops a row that the filter keeps.
//!
//! The reference is the filter itself over all rows; the candidate reads only the row groups and
//! pages that pruning leaves.

use std::sync::Arc;

use arrow::array::types::Int32Type;
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, StringViewArray, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use forebay_plan::Step;
use forebay_sql::{FileStats, Relation};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;

use crate::support::{array, batch, filter, rename, with};

/// How the file is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    rows_per_group: usize,
    rows_per_page: usize,
    truncate: Option<usize>,
    statistics: EnabledStatistics,
}

pub fn write(batch: &RecordBatch, cut: Cut) -> Bytes {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(cut.rows_per_group))
        .set_data_page_row_count_limit(cut.rows_per_page)
        .set_write_batch_size(1)
        .set_statistics_truncate_length(cut.truncate)
        .set_column_index_truncate_length(cut.truncate)
        .set_statistics_enabled(cut.statistics)
        .build();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    out.into()
}

pub fn open(bytes: &Bytes) -> ArrowReaderMetadata {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    ArrowReaderMetadata::load(bytes, options).unwrap()
}

/// Brings a batch of the file to the schema of the dataset.
fn conform(batch: &RecordBatch, schema: &SchemaRef) -> RecordBatch {
    let columns = schema
        .fields()
        .iter()
        .map(|f| match batch.column_by_name(f.name()) {
            Some(column) => cast(column, f.data_type()).unwrap(),
            None => arrow::array::new_null_array(f.data_type(), batch.num_rows()),
        })
        .collect();
    RecordBatch::try_new(Arc::clone(schema), columns).unwrap()
}

/// Rows kept with and without pruning, and how many row groups and rows were read.
pub fn compare(bytes: &Bytes, relation: &Relation) -> (RecordBatch, RecordBatch, usize, usize) {
    let metadata = open(bytes);
    let stats =
        FileStats { metadata: metadata.metadata(), schema: metadata.schema(), constants: &[] };
    let segment = &relation.segments()[0];
    let schema = &relation.input_schema();
    let descr = metadata.metadata().file_metadata().schema_descr();
    let needed = relation.input_columns();
    let roots = metadata.schema().fields().iter().enumerate();
    let roots = roots.filter(|(_, f)| needed.contains(f.name())).map(|(i, _)| i);
    let mask = ProjectionMask::roots(descr, roots);
    let apply = |batches: Vec<RecordBatch>| {
        let parts: Vec<RecordBatch> =
            batches.iter().map(|b| segment.apply(&conform(b, schema)).unwrap().batch).collect();
        concat_batches(&segment.schema(), &parts).unwrap()
    };
    let read = |builder: ParquetRecordBatchReaderBuilder<Bytes>| -> Vec<RecordBatch> {
        builder.with_projection(mask.clone()).build().unwrap().map(|b| b.unwrap()).collect()
    };
    let all = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), metadata.clone());
    let reference = apply(read(all));
    let mut batches = Vec::new();
    let (mut groups, mut rows) = (0, 0);
    let may = relation.prune_row_groups(&stats);
    for (group, may) in may.into_iter().enumerate() {
        assert_eq!(may, relation.prune_row_group(&stats, group));
        if !may {
            continue;
        }
        groups += 1;
        let mut builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), metadata.clone())
                .with_row_groups(vec![group]);
        if let Some(selection) = relation.prune_pages(&stats, group) {
            builder = builder.with_row_selection(selection);
        }
        for batch in read(builder) {
            rows += batch.num_rows();
            batches.push(batch);
        }
    }
    (reference, apply(batches), groups, rows)
}

/// Equality in which NaNs of the same bits are equal: rows are compared as they are printed.
pub fn same(a: &RecordBatch, b: &RecordBatch) -> bool {
    a.num_rows() == b.num_rows()
        && a.columns().iter().zip(b.columns()).all(|(a, b)| {
            let (a, b) = (a.to_data(), b.to_data());
            a == b
                || format!("{:?}", arrow::array::make_array(a))
                    == format!("{:?}", arrow::array::make_array(b))
        })
}

#[derive(Clone, Debug)]
struct Row {
    i: Option<i32>,
    u: Option<u32>,
    f: Option<f64>,
    g: Option<f32>,
    s: Option<String>,
    b: Option<bool>,
    m: Option<i128>,
    t: Option<i64>,
    d: Option<i32>,
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => (-4i32..5).prop_map(f64::from),
        1 => Just(f64::NAN),
        1 => Just(-f64::NAN),
        1 => Just(-0.0),
        1 => Just(0.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
    ]
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-c]{0,3}",
        1 => "abc[a-c]{0,4}",
        1 => "ab[é~\u{7f}\u{10ffff}]{0,2}",
        1 => "[ÿz~]{1,4}",
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let some = |p: f64| move |s| prop::option::weighted(p, s);
    let _ = some(0.5)(Just(1));
    (
        prop::option::weighted(0.8, prop_oneof![-5i32..6, Just(i32::MIN), Just(i32::MAX)]),
        prop::option::weighted(0.8, prop_oneof![0u32..6, Just(u32::MAX), Just(1 << 31)]),
        prop::option::weighted(0.8, float()),
        prop::option::weighted(0.8, float().prop_map(|v| v as f32)),
        prop::option::weighted(0.8, word()),
        prop::option::weighted(0.8, any::<bool>()),
        prop::option::weighted(0.8, -300i128..300),
        prop::option::weighted(0.8, prop_oneof![-3i64..4, Just(i64::from(i32::MAX) * 1000)]),
        prop::option::weighted(0.8, -3i32..4),
    )
        .prop_map(|(i, u, f, g, s, b, m, t, d)| Row { i, u, f, g, s, b, m, t, d })
}

/// Runs of like rows, so that row groups and pages differ: sorted by `i` half of the time.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    (prop::collection::vec(row(), 0..60), any::<bool>(), any::<bool>()).prop_map(
        |(mut rows, sorted, by_text)| {
            if sorted {
                if by_text {
                    rows.sort_by(|a, b| a.s.cmp(&b.s));
                } else {
                    rows.sort_by(|a, b| {
                        a.i.cmp(&b.i)
                            .then_with(|| a.f.unwrap_or(0.5).total_cmp(&b.f.unwrap_or(0.5)))
                    });
                }
            }
            rows
        },
    )
}

fn to_batch(rows: &[Row]) -> RecordBatch {
    let decimal: Decimal128Array = rows.iter().map(|r| r.m).collect();
    let wide: Decimal128Array = rows.iter().map(|r| r.m).collect();
    let text: Vec<Option<&str>> = rows.iter().map(|r| r.s.as_deref()).collect();
    let dictionary: DictionaryArray<Int32Type> = text.iter().copied().collect();
    let fixed: Vec<Option<[u8; 4]>> = rows.iter().map(|r| r.u.map(u32::to_be_bytes)).collect();
    batch(vec![
        ("i", array(rows.iter().map(|r| r.i).collect::<Int32Array>())),
        ("u", array(rows.iter().map(|r| r.u).collect::<UInt32Array>())),
        ("f", array(rows.iter().map(|r| r.f).collect::<Float64Array>())),
        ("g", array(rows.iter().map(|r| r.g).collect::<Float32Array>())),
        ("s", array(StringArray::from(text.clone()))),
        ("v", array(StringViewArray::from(text.clone()))),
        ("k", array(dictionary)),
        ("b", array(rows.iter().map(|r| r.b).collect::<BooleanArray>())),
        ("m", array(decimal.with_precision_and_scale(5, 1).unwrap())),
        ("w", array(wide.with_precision_and_scale(30, 1).unwrap())),
        ("t", array(rows.iter().map(|r| r.t).collect::<TimestampMicrosecondArray>())),
        ("d", array(rows.iter().map(|r| r.d).collect::<Date32Array>())),
        (
            "x",
            array(BinaryArray::from(text.iter().map(|t| t.map(str::as_bytes)).collect::<Vec<_>>())),
        ),
        (
            "z",
            array(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 4).unwrap(),
            ),
        ),
    ])
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// One comparison.
fn leaf() -> impl Strategy<Value = String> {
    let op = || {
        prop::sample::select(vec![
            "=",
            "<>",
            "<",
            "<=",
            ">",
            ">=",
            "IS DISTINCT FROM",
            "IS NOT DISTINCT FROM",
        ])
    };
    let number = || {
        prop::sample::select(vec![
            "i",
            "u",
            "f",
            "g",
            "m",
            "w",
            "CAST(i AS BIGINT)",
            "CAST(g AS DOUBLE)",
            "CAST(i AS DOUBLE)",
            "i + 1",
            "-i",
            "-f",
            "CAST(u AS BIGINT)",
            "TRY_CAST(i AS SMALLINT)",
        ])
    };
    let constant = || {
        prop::sample::select(vec![
            "0",
            "-0.0",
            "0.0",
            "1",
            "-1",
            "3",
            "-2.5",
            "2.0",
            "4294967295",
            "2147483648",
            "-2147483648",
            "100",
            "CAST('NaN' AS DOUBLE)",
            "CAST('Infinity' AS DOUBLE)",
            "-CAST('Infinity' AS DOUBLE)",
            "30.0",
            "0.1",
            "NULL",
        ])
    };
    let text = || prop::sample::select(vec!["s", "v", "k"]);
    prop_oneof![
        6 => (number(), op(), constant()).prop_map(|(c, op, v)| format!("{c} {op} {v}")),
        2 => (number(), op(), constant()).prop_map(|(c, op, v)| format!("{v} {op} {c}")),
        2 => (number(), any::<bool>(), constant(), constant())
            .prop_map(|(c, n, a, b)| format!("{c} {} BETWEEN {a} AND {b}", if n { "NOT" } else { "" })),
        2 => (number(), any::<bool>(), prop::collection::vec(constant(), 1..4))
            .prop_map(|(c, n, v)| format!("{c} {} IN ({})", if n { "NOT" } else { "" }, v.join(", "))),
        1 => (number(), any::<bool>()).prop_map(|(c, n)| {
            let list = (0..90).map(|v| (v - 2).to_string()).collect::<Vec<_>>().join(", ");
            format!("{c} {} IN ({list})", if n { "NOT" } else { "" })
        }),
        4 => (text(), op(), word()).prop_map(|(c, op, v)| format!("{c} {op} {}", quoted(&v))),
        2 => (text(), any::<bool>(), word(), prop::sample::select(vec!["%", "_", "a%", "%b", ""]))
            .prop_map(|(c, n, v, end)| format!("{c} {} LIKE {}", if n { "NOT" } else { "" }, quoted(&(v + end)))),
        1 => (text(), word()).prop_map(|(c, v)| format!("starts_with({c}, {})", quoted(&v))),
        1 => (text(), any::<bool>(), prop::collection::vec(word(), 1..4)).prop_map(|(c, n, v)| {
            let list = v.iter().map(|v| quoted(v)).collect::<Vec<_>>().join(", ");
            format!("{c} {} IN ({list})", if n { "NOT" } else { "" })
        }),
        2 => (prop::sample::select(vec!["i", "u", "f", "g", "s", "v", "k", "b", "m", "w", "t", "d", "x", "z", "i + 1", "CAST(s AS BIGINT)"]), any::<bool>())
            .prop_filter("a cast of text may fail", |(c, _)| !c.contains("CAST"))
            .prop_map(|(c, n)| format!("{c} IS {} NULL", if n { "NOT" } else { "" })),
        2 => prop::sample::select(vec![
            "b", "NOT b", "b IS TRUE", "b IS NOT TRUE", "b IS FALSE", "b IS NOT FALSE", "b IS UNKNOWN", "b = false",
            "b <> true", "isnan(f)", "f = f", "i > u", "i % 2 = 0", "length(s) > 1", "upper(s) = 'AB'", "true", "false", "NULL = 1",
        ]).prop_map(str::to_owned),
        2 => (op(), -2i32..3).prop_map(|(op, v)| format!("d {op} DATE '1970-01-0{}'", v.rem_euclid(4) + 1)),
        2 => (op(), 0i32..4).prop_map(|(op, v)| format!("t {op} TIMESTAMP '1970-01-01 00:00:00.00000{v}'")),
        1 => (op(), 0i32..4).prop_map(|(op, v)| format!("t {op} DATE '1970-01-0{}'", v + 1)),
        1 => (op(), word()).prop_map(|(op, v)| format!("x {op} X'{}'", v.bytes().map(|b| format!("{b:02X}")).collect::<String>())),
        1 => (op(), any::<u32>()).prop_map(|(op, v)| format!("z {op} arrow_cast(X'{v:08X}', 'FixedSizeBinary(4)')")),
    ]
}

fn condition() -> impl Strategy<Value = String> {
    leaf().prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) AND ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) OR ({b})")),
            inner.prop_map(|a| format!("NOT ({a})")),
        ]
    })
}

fn cut() -> impl Strategy<Value = Cut> {
    (
        1usize..20,
        1usize..6,
        prop::sample::select(vec![None, Some(1), Some(2), Some(5)]),
        prop::sample::select(vec![
            EnabledStatistics::Page,
            EnabledStatistics::Page,
            EnabledStatistics::Chunk,
            EnabledStatistics::None,
        ]),
    )
        .prop_map(|(rows_per_group, rows_per_page, truncate, statistics)| Cut {
            rows_per_group,
            rows_per_page,
            truncate,
            statistics,
        })
}

/// The dataset's schema: the file's, or one that the file's types are widened to.
fn wider(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|f| {
            let dtype = match (f.name().as_str(), f.data_type()) {
                ("i", _) => DataType::Int64,
                ("u", _) => DataType::Float64,
                ("g", _) => DataType::Float64,
                ("s", _) => DataType::LargeUtf8,
                ("v" | "k", _) => DataType::Utf8,
                ("x", _) => DataType::LargeBinary,
                ("t", _) => DataType::Timestamp(TimeUnit::Nanosecond, None),
                (_, other) => other.clone(),
            };
            f.as_ref().clone().with_data_type(dtype)
        })
        .chain([Field::new("absent", DataType::Int32, true)])
        .collect();
    Arc::new(Schema::new(fields))
}

/// Enough to find a wrong rule within a few runs; PROPTEST_CASES asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_passes_is_pruned(rows in rows(), sql in condition(), cut in cut(), widen in any::<bool>()) {
        let data = to_batch(&rows);
        let bytes = write(&data, cut);
        let schema = if widen { wider(&data.schema()) } else { data.schema() };
        let steps = [(0, filter(&sql))];
        let relation = match Relation::compile(&schema, &steps) {
            Ok(relation) => relation,
            // Types that do not compare, e.g. text and decimals: nothing to prune.
            Err(_) => return Ok(()),
        };
        // A filter that fails on some row has no answer to compare with.
        if relation.segments()[0].apply(&conform(&data, &schema)).is_err() {
            return Ok(());
        }
        let (reference, pruned, ..) = compare(&bytes, &relation);
        prop_assert!(
            same(&reference, &pruned),
            "{sql}\npruned by {:?}\n{} rows without pruning, {} with", relation.pruning_text(), reference.num_rows(), pruned.num_rows()
        );
    }
}

/// Found by the property above.
#[test]
fn null_is_neither_true_nor_false() {
    let data = batch(vec![("b", array(BooleanArray::from(vec![None, Some(true), Some(false)])))]);
    let cut = Cut { rows_per_group: 1, rows_per_page: 1, ..PAGES };
    let bytes = write(&data, cut);
    for (sql, groups) in [
        ("b", 1),
        ("NOT b", 1),
        ("b IS TRUE", 1),
        ("b IS FALSE", 1),
        ("NOT (b IS TRUE)", 3),
        ("b IS NOT FALSE", 3),
        ("b IS UNKNOWN", 3),
    ] {
        let relation = Relation::compile(&data.schema(), &[(0, filter(sql))]).unwrap();
        let (reference, pruned, read, _) = compare(&bytes, &relation);
        assert!(same(&reference, &pruned), "{sql}");
        assert!(
            read <= groups,
            "{sql}: {read} row groups were read, pruned by {:?}",
            relation.pruning_text()
        );
    }
}

const PAGES: Cut = Cut {
    rows_per_group: 100,
    rows_per_page: 10,
    truncate: Some(4),
    statistics: EnabledStatistics::Page,
};

fn sorted() -> RecordBatch {
    batch(vec![
        ("i", array(Int32Array::from_iter_values(0..1000))),
        ("f", array(Float64Array::from_iter_values((0..1000).map(f64::from)))),
        ("s", array(StringArray::from_iter_values((0..1000).map(|i| format!("{i:04}-long"))))),
        ("n", array((0..1000).map(|i| (i >= 500).then_some(i)).collect::<Int64Array>())),
    ])
}

/// Row groups and rows that are read for a filter.
fn cost(steps: Vec<Step>) -> (usize, usize) {
    let data = sorted();
    let bytes = write(&data, PAGES);
    let steps: Vec<(usize, Step)> = steps.into_iter().enumerate().collect();
    let relation = Relation::compile(&data.schema(), &steps).unwrap();
    let (reference, pruned, groups, rows) = compare(&bytes, &relation);
    assert!(same(&reference, &pruned));
    (groups, rows)
}

#[test]
fn only_what_may_pass_is_read() {
    assert_eq!(cost(vec![filter("i = 512")]), (1, 10));
    assert_eq!(cost(vec![filter("i >= 905")]), (1, 100), "905 is in the page of 900");
    assert_eq!(cost(vec![filter("i >= 910")]), (1, 90));
    assert_eq!(cost(vec![filter("i < 5 OR i > 995")]), (2, 20));
    assert_eq!(cost(vec![filter("i IN (1, 501, 999)")]), (3, 30));
    assert_eq!(cost(vec![filter("NOT (i < 990)")]), (1, 10));
    assert_eq!(cost(vec![filter("i BETWEEN 195 AND 204")]), (2, 20));
    assert_eq!(cost(vec![filter("CAST(i AS DOUBLE) > 998.5")]), (1, 10));
    assert_eq!(cost(vec![filter("i > 998.5")]), (1, 10));
    assert_eq!(cost(vec![filter("s LIKE '0512%'")]), (1, 10));
    assert_eq!(cost(vec![filter("s = '0512-long'")]), (1, 10));
    assert_eq!(cost(vec![filter("n IS NULL")]), (5, 500));
    assert_eq!(cost(vec![filter("n IS NOT NULL")]), (5, 500));
    assert_eq!(cost(vec![filter("n < 600")]), (1, 100));
    assert_eq!(cost(vec![filter("i > 100 AND f < 115")]), (1, 20), "pages of two columns");
    // Through renames and computed columns that are only other names.
    assert_eq!(cost(vec![rename(&[("i", "f"), ("f", "i")]), filter("f = 7")]), (1, 10));
    assert_eq!(cost(vec![with("j", "i"), with("i", "i * 2"), filter("j = 7")]), (1, 10));
    // A float column may hold NaN, which is greater than every number and not in the maximum.
    assert_eq!(cost(vec![filter("f < 5")]), (1, 10));
    assert_eq!(cost(vec![filter("f = 5")]), (1, 10));
    assert_eq!(cost(vec![filter("f BETWEEN 5 AND 15")]), (1, 20));
    assert_eq!(cost(vec![filter("f > 995")]), (10, 1000));
    // Behind a limit nothing may be pruned.
    assert_eq!(cost(vec![Step::Limit(10), filter("i = 7")]), (10, 1000));
    assert_eq!(cost(vec![filter("false")]), (0, 0));
}

#[test]
fn partitions_prune_files() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        Field::new("i", DataType::Int32, true),
        Field::new("year", DataType::Int64, true),
        Field::new("country", DataType::Utf8, true),
    ]));
    let year = |y: Option<i64>| -> (String, ArrayRef) {
        ("year".into(), array(Int64Array::from(vec![y])))
    };
    let country =
        |c: &str| -> (String, ArrayRef) { ("country".into(), array(StringArray::from(vec![c]))) };
    let may = |sql: &str, constants: &[(String, ArrayRef)]| {
        Relation::compile(&schema, &[(0, filter(sql))]).unwrap().prune_file(constants)
    };
    assert!(may("year = 2013", &[year(Some(2013))]));
    assert!(!may("year = 2013", &[year(Some(2014))]));
    assert!(!may("year > 2013 AND i > 5", &[year(Some(2013))]));
    assert!(may("year > 2013 OR i > 5", &[year(Some(2013))]), "i is unknown");
    assert!(!may("year <> 2013", &[year(Some(2013))]));
    assert!(!may("year > 0", &[year(None)]));
    assert!(may("year IS NULL", &[year(None)]));
    assert!(!may("year IS NULL", &[year(Some(1))]));
    assert!(!may("country LIKE 'D%' AND year = 1", &[country("FR"), year(Some(1))]));
    assert!(may("country IN ('DE', 'FR')", &[country("FR"), year(Some(1))]));
    assert!(may("i = 3", &[year(Some(1))]));

    // Within a file, together with its own statistics.
    let data = batch(vec![("i", array(Int32Array::from_iter_values(0..100)))]);
    let bytes = write(&data, PAGES);
    let metadata = open(&bytes);
    let constants = [year(Some(2013)), country("DE")];
    let stats = FileStats {
        metadata: metadata.metadata(),
        schema: metadata.schema(),
        constants: &constants,
    };
    let relation = |sql: &str| Relation::compile(&schema, &[(0, filter(sql))]).unwrap();
    assert_eq!(relation("year = 2013 AND i < 50").prune_row_groups(&stats), [true]);
    assert_eq!(relation("year = 2012 OR i > 500").prune_row_groups(&stats), [false]);
    assert_eq!(relation("year = 2012 OR i > 50").prune_pages(&stats, 0).unwrap().row_count(), 50);
}
