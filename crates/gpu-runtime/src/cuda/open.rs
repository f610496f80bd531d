// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a device: everything that can be wrong with a machine is found here, before any weight moves.

use std::ffi::c_char;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use metrale_kernels::Target;

use super::driver::{Context, check, describe};
use crate::backend::DeviceInfo;
use crate::error::DeviceFault;
use crate::faults::FaultPlan;

/// Why no CUDA device can be used. The machine or the build is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaStartError {
    /// This binary holds no GPU kernels.
    #[error("this build holds no GPU kernels ({status})")]
    NoKernels {
        /// What the build said.
        status: &'static str,
    },
    /// The machine has no NVIDIA driver.
    #[error("no NVIDIA driver on this machine (libcuda cannot be loaded)")]
    NoDriver,
    /// The driver is there, and refuses to start.
    #[error("the NVIDIA driver does not start: {why}")]
    Driver {
        /// The driver's error.
        why: String,
    },
    /// The driver is too old for the kernels of this build.
    #[error(
        "the NVIDIA driver supports CUDA {}.{} and the kernels of this build need {}.{}: install a newer driver",
        have / 1000, have % 1000 / 10, need / 1000, need % 1000 / 10
    )]
    OldDriver {
        /// What the driver supports (12080 = CUDA 12.8).
        have: u32,
        /// What the kernels need.
        need: u32,
    },
    /// There is no such device.
    #[error("there is no CUDA device {ordinal}; the driver sees {count}")]
    NoDevice {
        /// The one asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The device's architecture is not among those that this build was compiled for.
    #[error(
        "{device} has compute capability {}.{} and this build holds kernels for {built}: build with METRALE_TARGET_HW \
         naming its class",
        capability.0, capability.1
    )]
    Architecture {
        /// The device.
        device: String,
        /// Its compute capability.
        capability: (u32, u32),
        /// Classes and capabilities of the build.
        built: String,
    },
    /// A call failed while the device was opened.
    #[error(transparent)]
    Fault(#[from] DeviceFault),
}

/// An open device and the kernels that run on it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) target: &'static Target,
    pub(super) info: DeviceInfo,
    pub(super) processors: u32,
    /// Bytes of shared memory that a block may ask for.
    pub(super) shared_limit: u32,
}

/// Checks driver, device and architecture, in this order, and opens the device.
/// `faults` may put other facts in the place of the driver's.
pub(super) fn open(ordinal: u32, faults: &FaultPlan) -> Result<Opened, CudaStartError> {
    let targets = metrale_kernels::targets();
    if targets.is_empty() {
        return Err(CudaStartError::NoKernels {
            status: metrale_kernels::STATUS,
        });
    }
    // SAFETY: only loads the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaStartError::NoDriver);
    }
    let started = |result: CUresult| match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(CudaStartError::NoDevice { ordinal, count: 0 }),
        other => Err(CudaStartError::Driver {
            why: describe(other),
        }),
    };
    let mut have = 0;
    // SAFETY: stores an integer; of all calls, every driver has this one.
    started(unsafe { sys::cuDriverGetVersion(&mut have) })?;
    let have = faults.driver.unwrap_or(u32::try_from(have).unwrap_or(0));
    young_enough(targets, have)?;
    // SAFETY: no arguments but the required 0.
    started(unsafe { sys::cuInit(0) })?;
    let (mut count, mut device) = (0, 0);
    // SAFETY: stores an integer.
    check("counting devices", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    let count = u32::try_from(count).unwrap_or(0);
    if ordinal >= count {
        return Err(CudaStartError::NoDevice { ordinal, count });
    }
    // SAFETY: stores a handle; the ordinal is below the count.
    check("opening the device", unsafe {
        sys::cuDeviceGet(&mut device, ordinal as i32)
    })?;
    let name = name(device)?;
    let capability = (
        attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        )?,
        attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )?,
    );
    let capability = faults.capability.unwrap_or(capability);
    let target = suited(targets, &name, capability, have)?;
    let context = Context::new(device)?;
    context.enter()?;
    let processors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let shared_limit = attribute(
        device,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    )?;
    let info = DeviceInfo {
        name,
        class: target.id.hw.to_owned(),
        memory: free_memory()?,
        features: vec![
            target.arch.to_owned(),
            format!("{processors} multiprocessors"),
            format!("driver CUDA {}.{}", have / 1000, have % 1000 / 10),
        ],
        lazy_memory: false,
    };
    Ok(Opened {
        context,
        target,
        info,
        processors,
        shared_limit,
    })
}

/// Whether any kernels of the build run under the driver, whatever the device: known before the driver starts.
fn young_enough(targets: &[Target], have: u32) -> Result<(), CudaStartError> {
    match targets.iter().map(|t| t.driver).min() {
        Some(need) if have < need => Err(CudaStartError::OldDriver { have, need }),
        _ => Ok(()),
    }
}

/// The target of a build whose kernels run on a device.
fn suited<'a>(
    targets: &'a [Target],
    device: &str,
    capability: (u32, u32),
    have: u32,
) -> Result<&'a Target, CudaStartError> {
    let mut all = targets.iter();
    let runs = |t: &&Target| t.id.is_baseline() && t.capabilities.contains(&capability);
    let target = all.find(runs).ok_or_else(|| CudaStartError::Architecture {
        device: device.to_owned(),
        capability,
        built: built(targets),
    })?;
    match have < target.driver {
        true => Err(CudaStartError::OldDriver {
            have,
            need: target.driver,
        }),
        false => Ok(target),
    }
}

/// Bytes that can still be allocated on the current device.
pub(super) fn free_memory() -> Result<u64, DeviceFault> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: stores two sizes.
    check("asking for free memory", unsafe {
        sys::cuMemGetInfo_v2(&mut free, &mut total)
    })?;
    Ok(free as u64)
}

fn attribute(device: sys::CUdevice, attribute: Attribute) -> Result<u32, DeviceFault> {
    let mut value = 0;
    // SAFETY: stores an integer; the device is valid.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
    check("asking what the device is", result)?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn name(device: sys::CUdevice) -> Result<String, DeviceFault> {
    let mut buffer = [0u8; 128];
    // SAFETY: the driver writes a terminated text of at most that length.
    let result = unsafe {
        sys::cuDeviceGetName(
            buffer.as_mut_ptr().cast::<c_char>(),
            buffer.len() as i32,
            device,
        )
    };
    check("asking for the device's name", result)?;
    let end = buffer.iter().position(|b| *b == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

/// `hopper (9.0), gb10 (12.0, 12.1)`.
pub(super) fn built(targets: &[Target]) -> String {
    let texts: Vec<String> = targets
        .iter()
        .filter(|t| t.id.is_baseline())
        .map(|t| {
            let capabilities: Vec<_> = t
                .capabilities
                .iter()
                .map(|(a, b)| format!("{a}.{b}"))
                .collect();
            format!("{} ({})", t.id.hw, capabilities.join(", "))
        })
        .collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let e = CudaStartError::OldDriver {
            have: 12080,
            need: 13000,
        };
        assert_eq!(
            e.to_string(),
            "the NVIDIA driver supports CUDA 12.8 and the kernels of this build need 13.0: install a newer driver"
        );
    }

    #[test]
    fn a_device_is_refused_for_its_architecture_or_its_driver() {
        let of = |hw, capabilities, driver| Target {
            id: metrale_core::KernelTarget {
                hw,
                model: metrale_core::KernelTarget::COMMON,
                quant: metrale_core::KernelTarget::COMMON,
            },
            arch: "",
            capabilities,
            driver,
            images: &[],
            points: &[],
        };
        let targets = [
            of("hopper", &[(9, 0)], 13000),
            of("gb10", &[(12, 0), (12, 1)], 13020),
        ];
        let class = |capability, have| suited(&targets, "G", capability, have).map(|t| t.id.hw);
        assert_eq!(class((9, 0), 13000), Ok("hopper"));
        assert_eq!(class((12, 1), 13020), Ok("gb10"));
        let old = class((12, 0), 13010);
        assert!(matches!(
            old,
            Err(CudaStartError::OldDriver {
                have: 13010,
                need: 13020
            })
        ));
        // The least that any of them needs, before a device is asked for.
        assert_eq!(young_enough(&targets, 13000), Ok(()));
        let old = young_enough(&targets, 12080);
        assert!(matches!(
            old,
            Err(CudaStartError::OldDriver {
                have: 12080,
                need: 13000
            })
        ));
        let other = class((8, 0), 13020).map_err(|e| e.to_string());
        assert_eq!(
            other.unwrap_err(),
            "G has compute capability 8.0 and this build holds kernels for hopper (9.0), gb10 (12.0, 12.1): build with \
             METRALE_TARGET_HW naming its class"
        );
    }

    /// True on every machine: either a device opens, or the reason is one of the typed ones. Nothing panics.
    #[test]
    fn a_machine_without_a_device_gives_a_typed_error() {
        let faults = FaultPlan::default();
        match open(0, &faults) {
            Ok(opened) => assert!(opened.info.memory > 0),
            Err(CudaStartError::Fault(fault)) => panic!("a call failed without a cause: {fault}"),
            Err(_) => {}
        }
        assert!(open(u32::MAX, &faults).is_err());
    }
}
