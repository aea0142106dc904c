//! DLPack: tensors handed to other libraries without a copy.
//!
//! The structures are those of dlpack.h (github.com/dmlc/dlpack), in the plain form of versions
//! before 1.0 and in the versioned form since. Whoever consumes the tensor calls its deleter once,
//! from any thread; that drops our share of the slab.

use std::ffi::c_void;

use forebay_core::DType;

use crate::Dense;

/// `kDLCPU`.
pub const DEVICE_CPU: i32 = 1;

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[allow(missing_docs)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// `DLManagedTensor`, carried by a capsule named `dltensor`.
#[repr(C)]
#[allow(missing_docs)]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLManagedTensorVersioned`, carried by a capsule named `dltensor_versioned`.
#[repr(C)]
#[allow(missing_docs)]
pub struct DLManagedTensorVersioned {
    pub major: u32,
    pub minor: u32,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

/// The DLPack type of a dtype (`DLDataTypeCode`: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool).
pub fn data_type(dtype: DType) -> DLDataType {
    let code = match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 0,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => 1,
        DType::Float16 | DType::Float32 | DType::Float64 => 2,
        DType::BFloat16 => 4,
        DType::Bool => 6,
    };
    // A dtype has at most 8 bytes.
    DLDataType { code, bits: (dtype.size() * 8) as u8, lanes: 1 }
}

/// What a managed tensor's context points to: the slab's share and the axes.
struct Context {
    tensor: Dense,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

fn context(tensor: Dense) -> Box<Context> {
    let shape: Vec<i64> = tensor.shape.iter().map(|n| *n as i64).collect();
    let mut strides = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    Box::new(Context { tensor, shape, strides })
}

fn describe(context: &mut Context) -> DLTensor {
    DLTensor {
        data: context.tensor.as_ptr().cast_mut().cast(),
        device: DLDevice { device_type: DEVICE_CPU, device_id: 0 },
        ndim: context.shape.len() as i32,
        dtype: data_type(context.tensor.dtype),
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: the pointer was made by `managed`, and DLPack has the deleter called once. Both boxes
    // were leaked there and are taken back here, each once.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager_ctx.cast::<Context>()));
    }
}

unsafe extern "C" fn delete_versioned(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: as for `delete`, with `managed_versioned`.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager_ctx.cast::<Context>()));
    }
}

/// The tensor in DLPack's plain form. The caller owns the pointer and must see that its deleter is
/// called once.
pub fn managed(tensor: Dense) -> *mut DLManagedTensor {
    let mut context = context(tensor);
    let dl_tensor = describe(&mut context);
    Box::into_raw(Box::new(DLManagedTensor {
        dl_tensor,
        manager_ctx: Box::into_raw(context).cast(),
        deleter: Some(delete),
    }))
}

/// The tensor in DLPack's versioned form (1.0). The caller owns the pointer and must see that its
/// deleter is called once.
pub fn managed_versioned(tensor: Dense) -> *mut DLManagedTensorVersioned {
    let mut context = context(tensor);
    let dl_tensor = describe(&mut context);
    Box::into_raw(Box::new(DLManagedTensorVersioned {
        major: 1,
        minor: 0,
        manager_ctx: Box::into_raw(context).cast(),
        deleter: Some(delete_versioned),
        flags: 0,
        dl_tensor,
    }))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SlabPool;

    #[test]
    fn the_deleter_gives_the_slab_back() {
        let pool = SlabPool::new(1);
        let slab = pool.take(24, None).unwrap().freeze().unwrap();
        let dense = Dense { dtype: DType::Int32, shape: vec![2, 3], offset: 0, slab };
        let plain = managed(dense.clone());
        let versioned = managed_versioned(dense);
        assert_eq!(pool.free(), 0);
        // SAFETY: both pointers are fresh from the functions above and each deleter is called once.
        unsafe {
            let t = &(*plain).dl_tensor;
            assert_eq!(std::slice::from_raw_parts(t.shape, 2), [2, 3]);
            assert_eq!(std::slice::from_raw_parts(t.strides, 2), [3, 1]);
            assert_eq!(t.dtype, DLDataType { code: 0, bits: 32, lanes: 1 });
            ((*plain).deleter.unwrap())(plain);
            ((*versioned).deleter.unwrap())(versioned);
        }
        assert_eq!(pool.free(), 1);
    }
}
