// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel registry: the compiled kernels of `kernels/{hw}/{model}/{quant}` that this binary carries.
//!
//! The build script resolves the kernel tree, checks every manifest, and compiles what it finds a compiler for; nothing is
//! compiled at run time. Without a compiler the registry is empty, [`STATUS`] says why, and the binary serves class cpu.
//!
//! Build levers: `METRALE_KERNELS` (`auto`, `off`, `require`), `METRALE_NVCC`, `METRALE_CUDA_WHEELS`,
//! `METRALE_TARGET_HW`, `_MODEL`, `_QUANT`. Images are cached by closure hash under the user's cache folder.

#![forbid(unsafe_code)]

pub mod formula;

use metrale_core::{ArgDecl, Elem, KernelTarget};

pub use formula::{Formula, Values, Var};

/// One compiled target.
#[derive(Debug)]
pub struct Target {
    /// Which.
    pub id: KernelTarget<'static>,
    /// Architecture that its images are for (`sm_90a`).
    pub arch: &'static str,
    /// Compute capabilities (major, minor) that they run on.
    pub capabilities: &'static [(u32, u32)],
    /// The oldest driver API version that loads them (13000 = CUDA 13.0).
    pub driver: u32,
    /// The images, one a source.
    pub images: &'static [Image],
    /// The points, ascending by id.
    pub points: &'static [Point],
}

/// What one source was compiled to.
#[derive(Debug)]
pub struct Image {
    /// The source's name.
    pub file: &'static str,
    /// Hash of everything that made it.
    pub closure: &'static str,
    /// The image, as the driver loads it; aligned to 64 bytes.
    pub bytes: &'static [u8],
}

/// How a point is launched.
#[derive(Debug)]
pub struct Point {
    /// `family/point`.
    pub id: &'static str,
    /// Index of its image.
    pub image: usize,
    /// The entry's name in the image.
    pub entry: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Blocks in x, y, z.
    pub grid: [Formula; 3],
    /// Dynamic shared memory in bytes.
    pub shared: Formula,
    /// Unless 0, it may start while the launch before it ends: its kernel waits (`griddepcontrol.wait`) before it touches
    /// what that one wrote.
    pub pdl: Formula,
    /// Blocks of a cluster in x, y, z; all 1 without clusters. The grid is rounded up to whole clusters.
    pub cluster: [Formula; 3],
    /// Tensor maps: parameters after the family's arguments, made when the launch is bound.
    pub maps: &'static [Map],
    /// The family's arguments.
    pub args: &'static [ArgDecl],
    /// Bytes that the buffer of an argument (by index) must hold at least.
    pub needs: &'static [(usize, Formula)],
}

/// A tensor map over the buffer of an argument.
#[derive(Debug)]
pub struct Map {
    /// The argument's index.
    pub arg: usize,
    /// Bytes from the buffer's begin to the map's.
    pub offset: Formula,
    /// Format of its values.
    pub elem: Elem,
    /// Values in each dimension, the innermost first.
    pub dims: &'static [Formula],
    /// Bytes from one index to the next, of each dimension but the innermost.
    pub strides: &'static [Formula],
    /// Values of the box that one copy takes, in each dimension.
    pub tile: &'static [Formula],
    /// Bytes of the swizzle pattern: 0, 32, 64 or 128.
    pub swizzle: u32,
}

impl Target {
    /// A point by id.
    #[must_use]
    pub fn point(&self, id: &str) -> Option<&'static Point> {
        self.points
            .binary_search_by(|p| p.id.cmp(id))
            .ok()
            .map(|i| &self.points[i])
    }
}

/// Targets that were compiled into this binary.
#[must_use]
pub fn targets() -> &'static [Target] {
    TARGETS
}

/// The target whose images run on a device of this compute capability: the baseline of the class.
#[must_use]
pub fn baseline_for(capability: (u32, u32)) -> Option<&'static Target> {
    TARGETS
        .iter()
        .find(|t| t.id.is_baseline() && t.capabilities.contains(&capability))
}

/// A 64-byte aligned image: the driver reads headers in place.
#[allow(dead_code)] // a registry without images has none
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

include!(concat!(env!("OUT_DIR"), "/registry.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compiled_is_complete_and_in_order() {
        assert!(!STATUS.is_empty());
        for target in targets() {
            assert!(
                target.points.is_sorted_by(|a, b| a.id < b.id),
                "{}",
                target.id
            );
            for image in target.images {
                assert_eq!(image.bytes.as_ptr().align_offset(64), 0);
                // The magic number of a fat binary.
                assert_eq!(image.bytes[..4], [0x50, 0xed, 0x55, 0xba], "{}", image.file);
            }
            for point in target.points {
                assert!(point.image < target.images.len());
                assert_eq!(target.point(point.id).map(|p| p.entry), Some(point.entry));
            }
            for capability in target.capabilities {
                assert!(baseline_for(*capability).is_some());
            }
        }
    }
}
