// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tensor maps: what the copy engine knows of a buffer, made once when a launch is bound.

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapSwizzle as Swizzle,
};
use metrale_core::Elem;
use metrale_kernels::{Formula, Map, Point};

use super::bind::{Env, id};
use super::driver::describe;
use crate::error::BindError;

/// The maps of a point, in the order of its parameters. Sizes are those of the plan's limits; a copy that reaches beyond
/// them gets zeros.
pub(super) fn encode(
    point: &'static Point,
    words: &[u64],
    env: &Env<'_>,
) -> Result<Vec<CUtensorMap>, BindError> {
    let maps = point.maps.iter().map(|map| {
        one(map, words, env).map_err(|what| BindError::Constants {
            point: id(point),
            what: format!("the tensor map of {}: {what}", point.args[map.arg].name()),
        })
    });
    maps.collect()
}

fn one(map: &Map, words: &[u64], env: &Env<'_>) -> Result<CUtensorMap, String> {
    let values = |what: &str, formulas: &[Formula]| {
        let each = formulas.iter().map(|f| f.eval(env));
        let all = each.collect::<Option<Vec<u64>>>();
        all.ok_or_else(|| format!("{what} overflow"))
    };
    let offset = map.offset.eval(env).ok_or("its offset overflows")?;
    let dims = values("its dimensions", map.dims)?;
    let strides = values("its strides", map.strides)?;
    let tile: Vec<u32> = values("its box", map.tile)?
        .into_iter()
        .map(|v| u32::try_from(v).map_err(|_| "its box is too large".to_owned()))
        .collect::<Result<_, _>>()?;
    let steps = vec![1u32; dims.len()];
    let mut encoded = CUtensorMap { opaque: [0; 16] };
    // SAFETY: the lists are as long as the rank says (the build checked it); the address is only stored, not read (by a copy, within what `needs` holds the buffer to). The map
    // is aligned as its type says.
    let result = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut encoded,
            data_type(map.elem)?,
            dims.len() as u32,
            (words[map.arg] + offset) as *mut std::ffi::c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle(map.swizzle),
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    if result != sys::CUresult::CUDA_SUCCESS {
        return Err(format!(
            "dimensions {dims:?}, strides {strides:?}, box {tile:?}: {}",
            describe(result)
        ));
    }
    Ok(encoded)
}

fn data_type(elem: Elem) -> Result<DataType, String> {
    Ok(match elem {
        Elem::U8 | Elem::F8E4M3 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        Elem::F16 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Elem::BF16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Elem::F32 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        other => return Err(format!("no map of {other}")),
    })
}

fn swizzle(bytes: u32) -> Swizzle {
    match bytes {
        32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    }
}
