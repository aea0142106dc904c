//! Batches without a sidecar: what C sees of each kind of column, and when the memory is back.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::{Field, Int32Type};
use arrow::ffi::from_ffi;
use forebay_core::DType;
use forebay_feed::SlabPool;

use super::*;
use crate::failure::tests::message_of;

/// A batch over a slab of the pool that holds the numbers 0 to 7 as int32.
fn batch(pool: &SlabPool) -> *mut Batch {
    let mut writer = pool.take(32, None).unwrap();
    let bytes: Vec<u8> = (0i32..8).flat_map(i32::to_ne_bytes).collect();
    writer.region(0..32).unwrap().copy_from_slice(&bytes);
    let slab = writer.freeze().unwrap();
    let tensor = |dtype, shape: &[usize], offset| Dense {
        dtype,
        shape: shape.to_vec(),
        offset,
        slab: slab.clone(),
    };
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    let field = Arc::new(Field::new("text", texts.data_type().clone(), true));
    let offsets = tensor(DType::Int64, &[3], 8);
    let columns = vec![
        ("dense".into(), Values::Dense(tensor(DType::Int32, &[2, 3], 4))),
        (
            "each".into(),
            Values::Each(vec![tensor(DType::UInt8, &[1, 4], 0), tensor(DType::UInt8, &[], 4)]),
        ),
        ("ragged".into(), Values::Ragged { values: tensor(DType::Float32, &[2], 0), offsets }),
        ("text".into(), Values::Arrow { values: texts, field }),
    ];
    Box::into_raw(Box::new(Batch::new(Inner { rows: 2, columns }).unwrap()))
}

fn column(batch: *const Batch, index: usize) -> Column {
    let mut column = MaybeUninit::uninit();
    // SAFETY: the batch is the test's, and the place is this function's.
    let status = unsafe { forebay_batch_column(batch, index, column.as_mut_ptr(), null_mut()) };
    assert_eq!(status, Status::Ok);
    // SAFETY: written, as the status says.
    unsafe { column.assume_init() }
}

/// A tensor as a C program reads it: code and bits of the type, axes, bytes.
type Read<'a> = ((u8, u8), &'a [i64], &'a [u8]);

fn tensors(column: &Column) -> Vec<Read<'_>> {
    // SAFETY: what the header promises; the batch outlives the test's use.
    let all = unsafe { std::slice::from_raw_parts(column.tensors, column.tensor_count) };
    let read = |t: &Tensor| {
        assert_eq!(t.dtype.lanes, 1);
        // SAFETY: likewise.
        unsafe {
            (
                (t.dtype.code, t.dtype.bits),
                std::slice::from_raw_parts(t.shape, t.ndim as usize),
                std::slice::from_raw_parts(t.data.cast::<u8>().cast_const(), t.nbytes as usize),
            )
        }
    };
    all.iter().map(read).collect()
}

#[test]
fn every_kind_of_column_is_described() {
    let batch = batch(&SlabPool::new(1));
    let (mut rows, mut columns) = (0, 0);
    // SAFETY: the batch and the places are this test's.
    let status = unsafe { forebay_batch_size(batch, &raw mut rows, &raw mut columns, null_mut()) };
    assert_eq!((status, rows, columns), (Status::Ok, 2, 4));
    let all: Vec<Column> = (0..4).map(|i| column(batch, i)).collect();
    // SAFETY: names live as long as the batch.
    let names = all.iter().map(|c| unsafe { CStr::from_ptr(c.name) }.to_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["dense", "each", "ragged", "text"]);
    assert_eq!(
        all.iter().map(|c| c.kind).collect::<Vec<_>>(),
        [Kind::Dense, Kind::Each, Kind::Ragged, Kind::Arrow]
    );

    let dense = tensors(&all[0]);
    let bytes: Vec<u8> = (1i32..7).flat_map(i32::to_ne_bytes).collect();
    assert_eq!(dense, [((0, 32), [2, 3].as_slice(), bytes.as_slice())]);
    let each = tensors(&all[1]);
    assert_eq!(each[0], ((1, 8), [1, 4].as_slice(), [0; 4].as_slice()));
    assert_eq!(each[1], ((1, 8), [].as_slice(), [1].as_slice()));
    let ragged = tensors(&all[2]);
    assert_eq!(ragged.iter().map(|t| t.0).collect::<Vec<_>>(), [(2, 32), (0, 64)]);
    assert_eq!(ragged[1].2.len(), 24);
    assert_eq!(all[3].tensor_count, 0);
    // SAFETY: released once, and used by nobody.
    unsafe { forebay_batch_release(batch) };
}

#[test]
fn a_name_is_found_and_a_wrong_one_is_put_right() {
    let batch = batch(&SlabPool::new(1));
    let mut index = 9;
    // SAFETY: the batch and the place are this test's.
    let find = |name: &CStr, index: *mut usize, error| unsafe {
        forebay_batch_find(batch, name.as_ptr(), index, error)
    };
    assert_eq!(find(c"ragged", &raw mut index, null_mut()), Status::Ok);
    assert_eq!(index, 2);
    let message = message_of(|e| find(c"regged", &raw mut index, e));
    assert_eq!(message, "there is no column \"regged\" in the batch");
    let mut place = MaybeUninit::uninit();
    // SAFETY: as above.
    let message = message_of(|e| unsafe { forebay_batch_column(batch, 4, place.as_mut_ptr(), e) });
    assert_eq!(message, "there is no column 4: the batch has 4");
    // SAFETY: released once, and used by nobody.
    unsafe { forebay_batch_release(batch) };
}

#[test]
fn the_memory_is_back_when_batch_and_arrow_are_released() {
    let pool = SlabPool::new(1);
    let batch = batch(&pool);
    let arrow = |index| {
        let (mut array, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
        // SAFETY: the batch and the places are this test's; empty structs own nothing.
        let status = unsafe {
            forebay_batch_arrow(batch, index, &raw mut array, &raw mut schema, null_mut())
        };
        assert_eq!(status, Status::Ok);
        let name = schema.name().map(str::to_owned);
        // SAFETY: the structs were just exported.
        (name, arrow::array::make_array(unsafe { from_ffi(array, &schema) }.unwrap()))
    };
    let (name, texts) = arrow(3);
    assert_eq!(name.as_deref(), Some("text"));
    assert_eq!(texts.as_string::<i32>().iter().collect::<Vec<_>>(), [Some("a"), None]);
    let (name, dense) = arrow(0);
    assert_eq!(name.as_deref(), Some("dense"));
    let (mut array, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
    // SAFETY: as above.
    let message = message_of(|e| unsafe {
        forebay_batch_arrow(batch, 1, &raw mut array, &raw mut schema, e)
    });
    assert_eq!(message, "tensors of different shapes have no Arrow form yet (column each)");
    // SAFETY: released once, and used by nobody.
    unsafe { forebay_batch_release(batch) };
    // The array has a share of the slab.
    assert_eq!(pool.free(), 0);
    let numbers = dense.as_fixed_size_list().values().as_primitive::<Int32Type>().clone();
    assert_eq!(numbers.values(), &[1, 2, 3, 4, 5, 6]);
    drop((dense, numbers));
    assert_eq!(pool.free(), 1);
}

#[test]
fn every_function_refuses_null() {
    let (mut rows, mut columns, mut index) = (0, 0, 0);
    let mut column = MaybeUninit::uninit();
    let (mut array, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
    // SAFETY: NULL is allowed, and the places are this test's.
    let messages = unsafe {
        [
            message_of(|e| forebay_batch_size(null(), &raw mut rows, &raw mut columns, e)),
            message_of(|e| forebay_batch_find(null(), c"x".as_ptr(), &raw mut index, e)),
            message_of(|e| forebay_batch_column(null(), 0, column.as_mut_ptr(), e)),
            message_of(|e| forebay_batch_arrow(null(), 0, &raw mut array, &raw mut schema, e)),
        ]
    };
    assert_eq!(messages, ["batch is NULL"; 4]);
    // SAFETY: as above.
    let messages = unsafe {
        [
            message_of(|e| forebay_batch_size(null(), null_mut(), &raw mut columns, e)),
            message_of(|e| forebay_batch_size(null(), &raw mut rows, null_mut(), e)),
            message_of(|e| forebay_batch_find(null(), null(), null_mut(), e)),
            message_of(|e| forebay_batch_arrow(null(), 0, null_mut(), &raw mut schema, e)),
            message_of(|e| forebay_batch_arrow(null(), 0, &raw mut array, null_mut(), e)),
        ]
    };
    assert_eq!(
        messages,
        ["rows is NULL", "columns is NULL", "index is NULL", "array is NULL", "schema is NULL"]
    );
    // SAFETY: NULL is allowed.
    unsafe { forebay_batch_release(null_mut()) };
}
