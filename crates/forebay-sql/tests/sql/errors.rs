//! Errors word for word: they are part of the interface.

use arrow::array::{Float64Array, Int32Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field};
use forebay_core::ErrorKind;
use std::sync::Arc;

use crate::support::{array, batch, compile, drop_columns, filter, rename, run, select, with};
use forebay_plan::Step;

fn flights() -> RecordBatch {
    let position = StructArray::from(vec![(
        Arc::new(Field::new("lat", DataType::Float64, true)),
        array(Float64Array::from(vec![1.0, 2.0, 3.0])),
    )]);
    batch(vec![
        ("dep_delay", array(Float64Array::from(vec![Some(1.0), None, Some(90.0)]))),
        ("carrier", array(StringArray::from(vec!["UA", "AA", "B6"]))),
        ("label", array(Int32Array::from(vec![1, 0, 3]))),
        ("DayOfWeek", array(Int32Array::from(vec![1, 2, 3]))),
        ("position", array(position)),
    ])
}

fn report(steps: Vec<Step>) -> String {
    let error = match compile(&flights(), steps) {
        Ok(relation) => relation.cursor().push(&flights()).expect_err("the steps pass"),
        Err(error) => error,
    };
    error.report()
}

macro_rules! says {
    ($steps:expr, $text:expr) => {
        assert_eq!(report($steps), $text.trim_start_matches('\n').trim_end())
    };
}

#[test]
fn unknown_column() {
    says!(
        vec![filter("label > 0 AND dep_dely > 60")],
        r#"
steps[0].filter: there is no column "dep_dely"
    label > 0 AND dep_dely > 60
                  ^^^^^^^^
  hint: did you mean "dep_delay"?"#
    );
    says!(
        vec![filter("dayofweek = 1")],
        r#"
steps[0].filter: there is no column "dayofweek"
    dayofweek = 1
    ^^^^^^^^^
  hint: did you mean "DayOfWeek"?"#
    );
    says!(
        vec![filter("carrier = \"UA\"")],
        r#"
steps[0].filter: there is no column "UA"
    carrier = "UA"
              ^^^^
  hint: choose from dep_delay, carrier, label, DayOfWeek, position; text goes in single quotes: 'UA'"#
    );
    // As of that step.
    says!(
        vec![rename(&[("label", "y")]), drop_columns(&["carrier"]), filter("label > 0")],
        r#"
steps[2].filter: there is no column "label"
    label > 0
    ^^^^^
  hint: choose from dep_delay, y, DayOfWeek, position"#
    );
    says!(
        vec![select(&["carrier", "labl"])],
        r#"
steps[0].select: there is no column "labl"
  hint: did you mean "label"?"#
    );
}

#[test]
fn struct_fields() {
    says!(
        vec![filter("position.lon > 0")],
        r#"
steps[0].filter: "position" has no field "lon"
    position.lon > 0
             ^^^
  hint: choose from lat"#
    );
    says!(
        vec![filter("label.x > 0")],
        r#"
steps[0].filter: "label" has no fields: it is Int32
    label.x > 0
          ^
  hint: a column whose name has a dot in it is written in quotes: "label.x""#
    );
}

#[test]
fn unknown_function() {
    says!(
        vec![with("up", "uper(carrier)")],
        r#"
steps[0].with_column: there is no function `uper`
    uper(carrier)
    ^^^^
  hint: did you mean `upper`?"#
    );
}

#[test]
fn syntax() {
    says!(
        vec![filter("label > > 3")],
        r#"
steps[0].filter: SQL syntax error: expected an expression, found `>`
    label > > 3
            ^"#
    );
    says!(
        vec![filter("label >")],
        r#"
steps[0].filter: SQL syntax error: expected an expression, found the end
    label >
           ^"#
    );
    says!(
        vec![filter("label > 3 carrier")],
        r#"
steps[0].filter: SQL syntax error: the expression ends before `carrier`
    label > 3 carrier
              ^^^^^^^"#
    );
    says!(
        vec![filter("carrier = 'UA")],
        r#"
steps[0].filter: SQL syntax error: unterminated string literal
    carrier = 'UA
              ^"#
    );
    says!(vec![filter("  ")], "steps[0].filter: the SQL expression is empty");
}

#[test]
fn not_boolean() {
    says!(
        vec![filter("label")],
        r#"
steps[0].filter: the filter gives Int32, not a boolean
    label
  hint: compare it with something, e.g. label > 0"#
    );
    says!(
        vec![filter("NULL")],
        r#"
steps[0].filter: the filter gives Null, not a boolean
    NULL
  hint: NULL is never true; a test for null is written x IS NULL"#
    );
}

#[test]
fn volatile() {
    says!(
        vec![filter("label > 0 AND random() < 0.5")],
        r#"
steps[0].filter: `random` is refused: its result changes from run to run
    label > 0 AND random() < 0.5
                  ^^^^^^
  hint: samples and their order must be reproducible; put the value into the expression as a constant, or into the data as a column"#
    );
    for sql in [
        "now() > now()",
        "current_date = current_date",
        "uuid() = 'x'",
        "CURRENT_TIMESTAMP IS NULL",
    ] {
        let error = compile(&flights(), vec![filter(sql)]).expect_err(sql);
        assert!(error.message().contains("is refused"), "{sql}: {error:?}");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn more_than_one_row() {
    says!(
        vec![filter("label > avg(label)")],
        r#"
steps[0].filter: `avg` is an aggregate over many rows, and an expression sees one row at a time
    label > avg(label)
            ^^^
  hint: compute it beforehand and put the value into the expression; for the elements of a list, see array_sum, array_min, array_max, array_length"#
    );
    says!(
        vec![with("n", "row_number() OVER (ORDER BY label)")],
        r#"
steps[0].with_column: `row_number` with OVER is a window function, and an expression sees one row at a time
    row_number() OVER (ORDER BY label)
    ^^^^^^^^^^
  hint: window functions are no part of filter and with_column"#
    );
    says!(
        vec![filter("label IN (SELECT 1)")],
        r#"
steps[0].filter: an expression cannot hold a query (SELECT)
    label IN (SELECT 1)
  hint: an expression sees the columns of one row; for membership write x IN (1, 2, 3)"#
    );
}

#[test]
fn types_that_do_not_fit() {
    let error =
        compile(&flights(), vec![filter("position > 3")]).expect_err("a struct against a number");
    assert_eq!(error.place(), Some("steps[0].filter"));
    assert!(error.message().starts_with("cannot compile the SQL expression: "), "{error:?}");
    assert!(error.message().contains("\n    position > 3"), "{error:?}");
    for noise in ["Error during planning", "This issue was likely caused", "backtrace"] {
        assert!(!error.report().contains(noise), "{error:?}");
    }
}

#[test]
fn names_that_clash() {
    says!(
        vec![rename(&[("label", "carrier")])],
        r#"
steps[0].rename: after renaming, two columns would be called "carrier"
  hint: drop or rename the other "carrier" first"#
    );
    says!(
        vec![select(&["label", "label"])],
        r#"steps[0].select: the column "label" is named twice"#
    );
}

#[test]
fn at_run_time() {
    says!(
        vec![with("x", "10 / label")],
        r#"
steps[0].with_column: cannot compute 10 / CAST(label AS Int64): division by zero (row 1)
  hint: nullif(x, 0) turns a zero divisor into null"#
    );
    says!(
        vec![filter("label > 0"), with("x", "CAST(carrier AS INT)")],
        r#"
steps[1].with_column: cannot compute CAST(carrier AS Int32): Cannot cast string 'UA' to value of Int32 type (row 0)
  hint: TRY_CAST gives null where CAST fails"#
    );
    says!(
        vec![with("x", "(label + 9223372036854775806) * 2")],
        r#"
steps[0].with_column: cannot compute (CAST(label AS Int64) + 9223372036854775806) * 2: 9223372036854775807 * 2 overflows (row 0)
  hint: compute in DOUBLE or DECIMAL: CAST(x AS DOUBLE), CAST(x AS DECIMAL(38, 0))"#
    );
    let error = run(
        &flights(),
        vec![filter("label <> 1"), filter("label <> 0"), with("x", "CAST(carrier AS INT)")],
    )
    .expect_err("B6 is no number");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert_eq!(
        error.location().row,
        Some(2),
        "rows are counted in the batch as it came: {error:?}"
    );
}

#[test]
fn constants_are_checked_when_compiled() {
    let error =
        compile(&flights(), vec![with("x", "9223372036854775807 + 1")]).expect_err("overflow");
    assert!(error.message().contains("overflows"), "{error:?}");
    assert_eq!(error.place(), Some("steps[0].with_column"));
}

/// Each with where the caret is, and the hint.
#[test]
fn expressions_of_python() {
    let cases = [
        ("label > 1 && label < 3", "&&", "write AND"),
        ("(label > 1) & (label < 3)", "&", "`&` combines the bits of integers: write AND"),
        ("label > 1 & label < 3", "&", "`&` combines the bits of integers: write AND"),
        ("(label > 1) | (label < 3)", "|", "`|` combines the bits of integers: write OR"),
        ("label > 1 || label < 3", "||", "`||` joins texts: write OR"),
        ("~(label > 1)", "~", "write NOT"),
        ("!(label > 1)", "!", "write NOT"),
        (
            "label // 2 = 1",
            "//",
            "write floor(a / b); between integers a / b drops the fraction already",
        ),
        ("label ** 2 > 1", "*", "write power(a, b)"),
        ("label not in [1, 2]", "in", "write the values in parentheses: x IN (1, 2, 3)"),
        ("label is None", "None", "write x IS NULL"),
        ("label is not None", "None", "write x IS NOT NULL"),
        ("label = None", "None", "SQL writes NULL, and x IS NULL tests for it"),
        ("label if label > 1 else 2", "if", "write CASE WHEN condition THEN a ELSE b END"),
        ("len(carrier) > 1", "len", "SQL writes length(x) for texts, array_length(x) for lists"),
        ("carrier.startswith('U')", "carrier", "SQL writes starts_with(x, 'a')"),
        ("carrier.lower() = 'ua'", "carrier", "SQL has no methods: write lower(x)"),
        ("1 < label < 3", "<", "write each comparison by itself: 1 < x AND x < 3"),
        ("(label > 1) = 1", ">", "a boolean is compared with TRUE or FALSE, or stands by itself"),
        (
            "carrier AND label > 1",
            "AND",
            "AND and OR join conditions: compare each side with something, e.g. x > 0",
        ),
        ("label = 'a'", "'a'", "it is a text, and Int32 is wanted beside it"),
    ];
    for (sql, under, hint) in cases {
        let error = compile(&flights(), vec![filter(sql)]).expect_err(sql);
        assert_eq!((error.kind(), error.hint()), (ErrorKind::InvalidInput, Some(hint)), "{sql}");
        let lines: Vec<&str> = error.message().lines().collect();
        let caret = lines.last().map_or("", |l| l);
        let at = caret.find('^').expect(sql);
        assert!(lines[lines.len() - 2][at..].starts_with(under), "{sql}: {error}");
    }
    for sql in ["label & 1 = 1", "label | 1 = 1", "carrier || 'x' = 'UAx'", "carrier ~ 'U'"] {
        assert!(compile(&flights(), vec![filter(sql)]).is_ok(), "{sql}");
    }
}

#[test]
fn a_text_that_is_compared_with_a_number() {
    says!(
        vec![filter("carrier < 5")],
        r#"
steps[0].filter: cannot compute CAST(carrier AS Int64) < 5: Cannot cast string 'UA' to value of Int64 type (row 0)
  hint: the two sides have different types, and one is converted; compare texts with texts ('5', not 5), or write TRY_CAST(x AS BIGINT), which gives null where a text is no number"#
    );
}
