// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel targets, and how the sources of a vendor become images.
//!
//! A [`KernelTarget`] names a leaf of the kernel tree. A [`ComputeTarget`] says what compiles it: pure data, the build
//! script of `kernels` runs the command.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

/// A leaf of `kernels/<hw>/<model>/<quant>`; the baseline of a class has [`KernelTarget::COMMON`] for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelTarget<'a> {
    /// Hardware class (`hopper`).
    pub hw: &'a str,
    /// Model target.
    pub model: &'a str,
    /// Quantization target.
    pub quant: &'a str,
}

impl KernelTarget<'_> {
    /// Model and quantization of the baseline that every target of a class starts from.
    pub const COMMON: &'static str = "common";

    /// The baseline of a class.
    #[must_use]
    pub fn baseline(hw: &str) -> KernelTarget<'_> {
        KernelTarget {
            hw,
            model: KernelTarget::COMMON,
            quant: KernelTarget::COMMON,
        }
    }

    /// Whether this is the baseline.
    #[must_use]
    pub fn is_baseline(&self) -> bool {
        self.model == Self::COMMON && self.quant == Self::COMMON
    }
}

impl fmt::Display for KernelTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_baseline() {
            write!(f, "{}/common", self.hw)
        } else {
            write!(f, "{}/{}/{}", self.hw, self.model, self.quant)
        }
    }
}

/// One way from kernel sources to images.
pub trait ComputeTarget {
    /// The name in `HARDWARE.toml` (`target = "cuda"`).
    fn name(&self) -> &'static str;

    /// Extension of its sources; `None`: the kernels are part of the binary, nothing is compiled from the tree.
    fn source_extension(&self) -> Option<&'static str>;

    /// Arguments of the compiler for one source file and one architecture, giving one image.
    fn compile_args(
        &self,
        arch: &str,
        flags: &[String],
        source: &Path,
        out: &Path,
    ) -> Vec<OsString>;
}

/// CUDA C++ by nvcc: a fatbin with one cubin, compressed.
#[derive(Clone, Copy, Debug)]
pub struct CudaTarget;

/// Kernels in Rust, in the binary: class cpu.
#[derive(Clone, Copy, Debug)]
pub struct PrebuiltTarget;

impl ComputeTarget for CudaTarget {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn source_extension(&self) -> Option<&'static str> {
        Some("cu")
    }

    /// `arch` is `sm_90a`, `sm_120f`, ...: the image holds machine code for it alone. (`-arch` would add a second pass.)
    fn compile_args(
        &self,
        arch: &str,
        flags: &[String],
        source: &Path,
        out: &Path,
    ) -> Vec<OsString> {
        let compute = arch.replacen("sm_", "compute_", 1);
        let mut args: Vec<OsString> = vec![
            "-fatbin".into(),
            format!("-gencode=arch={compute},code={arch}").into(),
            "-compress-mode=size".into(),
        ];
        args.extend(flags.iter().map(OsString::from));
        args.extend(["-o".into(), out.into(), source.into()]);
        args
    }
}

impl ComputeTarget for PrebuiltTarget {
    fn name(&self) -> &'static str {
        "prebuilt"
    }

    fn source_extension(&self) -> Option<&'static str> {
        None
    }

    fn compile_args(&self, _: &str, _: &[String], _: &Path, _: &Path) -> Vec<OsString> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_holds_code_for_the_one_architecture() {
        let args = CudaTarget.compile_args(
            "sm_90a",
            &["-O3".into()],
            Path::new("a.cu"),
            Path::new("a.bin"),
        );
        assert!(args.contains(&"-gencode=arch=compute_90a,code=sm_90a".into()));
        assert_eq!(
            args[args.len() - 2..],
            [OsString::from("a.bin"), "a.cu".into()]
        );
    }

    #[test]
    fn targets_print_as_paths() {
        assert_eq!(
            KernelTarget::baseline("hopper").to_string(),
            "hopper/common"
        );
        let leaf = KernelTarget {
            hw: "gb10",
            model: "m",
            quant: "q",
        };
        assert_eq!(leaf.to_string(), "gb10/m/q");
    }
}
