//! Reading: schemas, types, blocks.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, Int32Type, Schema, TimeUnit};
use forebay_core::ErrorKind;
use forebay_io::{BlockReader, Dataset, Selection};
use parquet::arrow::arrow_reader::RowSelector;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::files::*;

#[tokio::test]
async fn t1_empty_files_keep_the_schema() {
    let dir = tempfile::tempdir().unwrap();
    let schema = int_schema();
    // No row group at all.
    write_with(&dir.path().join("none/a.parquet"), &schema, &[], WriterProperties::default());
    // pyarrow writes a row group of 0 rows; so does an explicit flush of nothing elsewhere.
    let got = read_all(&source(&[text(&dir.path().join("none"))])).await.unwrap();
    assert_eq!((got.num_rows(), got.schema()), (0, schema.clone()));

    // The first file is empty, the second is not.
    write_with(&dir.path().join("mixed/a.parquet"), &schema, &[], WriterProperties::default());
    write(&dir.path().join("mixed/b.parquet"), &numbered(0, 10));
    let got = read_all(&source(&[text(&dir.path().join("mixed"))])).await.unwrap();
    assert_eq!(ids(&got), (0..10).collect::<Vec<_>>());
    assert_eq!(got.schema(), schema);

    // A file without columns beside a struct column (T8).
    let empty = Arc::new(Schema::empty());
    write_with(&dir.path().join("bare/a.parquet"), &empty, &[], WriterProperties::default());
    write(&dir.path().join("bare/b.parquet"), &numbered(0, 3));
    assert_eq!(read_all(&source(&[text(&dir.path().join("bare"))])).await.unwrap().num_rows(), 3);
}

#[tokio::test]
async fn t2_units_and_zones_are_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let made = batch(vec![
        (
            "s",
            Arc::new(TimestampSecondArray::from(vec![Some(1), None, Some(-7)]).with_timezone("UTC"))
                as ArrayRef,
        ),
        ("ms", Arc::new(TimestampMillisecondArray::from(vec![1, 2, 3]))),
        (
            "us",
            Arc::new(TimestampMicrosecondArray::from(vec![1, 2, 3]).with_timezone("Europe/Berlin")),
        ),
        ("ns", Arc::new(TimestampNanosecondArray::from(vec![1, i64::MAX, i64::MIN]))),
        ("t", Arc::new(Time32SecondArray::from(vec![1, 2, 3]))),
        ("d", Arc::new(DurationMillisecondArray::from(vec![1, 2, 3]))),
        ("day", Arc::new(Date32Array::from(vec![1, 2, 3]))),
        (
            "dec",
            Arc::new(Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(20, 3).unwrap()),
        ),
        ("i8", Arc::new(Int8Array::from(vec![1, -2, 3]))),
        ("u16", Arc::new(UInt16Array::from(vec![1, 65535, 3]))),
        ("large", Arc::new(LargeStringArray::from(vec!["a", "b", "c"]))),
        ("dict", Arc::new(vec!["a", "b", "a"].into_iter().collect::<DictionaryArray<Int32Type>>())),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
                Some(vec![Some(2)]),
                None,
                Some(vec![Some(3), None]),
            ])),
        ),
    ]);
    write(&dir.path().join("a.parquet"), &made);
    let got = read_all(&source(&[text(dir.path())])).await.unwrap();
    assert_eq!(got, made);
    assert_eq!(
        got.schema().field(0).data_type(),
        &DataType::Timestamp(TimeUnit::Second, Some("UTC".into()))
    );
}

#[tokio::test]
async fn t3_partition_columns_are_decoded() {
    let dir = tempfile::tempdir().unwrap();
    for (folder, first) in [
        ("city=a%2Fb/year=2013", 0),
        ("city=x y/year=2014", 10),
        ("city=100%25/year=__HIVE_DEFAULT_PARTITION__", 20),
    ] {
        write(&dir.path().join(folder).join("f.parquet"), &numbered(first, 2));
    }
    let got = read_all(&source(&[text(dir.path())])).await.unwrap();
    let city = got.column_by_name("city").unwrap().as_string::<i32>();
    let year = got.column_by_name("year").unwrap().as_primitive::<arrow::datatypes::Int64Type>();
    let rows: Vec<_> = (0..got.num_rows())
        .map(|i| (ids(&got)[i], city.value(i).to_owned(), year.is_valid(i).then(|| year.value(i))))
        .collect();
    // Bytewise by relative path: `1` < `a` < `x`.
    let expect = [
        (20, "100%", None),
        (21, "100%", None),
        (0, "a/b", Some(2013)),
        (1, "a/b", Some(2013)),
        (10, "x y", Some(2014)),
        (11, "x y", Some(2014)),
    ];
    assert_eq!(rows, expect.map(|(i, c, y)| (i, c.to_owned(), y)));
    // The partition columns alone: nothing is read from the files.
    let dataset = Arc::new(Dataset::open(&source(&[text(dir.path())])).await.unwrap());
    let reader = BlockReader::new(dataset, &["year".into()]).unwrap();
    assert_eq!(reader.cost(0).fetch, 0);
    assert_eq!(reader.fetch(0, None).await.unwrap().bytes(), 0);
    assert_eq!(read_blocks(&reader).await.unwrap().num_rows(), 6);
}

#[tokio::test]
async fn t4_a_large_column_is_split_into_batches() {
    let dir = tempfile::tempdir().unwrap();
    let made = numbered(0, 10_000);
    let props = WriterProperties::builder()
        .set_offset_index_disabled(true)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build();
    write_with(&dir.path().join("a.parquet"), &made.schema(), std::slice::from_ref(&made), props);
    let dataset = Arc::new(Dataset::open(&source(&[text(dir.path())])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    assert_eq!(reader.decode(reader.fetch(0, None).await.unwrap()).unwrap().len(), 1);
    let small = reader.clone().with_batch_bytes(16 << 10);
    let parts = small.decode(small.fetch(0, None).await.unwrap()).unwrap();
    assert!(parts.len() > 5, "{}", parts.len());
    assert_eq!(arrow::compute::concat_batches(&made.schema(), &parts).unwrap(), made);
}

/// More than 2 GiB of strings in one column of one row group, from a small file: the offsets
/// overflow, and the block comes out in pieces. Takes about 5 GiB of memory.
#[tokio::test]
#[ignore = "takes 5 GiB of memory"]
async fn t4_full_size() {
    let dir = tempfile::tempdir().unwrap();
    let value = "v".repeat(1 << 20);
    let one = StringArray::from(vec![value.as_str()]);
    let keys = Int32Array::from(vec![0; 2_500]);
    let made = batch(vec![("text", arrow::compute::take(&one, &keys.slice(0, 1), None).unwrap())]);
    let props = WriterProperties::builder().set_dictionary_page_size_limit(4 << 20).build();
    let batches: Vec<RecordBatch> = (0..2_500).map(|_| made.clone()).collect();
    write_with(&dir.path().join("a.parquet"), &made.schema(), &batches, props);
    let dataset = Arc::new(Dataset::open(&source(&[text(dir.path())])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    let mut rows = 0;
    for block in 0..reader.dataset().blocks.len() {
        for part in reader.decode(reader.fetch(block, None).await.unwrap()).unwrap() {
            rows += part.num_rows();
            assert!(part.column(0).as_string::<i32>().value_data().len() <= i32::MAX as usize);
        }
    }
    assert_eq!(rows, 2_500);
}

#[tokio::test]
async fn t8_missing_columns_are_null() {
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir.path().join("a.parquet"),
        &batch(vec![("a", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]),
    );
    write(
        &dir.path().join("b.parquet"),
        &batch(vec![("b", Arc::new(StringArray::from(vec!["x"])) as ArrayRef)]),
    );
    let got = read_all(&source(&[text(dir.path())])).await.unwrap();
    let expect = batch(vec![
        ("a", Arc::new(Int64Array::from(vec![Some(1), Some(2), None])) as ArrayRef),
        ("b", Arc::new(StringArray::from(vec![None, None, Some("x")]))),
    ]);
    assert_eq!(got, expect);
}

#[tokio::test]
async fn t9_nullability_is_unified() {
    let dir = tempfile::tempdir().unwrap();
    let strict = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
    let a =
        RecordBatch::try_new(strict.clone(), vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
    write(&dir.path().join("a.parquet"), &a);
    let only = read_all(&source(&[text(&dir.path().join("a.parquet"))])).await.unwrap();
    assert!(!only.schema().field(0).is_nullable());
    write(
        &dir.path().join("b.parquet"),
        &batch(vec![("x", Arc::new(Int64Array::from(vec![None, Some(2)])) as ArrayRef)]),
    );
    let got = read_all(&source(&[text(dir.path())])).await.unwrap();
    assert!(got.schema().field(0).is_nullable());
    assert_eq!(
        got.column(0).as_primitive::<arrow::datatypes::Int64Type>().iter().collect::<Vec<_>>(),
        [Some(1), None, Some(2)]
    );
}

#[tokio::test]
async fn types_widen_and_other_differences_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir.path().join("a.parquet"),
        &batch(vec![("x", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]),
    );
    write(
        &dir.path().join("b.parquet"),
        &batch(vec![("x", Arc::new(Int64Array::from(vec![1 << 40])) as ArrayRef)]),
    );
    let got = read_all(&source(&[text(dir.path())])).await.unwrap();
    assert_eq!(got.column(0).as_primitive::<arrow::datatypes::Int64Type>().values(), &[1, 1 << 40]);
    write(
        &dir.path().join("c.parquet"),
        &batch(vec![("x", Arc::new(StringArray::from(vec!["1"])) as ArrayRef)]),
    );
    let e = read_all(&source(&[text(dir.path())])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Schema);
    for part in ["c.parquet", "\"x\"", "Int64", "Utf8"] {
        assert!(e.message().contains(part), "{e}");
    }
    assert!(e.message().contains("a.parquet") || e.message().contains("b.parquet"), "{e}");
}

#[tokio::test]
async fn an_unknown_column_is_corrected() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &numbered(0, 3));
    let dataset = Arc::new(Dataset::open(&source(&[text(dir.path())])).await.unwrap());
    let e = BlockReader::new(dataset.clone(), &["nmae".into()]).unwrap_err();
    assert_eq!(e.hint(), Some("did you mean \"name\"?"));
    assert!(BlockReader::new(dataset.clone(), &["id".into(), "id".into()]).is_err());
    // Columns come in the order asked for; none at all gives rows.
    let reader = BlockReader::new(dataset.clone(), &["name".into(), "id".into()]).unwrap();
    let got = read_blocks(&reader).await.unwrap();
    assert_eq!(got.schema().field(0).name(), "name");
    assert_eq!(ids(&got), [0, 1, 2]);
    let none = BlockReader::new(dataset, &[]).unwrap();
    assert_eq!(none.decode(none.fetch(0, None).await.unwrap()).unwrap()[0].num_rows(), 3);
}

#[tokio::test]
async fn views_point_into_the_pages() {
    let dir = tempfile::tempdir().unwrap();
    let blobs: Vec<Vec<u8>> = (0..50u8).map(|i| vec![i; 1000 + i as usize]).collect();
    let made = batch(vec![
        ("image", Arc::new(BinaryArray::from_iter_values(&blobs)) as ArrayRef),
        ("label", Arc::new(Int64Array::from_iter_values(0..50))),
    ]);
    write(&dir.path().join("a.parquet"), &made);
    let dataset = Arc::new(Dataset::open(&source(&[text(dir.path())])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap().with_views(&["image".into(), "label".into()]);
    assert_eq!(reader.schema().field(0).data_type(), &DataType::BinaryView);
    assert_eq!(reader.schema().field(1).data_type(), &DataType::Int64);
    let got = read_blocks(&reader).await.unwrap();
    let views = got.column(0).as_binary_view();
    for (i, blob) in blobs.iter().enumerate() {
        assert_eq!(views.value(i), blob);
    }
}

#[tokio::test]
async fn row_groups_with_a_page_index_are_cut_and_read_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    // 40 MiB of noise that does not compress, in one row group of many pages.
    let rows = 5_000usize;
    let mut state = 1u64;
    let mut noise = || {
        let mut v = Vec::with_capacity(8192);
        while v.len() < 8192 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            v.extend_from_slice(&state.to_le_bytes());
        }
        v
    };
    let blobs: Vec<Vec<u8>> = (0..rows).map(|_| noise()).collect();
    let made = batch(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
        ("blob", Arc::new(BinaryArray::from_iter_values(&blobs))),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
                (0..rows as i32).map(|i| Some((0..i % 4).map(Some).collect::<Vec<_>>())),
            )),
        ),
    ]);
    let path = dir.path().join("a.parquet");
    let props = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(300)
        .set_write_batch_size(100)
        .build();
    write_with(&path, &made.schema(), std::slice::from_ref(&made), props);
    let dataset = Arc::new(Dataset::open(&source(&[text(&path)])).await.unwrap());
    assert_eq!(dataset.blocks.len(), 5, "40 MiB in blocks of about 8");
    assert!(dataset.blocks.iter().all(|b| (4 << 20..16 << 20).contains(&b.bytes)));
    assert_eq!(dataset.blocks.iter().map(|b| b.len()).sum::<u64>(), rows as u64);
    assert_eq!(dataset.rows(), rows as u64);
    let reader = BlockReader::all(dataset.clone()).unwrap();
    assert_eq!(read_blocks(&reader).await.unwrap(), made);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(reader.cost(2).fetch < size / 4, "only the needed pages are fetched");
    assert!(reader.fetch(2, None).await.unwrap().bytes() < size / 3);

    // Some rows of a block.
    let block = &dataset.blocks[1];
    let pick = Selection::from(vec![
        RowSelector::skip(3),
        RowSelector::select(2),
        RowSelector::skip(400),
        RowSelector::select(1),
    ]);
    let fetched = reader.fetch(1, Some(&pick)).await.unwrap();
    assert_eq!(fetched.rows(), 3);
    let got = reader.decode(fetched).unwrap();
    assert_eq!(got.len(), 1);
    let first = block.ordinal as i64;
    assert_eq!(ids(&got[0]), [first + 3, first + 4, first + 405]);
    assert_eq!(
        got[0].column(2).slice(2, 1).as_ref(),
        made.column(2).slice((first + 405) as usize, 1).as_ref()
    );
    // No row at all.
    let none = Selection::from(vec![RowSelector::skip(5)]);
    let fetched = reader.fetch(1, Some(&none)).await.unwrap();
    assert_eq!((fetched.bytes(), reader.decode(fetched).unwrap()[0].num_rows()), (0, 0));
    // Locating rows.
    assert_eq!(dataset.locate(0), Some((0, 0)));
    assert_eq!(dataset.locate(block.ordinal), Some((1, 0)));
    assert_eq!(dataset.locate(block.ordinal - 1), Some((0, dataset.blocks[0].len() - 1)));
    assert_eq!(dataset.locate(rows as u64), None);
}

#[tokio::test]
async fn s11_a_file_that_changes_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, &numbered(0, 100));
    let dataset = Arc::new(Dataset::open(&source(&[text(&path)])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    reader.fetch(0, None).await.unwrap();
    write(&path, &numbered(1, 100));
    let e = reader.fetch(0, None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Changed);
    assert!(e.to_string().contains("a.parquet"), "{e}");
    std::fs::remove_file(&path).unwrap();
    let e = reader.fetch(0, None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Changed);
    assert!(e.to_string().contains("was removed"), "{e}");
}

#[tokio::test]
async fn a_summary_has_what_inspect_shows() {
    let dir = tempfile::tempdir().unwrap();
    let made = numbered(0, 100);
    let props = WriterProperties::builder()
        .set_compression(parquet::basic::Compression::ZSTD(Default::default()))
        .set_max_row_group_row_count(Some(60))
        .build();
    write_with(
        &dir.path().join("k=1/a.parquet"),
        &made.schema(),
        std::slice::from_ref(&made),
        props,
    );
    let dataset = Dataset::open(&source(&[text(dir.path())])).await.unwrap();
    let file = dataset.files[0].summary();
    assert_eq!(file.row_groups.iter().map(|g| g.rows).collect::<Vec<_>>(), [60, 40]);
    assert_eq!(file.partitions, [("k".to_owned(), Some("1".to_owned()))]);
    assert!(file.page_index && file.bytes > 0 && file.created_by.unwrap().contains("parquet-rs"));
    let columns = dataset.columns();
    assert_eq!(columns.iter().map(|c| c.path.as_str()).collect::<Vec<_>>(), ["id", "name"]);
    assert_eq!(columns[0].codecs, ["zstd"]);
    assert!(columns[0].compressed > 0 && columns[0].dictionary);
}

/// The executor moves these between threads.
#[tokio::test]
async fn futures_and_readers_are_send() {
    fn send<T: Send>(_: &T) {}
    fn sync<T: Send + Sync + Clone>(_: &T) {}
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &numbered(0, 3));
    let from = source(&[text(dir.path())]);
    let open = Dataset::open(&from);
    send(&open);
    let reader = BlockReader::all(Arc::new(open.await.unwrap())).unwrap();
    sync(&reader);
    let fetch = reader.fetch(0, None);
    send(&fetch);
    let fetched = fetch.await.unwrap();
    send(&fetched);
    let sink = forebay_plan::ParquetSink::new(text(&dir.path().join("out")));
    let create = forebay_io::ParquetWriter::create(&sink, reader.schema());
    send(&create);
    let mut writer = create.await.unwrap();
    send(&writer);
    {
        let ship = writer.ship();
        send(&ship);
        ship.await.unwrap();
    }
    let commit = writer.commit();
    send(&commit);
    commit.await.unwrap();
    let writer = forebay_io::ParquetWriter::create(
        &forebay_plan::ParquetSink::new(text(&dir.path().join("gone"))),
        reader.schema(),
    )
    .await
    .unwrap();
    let abort = writer.abort();
    send(&abort);
    assert!(abort.await.paths.is_empty());
}

/// A file with one INT96 column as a list and one as it is, and a text column.
fn int96_file(arrow: Option<&Schema>) -> Vec<u8> {
    use parquet::data_type::{ByteArrayType, Int96, Int96Type};
    use parquet::file::writer::SerializedFileWriter;
    let message = "message m {
        optional int96 t = 7;
        optional group l (LIST) { repeated group list { optional int96 element; } }
        optional binary name (UTF8);
    }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(message).unwrap());
    let mut props = WriterProperties::builder().build();
    if let Some(arrow) = arrow {
        parquet::arrow::add_encoded_arrow_schema_to_metadata(arrow, &mut props);
    }
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::new(props)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    // 1970-01-02 00:00:00.000001999 and 9999-12-31.
    let mut values = [Int96::new(), Int96::new()];
    values[0].set_data(1999, 0, 2_440_589);
    values[1].set_data(0, 0, 5_373_484);
    for levels in [[1i16, 1], [3, 3]] {
        let mut column = group.next_column().unwrap().unwrap();
        let repeated: &[i16] = if levels[0] == 3 { &[0, 0] } else { &[] };
        let repeated = (!repeated.is_empty()).then_some(repeated);
        column.typed::<Int96Type>().write_batch(&values, Some(&levels), repeated).unwrap();
        column.close().unwrap();
    }
    let mut column = group.next_column().unwrap().unwrap();
    let names = ["a".into(), "b".into()];
    column.typed::<ByteArrayType>().write_batch(&names, Some(&[1, 1]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    out
}

#[tokio::test]
async fn int96_is_read_as_microseconds_unless_its_writer_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    std::fs::write(&path, int96_file(None)).unwrap();
    let dataset = Arc::new(Dataset::open(&source(&[text(&path)])).await.unwrap());
    for views in [vec![], vec!["name".to_owned()]] {
        let reader = BlockReader::all(Arc::clone(&dataset)).unwrap().with_views(&views);
        let got = read_blocks(&reader).await.unwrap();
        let expected =
            TimestampMicrosecondArray::from(vec![86_400_000_001, 253_402_214_400_000_000]);
        assert_eq!(got.column(0).as_ref(), &expected as &dyn Array);
        let list = got.column(1).as_list::<i32>();
        assert_eq!(list.values().as_ref(), &expected as &dyn Array);
        assert_eq!(got.schema(), reader.schema());
    }

    // An Arrow writer's nanoseconds: every bit is kept.
    let ns = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let arrow = Schema::new(vec![
        Field::new("t", ns.clone(), true),
        Field::new("l", DataType::List(Arc::new(Field::new("element", ns, true))), true),
        Field::new("name", DataType::Utf8, true),
    ]);
    std::fs::write(&path, int96_file(Some(&arrow))).unwrap();
    let got = read_all(&source(&[text(&path)])).await.unwrap();
    let first = got.column(0).slice(0, 1);
    let expected = TimestampNanosecondArray::from(vec![86_400_000_001_999]);
    assert_eq!(first.as_ref(), &expected as &dyn Array);
}
