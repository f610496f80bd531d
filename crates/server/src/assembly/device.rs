// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which device computes: the processor, or a GPU by number. A device that is named and cannot be used is an error; `auto` takes
//! the processor then, and says why.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use metrale_circuit::{CircuitLibrary, PlanError};
use metrale_gpu_runtime::{
    CudaBackend, CudaOptions, CudaStartError, DeviceInfo, GpuBackend, HostBackend, HostOptions,
    StartError,
};
use metrale_gpu_runtime::{FaultPlan, Faulty};
use metrale_model_engine::PrepareError;

use crate::digits::whole;

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// This machine's processor: `cpu`.
    #[default]
    Cpu,
    /// An NVIDIA GPU by the driver's number: `cuda:N`; `cuda` is number 0.
    Cuda(u32),
}

/// The device that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first GPU if it serves the checkpoint, else the processor: `auto`.
    Auto,
    /// This one.
    Named(Device),
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device `{0}`: expected auto, cpu, cuda or cuda:N")]
pub struct UnknownDevice(String);

impl FromStr for Wanted {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Wanted, UnknownDevice> {
        match text {
            "auto" => Ok(Wanted::Auto),
            _ => text.parse().map(Wanted::Named),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Auto => f.write_str("auto"),
            Wanted::Named(device) => device.fmt(f),
        }
    }
}

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Device, UnknownDevice> {
        let device = match (text, text.strip_prefix("cuda:")) {
            ("cpu", _) => Some(Device::Cpu),
            ("cuda", _) => Some(Device::Cuda(0)),
            (_, Some(n)) => whole(n).map(Device::Cuda),
            _ => None,
        };
        device.ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Why a device does not serve.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The processor: the system refuses threads.
    #[error(transparent)]
    Host(#[from] StartError),
    /// A GPU: the machine or the build.
    #[error(
        "--device {device}: {source}{}, or choose --device cpu",
        remedy(source)
    )]
    Cuda {
        /// The one asked for.
        device: Device,
        /// What is wrong.
        source: CudaStartError,
    },
    /// A GPU whose class has no kernels for the checkpoint.
    #[error("--device {device}: {source}, or choose --device cpu")]
    Kernels {
        /// The one asked for.
        device: Device,
        /// What it lacks.
        source: Box<PrepareError>,
    },
}

impl DeviceError {
    /// What is wrong and what would mend it, without the advice of a device that was named.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            DeviceError::Host(source) => source.to_string(),
            DeviceError::Cuda { device, source } => format!("{device}: {source}{}", remedy(source)),
            DeviceError::Kernels { device, source } => format!("{device}: {source}"),
        }
    }

    /// Whether there is no GPU to speak of: nothing that a user would have to mend.
    #[must_use]
    pub fn nothing_there(&self) -> bool {
        use CudaStartError::{NoDevice, NoDriver, NoKernels};
        let DeviceError::Cuda { source, .. } = self else {
            return false;
        };
        match source {
            // Without kernels nobody has asked the driver.
            NoKernels { .. } => !Path::new("/proc/driver/nvidia/version").exists(),
            NoDriver | NoDevice { .. } => true,
            _ => false,
        }
    }
}

/// What its message leaves out.
fn remedy(error: &CudaStartError) -> &'static str {
    match error {
        CudaStartError::NoKernels { .. } => "; build with a CUDA compiler (docs/HARDWARE.md)",
        CudaStartError::NoDriver => "; install NVIDIA's driver",
        CudaStartError::Driver { .. } => "; mend it until nvidia-smi works",
        CudaStartError::NoDevice { .. } => "; name one that it sees (see CUDA_VISIBLE_DEVICES)",
        _ => "",
    }
}

/// The device of DEVICES.toml that this one is, by its name; its stated peaks are an orientation. A processor is none.
pub(super) fn stated(library: &CircuitLibrary, info: &DeviceInfo) -> Option<String> {
    let name = info.name.to_lowercase();
    let is = |known: &str| {
        let chip = known.split('-').next().unwrap_or(known);
        name.split_whitespace().any(|word| word == chip)
    };
    let mut devices = library.devices().iter();
    devices
        .find(|(known, device)| device.class == info.class && is(known))
        .map(|(known, _)| known.clone())
}

/// Faults from `KIND=N`, several separated by commas; `None` for another text. What can be said: [`FAULTS`].
pub fn fault_plan(text: &str) -> Option<FaultPlan> {
    let mut plan = FaultPlan::default();
    for fault in text.split(',') {
        let (kind, value) = fault.split_once('=')?;
        match kind {
            "allocation" => plan.allocation = Some(whole(value)?),
            "hang" => plan.hang = Some(whole(value)?),
            "lose" => plan.lose = Some(whole(value)?),
            "driver" => plan.driver = Some(whole(value)?),
            "capability" => {
                let (major, minor) = value.split_once('.')?;
                plan.capability = Some((whole(major)?, whole(minor)?));
            }
            _ => return None,
        }
    }
    Some(plan)
}

/// What [`fault_plan`] reads.
pub const FAULTS: &str =
    "allocation=N, hang=N, lose=N, driver=N, capability=X.Y, several separated by commas";

fn faulty<B: GpuBackend + 'static>(backend: B, fault: FaultPlan) -> Arc<dyn GpuBackend> {
    match fault == FaultPlan::default() {
        true => Arc::new(backend),
        false => Arc::new(Faulty::new(backend, fault)),
    }
}

impl Device {
    /// Opens it: [`Wanted::open`] of one that is named.
    pub(super) fn open(
        self,
        host: &HostOptions,
        cuda: &CudaOptions,
    ) -> Result<Arc<dyn GpuBackend>, DeviceError> {
        match self {
            Device::Cpu => Ok(faulty(HostBackend::new(host)?, cuda.faults)),
            Device::Cuda(ordinal) => {
                let cuda = CudaOptions {
                    ordinal,
                    ..cuda.clone()
                };
                match CudaBackend::open(&cuda) {
                    Ok(backend) => Ok(Arc::new(backend)),
                    Err(source) => Err(DeviceError::Cuda {
                        device: self,
                        source,
                    }),
                }
            }
        }
    }

    /// What was planned for this device, or why it was not; what a GPU's class lacks, the processor's may have.
    ///
    /// # Errors
    /// [`DeviceError::Kernels`] for a [`PrepareError`] that says so, or the error as it is.
    pub fn planned<T>(self, planned: anyhow::Result<T>) -> anyhow::Result<T> {
        use PlanError::{MissingPoint, NoKernel, NoPack, NotServed};
        let lacks = |e: &PrepareError| match e {
            PrepareError::Plan(e) => {
                matches!(
                    **e,
                    MissingPoint { .. } | NoKernel { .. } | NoPack { .. } | NotServed { .. }
                )
            }
            _ => false,
        };
        planned.map_err(|why| match why.downcast::<PrepareError>() {
            Ok(source) if lacks(&source) && self != Device::Cpu => DeviceError::Kernels {
                device: self,
                source: Box::new(source),
            }
            .into(),
            Ok(source) => source.into(),
            Err(why) => why,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::Blame;
    use metrale_core::{Elem, StepLimits};
    use metrale_model_engine::{PlanOptions, Prepared};
    use metrale_model_weights::Checkpoint;

    #[test]
    fn names_are_read_and_written() {
        for (text, device) in [
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(0)),
            ("cuda:0", Device::Cuda(0)),
            ("cuda:17", Device::Cuda(17)),
        ] {
            assert_eq!(text.parse(), Ok(Wanted::Named(device)));
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("auto".parse(), Ok(Wanted::Auto));
        assert_eq!(Wanted::Auto.to_string(), "auto");
        for text in [
            "",
            "CPU",
            "cpu:0",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:+1",
            "cuda:4294967296",
        ] {
            let error = text.parse::<Wanted>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("cuda:N"),
                "{error}"
            );
        }
    }

    #[test]
    fn faults_are_read() {
        let plan = fault_plan("hang=200,allocation=3,driver=12080,capability=8.6").unwrap();
        let want = FaultPlan {
            allocation: Some(3),
            hang: Some(200),
            lose: None,
            driver: Some(12080),
            capability: Some((8, 6)),
        };
        assert_eq!(plan, want);
        for text in [
            "",
            "hang",
            "hang=",
            "hang=-1",
            "hang=+1",
            "hang=1,",
            "capability=9",
            "sleep=1",
        ] {
            assert_eq!(fault_plan(text), None, "{text}");
        }
    }

    #[test]
    fn a_board_is_known_by_its_name() {
        let library = crate::assembly::library().unwrap();
        let info = |name: &str, class: &str| DeviceInfo {
            name: name.into(),
            class: class.into(),
            memory: 0,
            features: Vec::new(),
            lazy_memory: false,
        };
        let of = |name, class| stated(&library, &info(name, class));
        assert_eq!(of("NVIDIA H200", "hopper").as_deref(), Some("h200-sxm"));
        assert_eq!(of("NVIDIA H200 NVL", "gb10"), None);
        assert_eq!(of("AMD EPYC, 2 threads, avx2", "cpu"), None);
    }

    /// Planning needs no device: what a GPU would answer to a checkpoint whose format its class lacks.
    #[test]
    fn a_quantized_checkpoint_is_refused_by_a_gpu() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/tiny/llama-gguf-q8_0/model.gguf"
        );
        let library = crate::assembly::library().unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let prepared = Prepared::new(&library, checkpoint, &[]).unwrap();
        let limits = StepLimits {
            rows: 8,
            logits_rows: 8,
            slots: 1,
            blocks_per_slot: 1,
            tables: 1,
            history: 16,
            bias: 16,
            mask_words: 0,
        };
        let options = PlanOptions {
            class: "hopper".into(),
            device: None,
            kv: Elem::F16.into(),
            limits,
            kv_blocks: 1,
            windows: Vec::new(),
            snapshots: 0,
            fuse: true,
        };
        let error = Device::Cuda(0)
            .planned(prepared.plan(&library, &options).map_err(Into::into))
            .unwrap_err();
        let text = error.to_string();
        for word in ["--device cuda:0: ", "q8_0", ", or choose --device cpu"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(Blame::of(&error), Blame::Checkpoint);
    }

    #[test]
    fn every_error_of_a_gpu_has_a_remedy() {
        let built = "hopper (9.0)".to_owned();
        let errors = [
            (CudaStartError::NoKernels { status: "off" }, "(off); build"),
            (CudaStartError::NoDriver, "; install"),
            (CudaStartError::Driver { why: "x".into() }, "x; mend"),
            (
                CudaStartError::OldDriver {
                    have: 12080,
                    need: 13000,
                },
                ": install a newer driver, or",
            ),
            (
                CudaStartError::NoDevice {
                    ordinal: 3,
                    count: 1,
                },
                "device 3; the driver sees 1; name one",
            ),
            (
                CudaStartError::Architecture {
                    device: "G".into(),
                    capability: (8, 0),
                    built,
                },
                "METRALE_TARGET_HW naming its class, or",
            ),
        ];
        for (source, words) in errors {
            let device = Device::Cuda(3);
            let error = anyhow::Error::new(DeviceError::Cuda { device, source });
            assert_eq!(Blame::of(&error), Blame::Machine);
            let text = error.to_string();
            assert!(text.starts_with("--device cuda:3: "), "{text}");
            assert!(text.contains(words), "{text}");
            assert!(text.ends_with(", or choose --device cpu"), "{text}");
        }
    }
}
