// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening the device that is asked for, and what `auto` takes where the GPU does not serve.

use std::sync::Arc;

use metrale_gpu_runtime::{CudaOptions, GpuBackend, HostOptions};

use super::device::{Device, DeviceError, Wanted};

/// A device that is open; it holds no memory of a model yet.
pub struct OpenDevice {
    /// Which.
    pub device: Device,
    /// Its backend.
    pub backend: Arc<dyn GpuBackend>,
    /// Why `auto` took the processor.
    pub passed_over: Option<DeviceError>,
    /// Of `auto` with a GPU: how the processor would be opened.
    otherwise: Option<(HostOptions, CudaOptions)>,
}

impl Wanted {
    /// Opens the device. `host` holds for [`Device::Cpu`]; `cuda` for [`Device::Cuda`], without its number, and its faults are
    /// injected into either.
    ///
    /// # Errors
    /// [`DeviceError::Host`]; [`DeviceError::Cuda`] for a GPU that was named.
    pub fn open(self, host: HostOptions, cuda: CudaOptions) -> Result<OpenDevice, DeviceError> {
        let (device, auto) = match self {
            Wanted::Named(device) => (device, false),
            Wanted::Auto => (Device::Cuda(0), true),
        };
        match (device.open(&host, &cuda), auto) {
            (Ok(backend), _) => Ok(OpenDevice {
                device,
                backend,
                passed_over: None,
                otherwise: auto.then_some((host, cuda)),
            }),
            (Err(why), true) => OpenDevice::processor(&host, &cuda, why),
            (Err(why), false) => Err(why),
        }
    }
}

impl OpenDevice {
    fn processor(
        host: &HostOptions,
        cuda: &CudaOptions,
        why: DeviceError,
    ) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice {
            device: Device::Cpu,
            backend: Device::Cpu.open(host, cuda)?,
            passed_over: Some(why),
            otherwise: None,
        })
    }

    /// What `plan` makes for the device; if `auto` took a GPU that has no kernels for it, what it makes for the processor.
    ///
    /// # Errors
    /// What `plan` answers, and [`DeviceError::Host`].
    pub fn planned<T>(
        self,
        plan: impl Fn(&OpenDevice) -> anyhow::Result<T>,
    ) -> anyhow::Result<(OpenDevice, T)> {
        match (plan(&self), &self.otherwise) {
            (Err(why), Some((host, cuda))) => {
                let processor = OpenDevice::processor(host, cuda, why.downcast()?)?;
                let planned = plan(&processor)?;
                Ok((processor, planned))
            }
            (planned, _) => Ok((self, planned?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use metrale_gpu_runtime::CudaStartError;

    use super::*;

    /// `auto` on a GPU, played by class cpu, that cannot serve; then on one that can, and on one that is named.
    #[test]
    fn auto_passes_over_a_gpu_that_lacks_kernels() {
        let on = |auto: bool| OpenDevice {
            device: Device::Cuda(0),
            backend: Device::Cpu
                .open(&HostOptions::default(), &CudaOptions::default())
                .unwrap(),
            passed_over: None,
            otherwise: auto.then(Default::default),
        };
        let lacks = |on: &OpenDevice| match on.device {
            Device::Cpu => Ok("planned"),
            device => Err(DeviceError::Cuda {
                device,
                source: CudaStartError::NoDriver,
            }
            .into()),
        };
        let (took, planned) = on(true).planned(lacks).unwrap();
        assert_eq!((took.device, planned), (Device::Cpu, "planned"));
        let why = took.passed_over.unwrap();
        assert!(why.nothing_there());
        assert!(
            why.why().starts_with("cuda:0: ") && why.why().ends_with("install NVIDIA's driver")
        );
        let error = on(false).planned(lacks).err().unwrap();
        assert!(error.is::<DeviceError>());
        let (took, ()) = on(true).planned(|_| Ok(())).unwrap();
        assert_eq!(took.device, Device::Cuda(0));
        assert!(took.passed_over.is_none());
        // What is wrong with the checkpoint is wrong on every device.
        let broken = |_: &OpenDevice| -> anyhow::Result<()> { Err(anyhow::anyhow!("no tensor x")) };
        let error = on(true).planned(broken).err().unwrap();
        assert_eq!(error.to_string(), "no tensor x");
    }
}
