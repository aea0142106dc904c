//! Single rows of a block are those of the whole block.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::Field;
use forebay_io::{BlockReader, Dataset};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use crate::files::{source, text, write_with};

/// Bytes that do not compress, `len` of them.
fn noise(mut seed: u64, len: usize) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (seed >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// How a file is written.
#[derive(Clone, Copy, Debug)]
struct Shape {
    nulls: bool,
    compression: Compression,
    dictionary: bool,
    version: WriterVersion,
    index: bool,
    /// Rows of a page.
    page: usize,
    /// Bytes of a value.
    len: usize,
    encoding: Encoding,
}

const ROWS: usize = 200;
const GROUP: usize = 100;

fn made(shape: Shape) -> RecordBatch {
    let values: Vec<Option<Vec<u8>>> = (0..ROWS as u64)
        .map(|i| {
            // A head that all share, as pictures have, and an empty value.
            let mut value =
                noise(i % 61, shape.len - shape.len / 3 + (i as usize * 7 % (shape.len / 2)));
            value[..200].fill(7);
            (!shape.nulls || i % 7 != 3).then_some(if i == 20 { Vec::new() } else { value })
        })
        .collect();
    let texts = values.iter().map(|v| {
        v.as_ref().map(|v| v.iter().map(|b| char::from(b'!' + b % 90)).collect::<String>())
    });
    // Pictures beside their names, as data sets of pictures often are.
    let image = Arc::new(BinaryArray::from_iter(values.iter().map(|v| v.as_deref())));
    let name = Arc::new(StringArray::from_iter((0..ROWS).map(|i| (i % 3 > 0).then_some("a name"))));
    let fields = [("bytes", image.data_type()), ("path", name.data_type())];
    let fields: Vec<Field> =
        fields.iter().map(|(n, t)| Field::new(*n, (*t).clone(), true)).collect();
    let nulls = NullBuffer::from_iter((0..ROWS).map(|i| i % 5 > 0));
    let pair = StructArray::new(fields.into(), vec![Arc::clone(&image) as _, name], Some(nulls));
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(0..ROWS as i64)) as ArrayRef, false),
        ("image", image, shape.nulls),
        ("pair", Arc::new(pair), true),
        ("text", Arc::new(StringArray::from_iter(texts)), true),
    ])
    .unwrap()
}

fn props(shape: Shape) -> WriterProperties {
    WriterProperties::builder()
        .set_compression(shape.compression)
        // The second version would have another for strings.
        .set_column_encoding("image".into(), shape.encoding)
        .set_column_encoding("text".into(), shape.encoding)
        .set_column_encoding(vec!["pair".to_owned(), "bytes".to_owned()].into(), shape.encoding)
        .set_dictionary_enabled(shape.dictionary)
        .set_dictionary_page_size_limit(1 << 30)
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(shape.page)
        .set_write_batch_size(shape.page)
        .set_max_row_group_row_count(Some(GROUP))
        .set_writer_version(shape.version)
        .set_offset_index_disabled(!shape.index)
        .set_statistics_enabled(if shape.index {
            EnabledStatistics::Page
        } else {
            EnabledStatistics::None
        })
        .build()
}

/// Reads rows of both row groups in each way, and gives the bytes that this took of a block.
async fn check(shape: Shape) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let batch = made(shape);
    write_with(&path, &batch.schema(), std::slice::from_ref(&batch), props(shape));
    let dataset = Arc::new(Dataset::open(&source(&[text(&path)])).await.unwrap());
    assert_eq!(dataset.blocks.len(), 2);
    let mut least = (u64::MAX, 0);
    for columns in [&["image", "id", "text", "pair"][..], &["image"], &["pair", "id"]] {
        let columns: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
        for views in [false, true] {
            let reader = BlockReader::new(Arc::clone(&dataset), &columns).unwrap();
            let reader = if views { reader.with_views(&columns) } else { reader };
            for block in 0..2 {
                let whole = reader.fetch(block, None).await.unwrap();
                let bytes = whole.bytes();
                let whole = reader.decode(whole).unwrap();
                let whole = concat_batches(&reader.schema(), &whole).unwrap();
                for rows in [
                    &[3][..],
                    &[0, 99],
                    &[5, 50],
                    &[1, 2, 3, 4, 20, 21, 97],
                    &[20],
                    &[98, 99],
                    &[0, 30, 60, 90],
                    &[],
                ] {
                    let context = format!("{shape:?} {columns:?} {views} {block} {rows:?}");
                    let fetched = reader.fetch_rows(block, rows).await.unwrap().unwrap();
                    if !rows.is_empty() && columns.len() == 4 {
                        least = least.min((fetched.bytes(), bytes));
                    }
                    let got = reader.decode(fetched);
                    let got = got.unwrap_or_else(|e| panic!("{context}: {e:?}"));
                    let got = concat_batches(&reader.schema(), &got).unwrap();
                    let rows = arrow::array::UInt32Array::from(rows.to_vec());
                    assert_eq!(got, take_record_batch(&whole, &rows).unwrap(), "{context}");
                }
            }
        }
    }
    least
}

const PLAIN: Shape = Shape {
    nulls: false,
    compression: Compression::SNAPPY,
    dictionary: false,
    version: WriterVersion::PARQUET_1_0,
    index: false,
    page: 1_000,
    len: 12_000,
    encoding: Encoding::PLAIN,
};

#[tokio::test]
async fn large_pages_give_single_values() {
    for nulls in [false, true] {
        for compression in [Compression::SNAPPY, Compression::UNCOMPRESSED] {
            for dictionary in [false, true] {
                for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                    for index in [false, true] {
                        let shape =
                            Shape { nulls, compression, dictionary, version, index, ..PLAIN };
                        let (some, all) = check(shape).await;
                        assert!(some < all / 20, "{shape:?}: {some} of {all} bytes");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn other_pages_are_read_whole() {
    // Another codec, short values, another encoding.
    let whole = [
        Shape { compression: Compression::LZ4_RAW, ..PLAIN },
        Shape { compression: Compression::ZSTD(Default::default()), dictionary: true, ..PLAIN },
        Shape { len: 1_500, ..PLAIN },
        Shape { encoding: Encoding::DELTA_LENGTH_BYTE_ARRAY, ..PLAIN },
    ];
    for shape in whole {
        let (some, all) = check(shape).await;
        assert_eq!(some, all, "{shape:?}");
    }
    // Several pages, of which some hold no wanted row.
    for page in [40, 10, 1] {
        for index in [false, true] {
            for nulls in [false, true] {
                let (some, all) = check(Shape { page, index, nulls, ..PLAIN }).await;
                assert!(some < all / 3, "{page} {index} {nulls}: {some} of {all} bytes");
            }
        }
    }
}

#[tokio::test]
async fn pages_between_the_wanted_rows_are_not_needed() {
    for index in [false, true] {
        let shape = Shape { compression: Compression::LZ4_RAW, page: 10, index, ..PLAIN };
        let (some, all) = check(shape).await;
        assert!(some < all / 3, "{index}: {some} of {all} bytes");
    }
}
