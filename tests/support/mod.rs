// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the cross-crate tests share: fixtures loaded through the whole real path.

#![allow(dead_code)] // each test uses what it needs

pub(crate) mod serving;
pub(crate) mod teacher;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrale_circuit::{CircuitLibrary, KvFormats, WindowPool};
use metrale_core::{Elem, StepLimits};
use metrale_gpu_runtime::{
    CudaBackend, CudaOptions, FaultPlan, Faulty, GpuBackend, HostBackend, HostOptions, Isa,
};
use metrale_model_engine::{PlanOptions, Prepared, TransformerModel, load};
use metrale_model_weights::Checkpoint;

/// Results of test helpers; the test unwraps.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The folder of a tiny fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/tiny")
        .join(name)
}

/// Whether the tests run on a GPU: the same binaries, carried to a machine that has one.
pub(crate) fn on_gpu() -> bool {
    std::env::var_os("TEST_DEVICE").is_some_and(|v| v == "cuda")
}

/// Of fixtures by name, those that the device has kernels for: on a GPU all but quantized ones, and of those what has a plan.
pub(crate) fn served<'a>(names: &[&'a str]) -> Vec<&'a str> {
    if !on_gpu() {
        return names.to_vec();
    }
    let quantized = |name: &str| {
        ["-q8_", "-q4_", "-fp8-", "-mxfp4", "gpt-oss-gguf"]
            .iter()
            .any(|q| name.contains(q))
    };
    // A pool of latents has no format of 8 bits, here as on class cpu.
    let narrow = matches!(kv_asked(), Elem::I8 | Elem::F8E4M3);
    let latent = |name: &str| narrow && name.starts_with("deepseek");
    let names = names.iter().copied();
    names
        .filter(|n| !(quantized(n) || latent(n)) || planned_on_gpu(n))
        .collect()
}

/// Whether the class of device 0 has a plan for a fixture.
fn planned_on_gpu(name: &str) -> bool {
    static CLASS: OnceLock<String> = OnceLock::new();
    let class = CLASS.get_or_init(|| {
        let device = CudaBackend::open(&CudaOptions::default());
        device.map_or(String::new(), |d| d.device().class.clone())
    });
    let plan = || -> Result<()> {
        let folder = fixture(name);
        let gguf = folder.join("model.gguf");
        let path = if gguf.exists() { gguf } else { folder };
        let library = library()?;
        let prepared = Prepared::new(&library, Checkpoint::open(&path)?, &[])?;
        let limits = StepLimits {
            rows: 8,
            logits_rows: 8,
            slots: 8,
            blocks_per_slot: 8,
            tables: 1,
            history: 1,
            bias: 1,
            mask_words: 0,
        };
        let options = PlanOptions {
            class: class.clone(),
            device: None,
            kv: Setup::new(limits, 64).kv,
            limits,
            kv_blocks: 64,
            windows: Vec::new(),
            snapshots: 0,
            fuse: true,
        };
        prepared.plan(&library, &options)?;
        Ok(())
    };
    plan().is_ok()
}

/// The format of KV pools: f32; on a GPU also another one, with `TEST_KV=bf16`, for one, in the environment.
///
/// # Panics
/// If the environment asks for what is no format of a KV pool: a run of another format would pass for it.
pub(crate) fn kv_asked() -> Elem {
    let Some(asked) = std::env::var("TEST_KV").ok().filter(|_| on_gpu()) else {
        return Elem::F32;
    };
    let formats = metrale_core::kv::FORMATS;
    let found = formats.into_iter().find(|e| e.to_string() == asked);
    found.unwrap_or_else(|| panic!("TEST_KV={asked}: KV pools have {formats:?}"))
}

/// A backend of two threads that fails as planned; with `TEST_DEVICE=cuda`, CUDA device 0, on which a launch that takes
/// longer than two seconds hangs.
pub(crate) fn faulty(faults: FaultPlan) -> Result<Arc<dyn GpuBackend>> {
    if on_gpu() {
        let options = CudaOptions {
            faults,
            patience: Duration::from_secs(2),
            ..CudaOptions::default()
        };
        return Ok(Arc::new(CudaBackend::open(&options)?));
    }
    let host = HostBackend::new(&HostOptions {
        threads: 2,
        ..HostOptions::default()
    })?;
    Ok(Arc::new(Faulty::new(host, faults)))
}

/// The built-in kernel tree.
pub(crate) fn library() -> Result<CircuitLibrary> {
    Ok(CircuitLibrary::new(metrale_kernel_tree::files())?)
}

/// How a fixture is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Worker threads.
    pub(crate) threads: usize,
    /// Instruction set; `None` = the best of this machine.
    pub(crate) isa: Option<Isa>,
    /// Formats of the KV pools.
    pub(crate) kv: KvFormats,
    /// Capacities of a step.
    pub(crate) limits: StepLimits,
    /// Blocks of the first KV group's pool.
    pub(crate) kv_blocks: u64,
    /// Windows with a pool of their own.
    pub(crate) windows: Vec<WindowPool>,
    /// Whether the plan is fused.
    pub(crate) fuse: bool,
}

impl Setup {
    /// Two threads, fused, KV as [`kv_asked`].
    pub(crate) fn new(limits: StepLimits, kv_blocks: u64) -> Setup {
        Setup {
            threads: 2,
            isa: None,
            kv: KvFormats::all(kv_asked()),
            limits,
            kv_blocks,
            windows: Vec::new(),
            fuse: true,
        }
    }

    /// A host backend of this setup; with `TEST_DEVICE=cuda` in the environment, CUDA device 0.
    pub(crate) fn backend(&self) -> Result<Arc<dyn GpuBackend>> {
        if on_gpu() {
            return Ok(Arc::new(CudaBackend::open(&CudaOptions::default())?));
        }
        let options = HostOptions {
            threads: self.threads,
            isa: self.isa,
            ..HostOptions::default()
        };
        Ok(Arc::new(HostBackend::new(&options)?))
    }

    /// Loads the checkpoint at `path` on a backend of this setup.
    pub(crate) fn load(&self, path: &Path) -> Result<TransformerModel> {
        self.load_on(path, self.backend()?)
    }

    /// Loads the checkpoint at `path` on `backend`.
    pub(crate) fn load_on(
        &self,
        path: &Path,
        backend: Arc<dyn GpuBackend>,
    ) -> Result<TransformerModel> {
        let prepared = Prepared::new(&library()?, Checkpoint::open(path)?, &[])?;
        self.load_prepared(&prepared, backend)
    }

    /// Loads what is prepared on `backend`.
    pub(crate) fn load_prepared(
        &self,
        prepared: &Prepared,
        backend: Arc<dyn GpuBackend>,
    ) -> Result<TransformerModel> {
        let options = PlanOptions {
            class: backend.device().class.clone(),
            device: None,
            kv: self.kv.clone(),
            limits: self.limits,
            kv_blocks: self.kv_blocks,
            windows: self.windows.clone(),
            snapshots: self.limits.slots,
            fuse: self.fuse,
        };
        let plan = Arc::new(prepared.plan(&library()?, &options)?);
        Ok(load(prepared, plan, backend, |_| ())?)
    }
}

/// A configuration that met brings, with that many layers and made weights.
pub(crate) fn dummy(name: &str, layers: u32) -> Result<Prepared> {
    let config = metrale_bench::config(name).ok_or("no such configuration")?;
    let mut json: serde_json::Value = serde_json::from_str(config.json)?;
    json["num_hidden_layers"] = layers.into();
    let folder = TempCopy::empty()?;
    std::fs::write(folder.path().join("config.json"), json.to_string())?;
    let prepared = Prepared::new(&library()?, Checkpoint::open(folder.path())?, &[])?;
    Ok(prepared.with_made_weights(0))
}

/// A copy of a fixture folder, removed when dropped.
pub(crate) struct TempCopy(PathBuf);

impl TempCopy {
    /// A folder without files.
    pub(crate) fn empty() -> Result<TempCopy> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("met-test-{}-{number}", std::process::id());
        let copy = TempCopy(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&copy.0)?;
        Ok(copy)
    }

    /// Copies the files of `folder`.
    pub(crate) fn of(folder: &Path) -> Result<TempCopy> {
        let copy = TempCopy::empty()?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            std::fs::copy(entry.path(), copy.0.join(entry.file_name()))?;
        }
        Ok(copy)
    }

    /// The copy.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempCopy {
    fn drop(&mut self) {
        // A leftover in the temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
