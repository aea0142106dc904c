//! What the steps give.

use std::sync::Arc;

use arrow::array::types::Int32Type;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    DictionaryArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray, StringViewArray, StructArray, TimestampMicrosecondArray, UInt8Array,
    UInt64Array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use forebay_core::ErrorKind;
use forebay_sql::{Relation, check};
use proptest::prelude::*;

use crate::support::{
    array, batch, compile, drop_columns, eval, filter, kept, rename, run, select, with,
};
use forebay_plan::Step;

fn numbers() -> RecordBatch {
    batch(vec![
        ("a", array(Int32Array::from(vec![Some(1), None, Some(3), Some(0)]))),
        ("f", array(Float64Array::from(vec![Some(0.5), Some(f64::NAN), None, Some(-0.0)]))),
        ("s", array(StringArray::from(vec![Some("x"), None, Some("xyz"), Some("")]))),
        ("b", array(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]))),
    ])
}

fn strings(a: &ArrayRef) -> Vec<Option<String>> {
    let a = arrow::compute::cast(a, &DataType::Utf8).unwrap();
    a.as_string::<i32>().iter().map(|v| v.map(str::to_owned)).collect()
}

#[test]
fn three_valued_logic() {
    let b = numbers();
    assert_eq!(kept(&b, "a > 0"), [0, 2]);
    assert_eq!(kept(&b, "NOT (a > 0)"), [3]);
    assert_eq!(kept(&b, "a > 0 OR a <= 0"), [0, 2, 3]);
    assert_eq!(kept(&b, "a IS NULL"), [1]);
    assert_eq!(kept(&b, "a IS NULL OR b"), [0, 1, 3]);
    assert_eq!(kept(&b, "b"), [0, 3]);
    assert_eq!(kept(&b, "NOT b"), [1]);
    assert_eq!(kept(&b, "b IS NOT TRUE"), [1, 2]);
    assert_eq!(kept(&b, "a IN (1, NULL)"), [0]);
    assert_eq!(kept(&b, "a NOT IN (1, NULL)"), [0u32; 0]);
    assert_eq!(kept(&b, "a IS DISTINCT FROM 1"), [1, 2, 3]);
    assert_eq!(kept(&b, "1 = 1"), [0, 1, 2, 3]);
    assert_eq!(kept(&b, "1 = 2"), [0u32; 0]);
    assert_eq!(kept(&b, "a = NULL"), [0u32; 0]);
}

#[test]
fn floats_compare_alike_everywhere() {
    let values = vec![
        Some(f64::NAN),
        Some(-f64::NAN),
        Some(0.0),
        Some(-0.0),
        Some(5.0),
        None,
        Some(f64::NEG_INFINITY),
    ];
    let b = batch(vec![("f", array(Float64Array::from(values)))]);
    assert_eq!(kept(&b, "f = 0"), [2, 3]);
    assert_eq!(kept(&b, "f <> 0"), [0, 1, 4, 6]);
    assert_eq!(kept(&b, "f >= 0"), [0, 1, 2, 3, 4]);
    assert_eq!(kept(&b, "f < 0"), [6]);
    assert_eq!(kept(&b, "f > 1"), [0, 1, 4], "NaN is greater than every number");
    assert_eq!(kept(&b, "NOT (f > 1)"), [2, 3, 6]);
    assert_eq!(kept(&b, "f BETWEEN 0 AND 5"), [2, 3, 4]);
    assert_eq!(kept(&b, "f IN (0, 5)"), [2, 3, 4]);
    assert_eq!(kept(&b, "f NOT IN (0, 5)"), [0, 1, 6]);
    assert_eq!(kept(&b, "f = f"), [0, 1, 2, 3, 4, 6]);
    assert_eq!(kept(&b, "isnan(f)"), [0, 1]);
    assert_eq!(kept(&b, "CASE f WHEN 0.0 THEN true ELSE false END"), [2, 3]);
    assert_eq!(kept(&b, "nullif(f, 0.0) IS NULL"), [2, 3, 5]);
    assert_eq!(kept(&b, "f IS NOT DISTINCT FROM 0.0"), [2, 3]);
    // 0/0 has another sign on other processors; a computed column has one NaN.
    let z = batch(vec![("z", array(Float64Array::from(vec![0.0])))]);
    let nan = eval(&z, "z / z").unwrap();
    assert_eq!(nan.as_primitive::<Float64Type>().value(0).to_bits(), f64::NAN.to_bits());
}

#[test]
fn names_are_what_the_file_says() {
    let b = batch(vec![
        ("DayOfWeek", array(Int32Array::from(vec![1, 2]))),
        ("dayofweek", array(Int32Array::from(vec![7, 8]))),
        ("with space", array(Int32Array::from(vec![3, 4]))),
        ("a.b", array(Int32Array::from(vec![5, 6]))),
        ("Größe", array(Int32Array::from(vec![9, 10]))),
        ("select", array(Int32Array::from(vec![11, 12]))),
    ]);
    assert_eq!(kept(&b, "DayOfWeek = 2"), [1]);
    assert_eq!(kept(&b, "\"DayOfWeek\" = 2"), [1]);
    assert_eq!(kept(&b, "dayofweek = 8"), [1]);
    assert_eq!(kept(&b, "\"with space\" = 4"), [1]);
    assert_eq!(kept(&b, "\"a.b\" = 6"), [1]);
    assert_eq!(kept(&b, "Größe = 10"), [1]);
    assert_eq!(kept(&b, "\"select\" = 12"), [1]);
    assert_eq!(kept(&b, "ABS(DayOfWeek) = 2"), [1], "functions are found in any case");
}

#[test]
fn columns_as_of_the_step() {
    let b = numbers();
    let out = run(
        &b,
        vec![
            rename(&[("a", "s"), ("s", "a")]),
            with("a", "a || '!'"),
            with("n", "s + 1"),
            drop_columns(&["b", "f"]),
        ],
    )
    .unwrap();
    let names: Vec<String> = out.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["s", "a", "n"], "renamed and replaced in place, appended at the end");
    assert_eq!(
        strings(out.column(1)),
        [Some("x!".into()), None, Some("xyz!".into()), Some("!".into())]
    );
    assert_eq!(
        out.column(2).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
        [Some(2), None, Some(4), Some(1)]
    );
    // A replaced column is computed from what was there before.
    let twice =
        run(&b, vec![with("a", "a + 1"), with("a", "a * 10"), filter("a > 20"), select(&["a"])])
            .unwrap();
    assert_eq!(twice.column(0).as_primitive::<Int64Type>().values(), &[40]);
}

#[test]
fn only_what_is_needed_is_read() {
    let b = numbers();
    let read = |steps: Vec<Step>| compile(&b, steps).unwrap().input_columns();
    assert_eq!(read(vec![]), ["a", "f", "s", "b"]);
    assert_eq!(read(vec![select(&["s"])]), ["s"]);
    assert_eq!(read(vec![filter("b"), select(&["s"])]), ["s", "b"]);
    assert_eq!(read(vec![with("n", "a + f"), drop_columns(&["n", "a", "f"])]), ["s", "b"]);
    assert_eq!(read(vec![with("n", "f"), select(&["n"])]), ["f"]);
    assert_eq!(read(vec![with("one", "1"), select(&["one"])]), [""; 0]);
    assert_eq!(
        read(vec![filter("a > 1"), Step::Limit(3), filter("b"), select(&["s"])]),
        ["a", "s", "b"]
    );
    let ones = run(&b, vec![with("one", "1"), select(&["one"])]).unwrap();
    assert_eq!(ones.num_rows(), 4);
    // A batch without columns still has rows.
    let relation = compile(&b, vec![with("one", "1"), select(&["one"])]).unwrap();
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(5));
    let empty =
        RecordBatch::try_new_with_options(relation.input_schema(), vec![], &options).unwrap();
    assert_eq!(relation.segments()[0].apply(&empty).unwrap().batch.num_rows(), 5);
}

#[test]
fn renaming_copies_nothing() {
    let b = numbers();
    let out =
        run(&b, vec![rename(&[("a", "z")]), with("again", "f"), select(&["again", "z"])]).unwrap();
    assert!(Arc::ptr_eq(out.column(0), b.column(1)));
    assert!(Arc::ptr_eq(out.column(1), b.column(0)));
}

#[test]
fn limits_end_segments() {
    let b = batch(vec![("i", array(Int32Array::from_iter_values(0..100)))]);
    let steps = vec![
        filter("i % 2 = 1"),
        Step::Limit(10),
        with("j", "i * 2"),
        filter("j > 10"),
        Step::Limit(3),
    ];
    let relation = compile(&b, steps).unwrap();
    assert_eq!(
        relation.segments().iter().map(|s| s.limit()).collect::<Vec<_>>(),
        [Some(10), Some(3), None]
    );
    // In batches of 7 rows, as in one.
    let whole = relation.cursor().push(&b).unwrap();
    assert_eq!(whole.batch.column(0).as_primitive::<Int32Type>().values(), &[7, 9, 11]);
    assert_eq!(whole.kept.unwrap().values(), &[7, 9, 11]);
    let mut cursor = relation.cursor();
    let mut rows = Vec::new();
    let mut pushed = 0;
    for start in (0..100).step_by(7) {
        if cursor.is_done() {
            break;
        }
        let part = b.slice(start, 7.min(100 - start));
        let applied = cursor.push(&part).unwrap();
        rows.extend(applied.batch.column(0).as_primitive::<Int32Type>().values().iter().copied());
        pushed += 1;
    }
    assert_eq!(rows, [7, 9, 11]);
    assert_eq!(pushed, 2, "the upstream is not asked for more");
    assert!(compile(&b, vec![Step::Limit(0)]).unwrap().cursor().is_done());
}

#[test]
fn rows_first_and_columns_later_is_the_same() {
    let b = numbers();
    let steps = vec![
        with("n", "a + 1"),
        filter("n > 1"),
        with("m", "n * 2"),
        filter("b IS NOT FALSE"),
        select(&["s", "m"]),
    ];
    let relation = compile(&b, steps).unwrap();
    let whole = relation.cursor().push(&b).unwrap();

    let rows = relation.row_filter().unwrap();
    assert_eq!(rows.input_columns(), ["a", "b"]);
    assert_eq!(rows.schema().fields().len(), 0);
    let kept = rows.segments()[0].apply(&b).unwrap();
    assert_eq!(kept.kept, whole.kept);
    assert_eq!(kept.batch.num_rows(), whole.batch.num_rows());

    let projection = relation.projection();
    assert_eq!(projection.input_columns(), ["a", "s"]);
    assert!(!projection.has_filter());
    let chosen = arrow::compute::take_record_batch(&b, &kept.kept.unwrap()).unwrap();
    assert_eq!(projection.segments()[0].apply(&chosen).unwrap().batch, whole.batch);
    assert!(compile(&b, vec![select(&["a"])]).unwrap().row_filter().is_none());
}

#[test]
fn overflow_is_an_error() {
    let b = batch(vec![
        ("i", array(Int32Array::from(vec![1, i32::MAX, 2]))),
        ("j", array(Int64Array::from(vec![1, i64::MAX, i64::MIN]))),
        ("t", array(Int8Array::from(vec![1, 100, i8::MIN]))),
        ("u", array(UInt8Array::from(vec![200, 1, 2]))),
    ]);
    let row = |sql: &str| {
        let e = eval(&b, sql).expect_err(sql);
        assert_eq!(e.kind(), ErrorKind::Value, "{e:?}");
        e.location().row
    };
    assert_eq!(row("i + i"), Some(1));
    assert_eq!(row("j * 2"), Some(1));
    assert_eq!(row("j - 1"), Some(2));
    assert_eq!(row("t + t"), Some(1));
    assert_eq!(row("-t"), Some(2));
    assert_eq!(row("-j"), Some(2));
    assert_eq!(row("CAST(i AS TINYINT)"), Some(1));
    assert_eq!(row("u + u"), Some(0));
    assert_eq!(eval(&b, "TRY_CAST(i AS TINYINT)").unwrap().null_count(), 1);
    assert_eq!(
        eval(&b, "-u").map(|_| ()).unwrap_or(()),
        (),
        "unsigned negation is typed by the planner"
    );
}

#[test]
fn guards_hold_in_every_batch() {
    let b = batch(vec![("x", array(Int32Array::from(vec![0, 1, 2, 0, 5, 10])))]);
    for sql in [
        "x <> 0 AND 10 / x > 2",
        "NOT (x = 0 OR 10 / x <= 2)",
        "CASE WHEN x = 0 THEN false ELSE 10 / x > 2 END",
        "x > 0 AND (x < 3 AND 10 / x > 2)",
    ] {
        assert_eq!(kept(&b, sql), [1, 2], "{sql}");
        for i in 0..b.num_rows() {
            let one = b.slice(i, 1);
            assert_eq!(kept(&one, sql).len(), usize::from(i == 1 || i == 2), "{sql} row {i}");
        }
    }
    // And a filter guards the steps behind it.
    let out = run(&b, vec![filter("x <> 0"), with("q", "10 / x"), select(&["q"])]).unwrap();
    assert_eq!(out.column(0).as_primitive::<Int64Type>().values(), &[10, 5, 2, 1]);
}

#[test]
fn sql_in_general() {
    let b = batch(vec![
        ("s", array(StringArray::from(vec![Some("Apple pie"), Some("banana"), None]))),
        ("i", array(Int32Array::from(vec![Some(-7), Some(4), None]))),
        (
            "t",
            array(TimestampMicrosecondArray::from(vec![
                Some(1_700_000_000_000_000),
                Some(0),
                None,
            ])),
        ),
        ("d", array(Date32Array::from(vec![Some(19_000), Some(0), None]))),
        (
            "m",
            array(
                Decimal128Array::from(vec![Some(12345), Some(-1), None])
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
        ),
        (
            "l",
            array(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
                Some(vec![Some(1), Some(2), Some(3)]),
                Some(vec![]),
                None,
            ])),
        ),
        (
            "p",
            array(StructArray::from(vec![(
                Arc::new(Field::new("lat", DataType::Int32, true)),
                array(Int32Array::from(vec![1, 2, 3])),
            )])),
        ),
    ]);
    let cases = [
        ("upper(s)", "APPLE PIE", "BANANA"),
        ("substr(s, 1, 3)", "App", "ban"),
        ("substring(s from 2 for 2)", "pp", "an"),
        ("length(s)", "9", "6"),
        ("s LIKE '%an%'", "false", "true"),
        ("s ILIKE 'APP%'", "true", "false"),
        ("regexp_like(s, '^[A-Z]')", "true", "false"),
        ("regexp_replace(s, 'a+', 'o')", "Apple pie", "bonana"),
        ("s ~ 'n.n'", "false", "true"),
        ("replace(s, 'a', 'o')", "Apple pie", "bonono"),
        ("split_part(s, ' ', 2)", "pie", ""),
        ("s || '-' || i", "Apple pie--7", "banana-4"),
        ("concat(s, i)", "Apple pie-7", "banana4"),
        ("CASE WHEN i < 0 THEN 'neg' ELSE 'pos' END", "neg", "pos"),
        ("coalesce(i, 0)", "-7", "4"),
        ("abs(i)", "7", "4"),
        ("i BETWEEN -10 AND 0", "true", "false"),
        ("i / 2", "-3", "2"),
        ("i % 4", "-3", "0"),
        ("i / 2.0", "-3.5", "2.0"),
        ("round(i * 1.5)", "-11.0", "6.0"),
        ("power(i, 2)", "49.0", "16.0"),
        ("sqrt(abs(i) + 2)", "3.0", "2.449489742783178"),
        ("CAST(i AS VARCHAR)", "-7", "4"),
        ("i::double", "-7.0", "4.0"),
        ("CAST(i AS DOUBLE) > 3.5", "false", "true"),
        ("date_part('year', t)", "2023", "1970"),
        ("EXTRACT(month FROM t)", "11", "1"),
        ("date_trunc('day', t) = t", "false", "true"),
        ("t > '2000-01-01'", "true", "false"),
        ("t >= TIMESTAMP '2023-11-14 00:00:00'", "true", "false"),
        ("d < '2000-01-01'", "false", "true"),
        ("d + INTERVAL '1 day' > DATE '1970-01-01'", "true", "true"),
        ("m > 100", "true", "false"),
        ("m = 123.45", "true", "false"),
        ("l[1]", "1", "NULL"),
        ("l[-1]", "3", "NULL"),
        ("array_length(l)", "3", "0"),
        ("array_sum(l)", "6.0", "NULL"),
        ("array_has(l, 2)", "true", "false"),
        ("p.lat", "1", "2"),
        ("p['lat'] + 1", "2", "3"),
        ("position('a' IN s)", "0", "2"),
        ("greatest(i, 0)", "0", "4"),
        ("i IN (4, 5, 6)", "false", "true"),
        ("s IN ('banana')", "false", "true"),
        ("TRY_CAST(s AS INT)", "NULL", "NULL"),
    ];
    for (sql, first, second) in cases {
        let out = eval(&b, sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        let text: Vec<String> =
            strings(&out).into_iter().map(|v| v.unwrap_or_else(|| "NULL".into())).collect();
        assert_eq!(&text[..2], [first, second], "{sql}");
    }
    let lengths = eval(&b, "array_length(array_transform(l, x -> x + 1))");
    if let Ok(lengths) = lengths {
        assert_eq!(lengths.len(), 3);
    }
}

#[test]
fn views_and_dictionaries() {
    let words = vec![
        Some("alpha"),
        None,
        Some("a long string that does not fit a view's twelve bytes"),
        Some("beta"),
    ];
    let dictionary: DictionaryArray<Int32Type> = words.iter().copied().collect();
    let b = batch(vec![
        ("v", array(StringViewArray::from(words.clone()))),
        ("d", array(dictionary)),
        (
            "bv",
            array(BinaryViewArray::from(
                words.iter().map(|w| w.map(str::as_bytes)).collect::<Vec<_>>(),
            )),
        ),
        ("plain", array(StringArray::from(words))),
    ]);
    for column in ["v", "d", "plain"] {
        assert_eq!(kept(&b, &format!("{column} = 'alpha'")), [0], "{column}");
        assert_eq!(kept(&b, &format!("{column} LIKE 'a%'")), [0, 2], "{column}");
        assert_eq!(kept(&b, &format!("{column} > 'alpha'")), [3], "{column}");
        assert_eq!(kept(&b, &format!("upper({column}) = 'BETA'")), [3], "{column}");
        assert_eq!(kept(&b, &format!("{column} IN ('beta', 'gamma')")), [3], "{column}");
        assert_eq!(kept(&b, &format!("{column} IS NULL")), [1], "{column}");
    }
    assert_eq!(kept(&b, "bv = X'616C706861'"), [0]);
    assert_eq!(kept(&b, "bv IS NULL"), [1]);
    let out = run(&b, vec![filter("d IS NOT NULL")]).unwrap();
    assert_eq!(out.schema(), b.schema(), "types are passed through as they are");
}

#[test]
fn other_widths_of_float() {
    let b = batch(vec![
        ("f", array(Float32Array::from(vec![Some(0.1f32), Some(-0.0), None, Some(f32::NAN)]))),
        ("u", array(UInt64Array::from(vec![0, u64::MAX, 5, 6]))),
    ]);
    assert_eq!(kept(&b, "f = 0"), [1]);
    assert_eq!(kept(&b, "f >= 0"), [0, 1, 3]);
    assert_eq!(kept(&b, "f > u"), [0, 3]);
    assert_eq!(kept(&b, "u > 5"), [1, 3]);
    assert_eq!(kept(&b, "u = 18446744073709551615"), [1]);
}

#[test]
fn long_and_deep_expressions() {
    let b = numbers();
    let steps = |sql: String| vec![filter(&sql)];
    // Chains that people and programs write, on the stack of a worker thread.
    let work = move || {
        let sum = vec!["a"; 150].join(" + ");
        assert_eq!(run(&b, steps(format!("{sum} > 200"))).unwrap().num_rows(), 1);
        let any = (0..150).map(|i| format!("a = {i}")).collect::<Vec<_>>().join(" OR ");
        assert_eq!(run(&b, steps(any)).unwrap().num_rows(), 3);
        let list = (0..5000).map(|i| (-i).to_string()).collect::<Vec<_>>().join(", ");
        assert_eq!(run(&b, steps(format!("a IN ({list})"))).unwrap().num_rows(), 1);
        let floats = (0..1000).map(|i| format!("{i}.5")).collect::<Vec<_>>().join(", ");
        assert_eq!(run(&b, steps(format!("f IN ({floats})"))).unwrap().num_rows(), 1);
        let nested = format!("{}a > 1{}", "(".repeat(40), ")".repeat(40));
        assert_eq!(run(&b, steps(nested)).unwrap().num_rows(), 1);
        let not = format!("{} b", "NOT ".repeat(150));
        let _ = compile(&b, steps(not));
        let minus = format!("{} a > 0", "- ".repeat(2000));
        let _ = compile(&b, steps(minus));
        for sql in [
            vec!["a = 1"; 5000].join(" OR "),
            vec!["a"; 5000].join(" + "),
            format!("{}a > 1{}", "(".repeat(5000), ")".repeat(5000)),
            format!("{}a{} > 1", "abs(".repeat(5000), ")".repeat(5000)),
            format!("{} b", "NOT ".repeat(5000)),
        ] {
            let error = compile(&b, steps(sql)).expect_err("too much");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().len() < 400, "{error:?}");
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
}

#[test]
fn the_schema_is_known_without_data() {
    let b = numbers();
    let steps: Vec<(usize, Step)> = vec![(3, with("n", "a * 2.0")), (5, select(&["n", "s"]))];
    let schema = check(&b.schema(), &steps).unwrap();
    assert_eq!(schema.field(0), &Field::new("n", DataType::Float64, true));
    assert_eq!(schema.field(1), &Field::new("s", DataType::Utf8, true));
    let e = check(&b.schema(), &[(7, filter("nope"))]).unwrap_err();
    assert_eq!(e.place(), Some("steps[7].filter"));
}

#[test]
fn explained() {
    let b = numbers();
    let relation = compile(
        &b,
        vec![rename(&[("a", "n")]), filter("n > 1 + 1 AND s LIKE 'x%'"), with("m", "n + 1")],
    )
    .unwrap();
    let lines: Vec<String> = relation.steps().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "steps[0].rename: a to n",
            "steps[1].filter: n > 2 AND s LIKE x% (pruned by a > 2 AND s >= 'x' AND s < 'y')",
            "steps[2].with_column: m = CAST(n AS Int64) + 1",
        ]
    );
}

#[test]
fn relations_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Relation>();
}

/// Columns for the property below.
fn rows() -> impl Strategy<Value = Vec<(Option<i32>, Option<i8>, bool)>> {
    prop::collection::vec(
        (prop::option::of(-3i32..4), prop::option::of(any::<i8>()), any::<bool>()),
        0..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// However the rows are cut into batches, they give the same result, or the same error at the
    /// same row.
    #[test]
    fn batches_do_not_matter(rows in rows(), cut in 1usize..9, which in 0usize..6) {
        let b = batch(vec![
            ("x", array(rows.iter().map(|r| r.0).collect::<Int32Array>())),
            ("t", array(rows.iter().map(|r| r.1).collect::<Int8Array>())),
            ("b", array(rows.iter().map(|r| Some(r.2)).collect::<BooleanArray>())),
        ]);
        let steps = [
            vec![filter("x <> 0 AND 7 / x > 1")],
            vec![filter("b OR 7 / x > 1")],
            vec![filter("b"), with("y", "t + t"), filter("y > 0")],
            vec![with("y", "CASE WHEN x = 0 THEN 0 ELSE 7 / x END"), filter("y <> 1"), Step::Limit(7), filter("b")],
            vec![filter("x > -2 AND (b OR 5 % x = 0)"), select(&["t"])],
            vec![filter("NOT (b AND 1 / x = 1)"), Step::Limit(5)],
        ][which].clone();
        let relation = compile(&b, steps).unwrap();
        let whole = relation.cursor().push(&b);
        let mut cursor = relation.cursor();
        let mut parts = Vec::new();
        let mut kept = Vec::new();
        let mut failed = None;
        let mut start = 0;
        while start < b.num_rows() && !cursor.is_done() {
            let len = cut.min(b.num_rows() - start);
            match cursor.push(&b.slice(start, len)) {
                Ok(applied) => {
                    match &applied.kept {
                        Some(k) => kept.extend(k.values().iter().map(|r| r + start as u32)),
                        None => kept.extend((0..len as u32).map(|r| r + start as u32)),
                    }
                    parts.push(applied.batch);
                }
                Err(e) => { failed = Some(e.map_row(|r| r + start as u64)); break; }
            }
            start += len;
        }
        match (whole, failed) {
            (Ok(whole), None) => {
                let joined = concat_batches(&relation.schema(), &parts).unwrap();
                prop_assert_eq!(&joined, &whole.batch);
                let all: Vec<u32> = match whole.kept {
                    Some(k) => k.values().to_vec(),
                    None => (0..b.num_rows() as u32).collect(),
                };
                prop_assert_eq!(kept, all);
            }
            (Err(a), Some(b)) => {
                prop_assert_eq!(a.location().row, b.location().row);
                prop_assert_eq!(a.to_string(), b.to_string());
            }
            (a, b) => prop_assert!(false, "{:?} {:?}", a.map(|a| a.batch), b),
        }
    }
}
