// SPDX-License-Identifier: MIT OR Apache-2.0
//! One launch: grid, block, shared memory and attributes of a point, and the call.

use cudarc::driver::sys::{
    self, CUfunction_attribute as FunctionAttribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue,
};
use metrale_core::StepLimits;
use metrale_kernels::{Formula, Point};

use super::bind::{Bound, BoundPoint, Resolved};
use super::driver::{Stream, check};
use crate::error::DeviceFault;

/// A launch ready for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    grid: [u32; 3],
    cluster: [u32; 3],
    shared: u32,
    /// Whether it may start while the launch before it ends.
    early: bool,
}

/// Lets a function ask for all the shared memory that its static part leaves: beyond 48 KB a device wants to be asked.
pub(super) fn allow_shared(
    point: &Point,
    function: sys::CUfunction,
    limit: u32,
) -> Result<(), DeviceFault> {
    let mut fixed = 0;
    // SAFETY: stores an integer; the function is loaded.
    check(point.id, unsafe {
        sys::cuFuncGetAttribute(
            &mut fixed,
            FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            function,
        )
    })?;
    let rest = i32::try_from(limit)
        .unwrap_or(i32::MAX)
        .saturating_sub(fixed);
    // SAFETY: the function is loaded.
    check(point.id, unsafe {
        sys::cuFuncSetAttribute(
            function,
            FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            rest,
        )
    })
}

/// Lets a function run in clusters of more blocks than every device takes.
pub(super) fn allow_cluster(point: &Point, function: sys::CUfunction) -> Result<(), DeviceFault> {
    // SAFETY: the function is loaded.
    check(point.id, unsafe {
        sys::cuFuncSetAttribute(
            function,
            FunctionAttribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
            1,
        )
    })
}

/// Launches, or records, a kernel of one block beside all plans. `words` are its arguments: addresses, or scalars in the low
/// half.
pub(super) fn launch_one(
    kernel: &Resolved,
    words: &[u64],
    stream: &Stream,
) -> Result<(), DeviceFault> {
    let point = kernel.point;
    if words.len() != point.args.len() {
        let (wanted, got) = (point.args.len(), words.len());
        let what = format!("{} takes {wanted} arguments, got {got}", point.id);
        return Err(DeviceFault::rejected(what));
    }
    let mut words = words.to_vec();
    let params = words.iter_mut().map(|w| std::ptr::from_mut(w).cast());
    let mut params: Vec<*mut std::ffi::c_void> = params.collect();
    // SAFETY: the function is of a loaded module; there are as many parameters as the family declares, each of at most 8
    // bytes, which the driver copies before it returns.
    check(point.id, unsafe {
        sys::cuLaunchKernel(
            kernel.function,
            1,
            1,
            1,
            point.block,
            1,
            1,
            0,
            stream.0,
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    })
}

impl Bound {
    /// Grid and shared memory for steps of at most `bucket` rows.
    fn geometry(
        &self,
        point: &Point,
        bucket: u32,
        limits: &StepLimits,
    ) -> Result<Geometry, DeviceFault> {
        let env = self.env(bucket, limits);
        let value = |f: &Formula| f.eval(&env).and_then(|v| u32::try_from(v).ok());
        let bad = || DeviceFault::rejected(format!("{}: no grid for {bucket} rows", point.id));
        let (mut grid, mut cluster) = ([0; 3], [0; 3]);
        for (i, formula) in point.cluster.iter().enumerate() {
            cluster[i] = value(formula).filter(|n| *n > 0).ok_or_else(bad)?;
        }
        for (i, formula) in point.grid.iter().enumerate() {
            // A dimension of 0 (no rows) is no launch for the driver: one block that finds nothing to do.
            let blocks = value(formula).ok_or_else(bad)?.max(1);
            let whole = blocks.checked_next_multiple_of(cluster[i]);
            grid[i] = whole.ok_or_else(bad)?;
        }
        if grid[1] > 65_535 || grid[2] > 65_535 {
            return Err(bad());
        }
        Ok(Geometry {
            grid,
            cluster,
            shared: value(&point.shared).ok_or_else(bad)?,
            early: value(&point.pdl).ok_or_else(bad)? != 0,
        })
    }

    /// Launches on `stream` for steps of at most `bucket` rows, or records the launch where the stream is capturing.
    ///
    /// # Errors
    /// A [`DeviceFault`] that names the point and the number of rows.
    pub(super) fn launch(
        &self,
        bound: &BoundPoint,
        bucket: u32,
        limits: &StepLimits,
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let point = bound.resolved.point;
        let Geometry {
            grid,
            cluster,
            shared,
            early,
        } = self.geometry(point, bucket, limits)?;
        let mut words = self.words.clone();
        let mut maps = bound.maps.clone();
        let mut params: Vec<*mut std::ffi::c_void> = words
            .iter_mut()
            .map(|w| std::ptr::from_mut(w).cast())
            .chain(maps.iter_mut().map(|m| std::ptr::from_mut(m).cast()))
            .collect();
        let mut attributes = attributes(early, cluster);
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: point.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the function is of a loaded module; each parameter points to as many bytes as its kernel declares, which
        // the family's argument list fixes (addresses 8, scalars 4) and the point's maps continue (128 each, aligned); the
        // driver copies parameters and attributes before it returns.
        let launched = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                bound.resolved.function,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        let what = || {
            let block = point.block;
            format!(
                "launching {} for {bucket} rows (grid {grid:?}, block {block}, shared {shared}, cluster {cluster:?})",
                point.id
            )
        };
        check("", launched).map_err(|fault| DeviceFault {
            what: format!("{}{}", what(), fault.what),
            ..fault
        })
    }
}

fn attributes(early: bool, cluster: [u32; 3]) -> Vec<CUlaunchAttribute> {
    let attribute = |id, value| CUlaunchAttribute {
        id,
        pad: [0; 4],
        value,
    };
    let mut attributes = Vec::new();
    if early {
        let value = CUlaunchAttributeValue {
            programmaticStreamSerializationAllowed: 1,
        };
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes.push(attribute(id, value));
    }
    if cluster != [1; 3] {
        let [x, y, z] = cluster;
        let value = CUlaunchAttributeValue {
            clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z },
        };
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes.push(attribute(id, value));
    }
    attributes
}
