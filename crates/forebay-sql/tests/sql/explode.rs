//! Rows multiplied: against a reference that walks row by row, whole and taken apart.

use arrow::array::{Array, AsArray, Int64Array, ListArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type};
use forebay_plan::Step;
use forebay_sql::elements;
use proptest::prelude::*;

use crate::support::{array, batch, compile, drop_columns, filter, run, select, with};

type Lists = Vec<Option<Vec<Option<i64>>>>;

fn input(lists: &Lists) -> RecordBatch {
    batch(vec![
        ("id", array(Int64Array::from_iter_values(0..lists.len() as i64))),
        ("x", array(ListArray::from_iter_primitive::<Int64Type, _, _>(lists.clone()))),
    ])
}

fn explode(column: &str) -> Step {
    Step::Explode(column.to_owned())
}

fn numbers(batch: &RecordBatch, column: &str) -> Vec<Option<i64>> {
    let column = batch.column_by_name(column).unwrap();
    column.as_primitive::<Int64Type>().iter().collect()
}

/// (row, index, element) of every item.
fn items(lists: &Lists) -> Vec<(u32, u32, Option<i64>)> {
    let row = |(row, list): (u32, &Option<Vec<Option<i64>>>)| {
        let list = list.clone().unwrap_or_default();
        (0..).zip(list).map(move |(index, x)| (row, index, x)).collect::<Vec<_>>()
    };
    (0..).zip(lists).flat_map(row).collect()
}

fn lists() -> impl Strategy<Value = Lists> {
    let list = prop::collection::vec(prop::option::weighted(0.8, 0i64..9), 0..4);
    prop::collection::vec(prop::option::weighted(0.8, list), 0..20)
}

proptest! {
    #[test]
    fn items_know_their_row_and_number(lists in lists(), cut in 0usize..20) {
        let batch = input(&lists);
        let steps = vec![filter("id % 5 <> 3"), explode("x"), with("y", "x + id"), filter("x IS NULL OR x > 2")];
        let relation = compile(&batch, steps).unwrap();
        let wanted: Vec<_> = items(&lists)
            .into_iter()
            .filter(|(row, _, x)| row % 5 != 3 && x.is_none_or(|x| x > 2))
            .collect();
        let applied = relation.apply(&batch).unwrap();
        let (kept, index) = (applied.kept.unwrap(), applied.index.unwrap());
        let got: Vec<_> = (0..kept.len())
            .map(|i| (kept.value(i), index.value(i), numbers(&applied.batch, "x")[i]))
            .collect();
        prop_assert_eq!(&got, &wanted);
        let sums: Vec<_> = wanted.iter().map(|(row, _, x)| x.map(|x| x + i64::from(*row))).collect();
        prop_assert_eq!(numbers(&applied.batch, "y"), sums);

        // Taken apart it is the same, however the rows between are cut.
        let split = relation.split().unwrap();
        let rows = split.rows.apply(&batch).unwrap().batch;
        prop_assert_eq!(rows.schema(), split.items.input_schema());
        let cut = cut.min(rows.num_rows());
        let parts = [rows.slice(0, cut), rows.slice(cut, rows.num_rows() - cut)];
        let parts: Vec<_> = parts.iter().map(|p| split.items.apply(p).unwrap().batch).collect();
        let together = concat_batches(&applied.batch.schema(), &parts).unwrap();
        prop_assert_eq!(together, applied.batch);
        let list = rows.column(split.list);
        let all: usize = (0..rows.num_rows()).map(|row| elements(list.as_ref(), row)).sum();
        let expected = items(&lists).iter().filter(|(row, _, _)| row % 5 != 3).count();
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn limits_count_items_over_batches(lists in lists(), size in 1usize..6, limit in 0u64..12) {
        let batch = input(&lists);
        let relation = compile(&batch, vec![explode("x"), Step::Limit(limit), drop_columns(&["id"])]).unwrap();
        let mut cursor = relation.cursor();
        let mut got = Vec::new();
        for at in (0..batch.num_rows()).step_by(size) {
            let part = batch.slice(at, size.min(batch.num_rows() - at));
            got.extend(numbers(&cursor.push(&part).unwrap().batch, "x"));
        }
        let wanted: Vec<_> =
            items(&lists).into_iter().map(|(_, _, x)| x).take(limit as usize).collect();
        prop_assert_eq!(got, wanted);
    }
}

#[test]
fn an_element_has_the_list_s_name_and_the_element_s_type() {
    let batch = input(&vec![Some(vec![Some(1), None])]);
    let relation = compile(&batch, vec![explode("x")]).unwrap();
    assert_eq!(relation.schema().field(1), &Field::new("x", DataType::Int64, true));
    assert!(relation.multiplies() && !relation.is_projection());
    // The list is read even where no element is delivered, and a list under another name stays.
    let ids = compile(&batch, vec![explode("x"), select(&["id"])]).unwrap();
    assert_eq!(ids.input_columns(), ["id", "x"]);
    let both = run(&batch, vec![with("all", "x"), explode("x")]).unwrap();
    assert_eq!(both.num_rows(), 2);
    assert!(matches!(both.column(2).data_type(), DataType::List(_)));
    assert_eq!(relation.row_filter().unwrap().input_columns(), ["x"]);
}

#[test]
fn what_is_no_list_is_refused_with_the_lists_there_are() {
    let batch = input(&vec![None]);
    let error = compile(&batch, vec![explode("id")]).unwrap_err();
    assert_eq!(error.place(), Some("steps[0].explode"));
    assert_eq!(error.message(), "explode takes a column of lists, and \"id\" is Int64");
    assert_eq!(error.hint(), Some("columns that hold lists: \"x\""));
    let error = compile(&batch, vec![explode("x"), explode("x")]).unwrap_err();
    assert_eq!(error.hint(), Some("no column holds lists here"));
    let error = compile(&batch, vec![explode("y")]).unwrap_err();
    assert!(error.message().contains("no column \"y\""), "{error}");
}

#[test]
fn an_error_behind_names_the_row_before() {
    let lists = vec![Some(vec![]), Some(vec![Some(1), Some(0)]), Some(vec![Some(0)])];
    let batch = input(&lists);
    let steps = vec![filter("id > 0"), explode("x"), with("y", "6 / x")];
    let error = compile(&batch, steps).unwrap().apply(&batch).unwrap_err();
    assert_eq!(error.location().row, Some(1));
    // A row that fails before the explode, behind one that fails after it.
    let steps = vec![with("z", "6 / (id - 2)"), explode("x"), with("y", "6 / x")];
    let error = compile(&batch, steps).unwrap().apply(&batch).unwrap_err();
    assert_eq!((error.location().row, error.place()), (Some(1), Some("steps[2].with_column")));
}

#[test]
fn two_lists_give_their_product() {
    let lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3)])];
    let batch = input(&lists);
    let steps = vec![with("y", "x"), explode("x"), explode("y"), filter("y <> 1")];
    let applied = compile(&batch, steps).unwrap().apply(&batch).unwrap();
    assert_eq!(numbers(&applied.batch, "x"), [Some(1), Some(2), Some(3)]);
    assert_eq!(numbers(&applied.batch, "y"), [Some(2), Some(2), Some(3)]);
    // Numbered over all that the row became, before the filter behind.
    assert_eq!(applied.index.unwrap().values(), &[1, 3, 0]);
}
