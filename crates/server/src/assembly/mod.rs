// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wiring: from a path and options to a served model. The one place that knows every crate.
//!
//! [`open`] reads headers, opens the device and makes the plan, and takes no memory of the device yet: what it prints is all
//! that will be taken. [`Opened::load`] does the rest. The command line and the tests start here.

mod blame;
mod defaults;
mod device;
mod live;
mod memory;
mod sizes;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use metrale_circuit::{CircuitLibrary, Plan};
use metrale_core::{ArenaKind, Elem};
use metrale_gpu_runtime::{DeviceInfo, GpuBackend, HostOptions, Isa};
use metrale_model_engine::{Engine, EngineOptions, PlanOptions, Prepared, load};
use metrale_model_weights::Checkpoint;
use metrale_scheduler::PlannerLimits;

use crate::engine_face::{ModelCard, ServedModel};
use crate::template::{ChatTemplate, TemplateError, TemplateLimits, TemplateTokens};
use crate::text_face;
use crate::tokenizer::Tokenizer;
use sizes::Room;

pub use blame::Blame;
pub use defaults::SamplingFlags;
pub use device::{Device, DeviceError, UnknownDevice};
pub use live::LiveEngine;
pub use memory::available_memory;
pub use sizes::SizeError;

/// How a model is loaded. [`LoadOptions::new`] gives every default.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// A GGUF file, or a folder with config.json.
    pub path: PathBuf,
    /// What computes.
    pub device: Device,
    /// Worker threads; 0 = one per core that the process may use.
    pub threads: usize,
    /// Instruction set of class cpu; `None` = the best of the machine.
    pub isa: Option<Isa>,
    /// Format of the KV pool; `None` = the checkpoint's own float type, f16 for a GGUF.
    pub kv: Option<Elem>,
    /// Bytes of the KV pool; `None` = what every sequence at full length needs, at most a quarter of the free memory, or on
    /// a GPU what the rest of the plan leaves of nine tenths of the device's.
    pub kv_bytes: Option<u64>,
    /// Tokens of prompt and answer together; `None` = what the checkpoint was trained for.
    pub max_seq_len: Option<u32>,
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Prefill rows in one step.
    pub max_prefill_tokens: u32,
    /// Requests that wait.
    pub queue_len: usize,
    /// Configuration keys that the user takes responsibility for.
    pub accept_keys: Vec<String>,
    /// Sampling defaults given by flags.
    pub sampling: SamplingFlags,
    /// Report a hash of each logits row.
    pub row_hashes: bool,
}

impl LoadOptions {
    /// The defaults for a checkpoint.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> LoadOptions {
        let limits = PlannerLimits::default();
        LoadOptions {
            path: path.into(),
            device: Device::default(),
            threads: 0,
            isa: None,
            kv: None,
            kv_bytes: None,
            max_seq_len: None,
            max_num_seqs: limits.max_num_seqs,
            max_prefill_tokens: limits.max_prefill_tokens,
            queue_len: limits.queue_len,
            accept_keys: Vec::new(),
            sampling: SamplingFlags::default(),
            row_hashes: false,
        }
    }
}

/// The built-in circuits, families and classes.
///
/// # Errors
/// If the embedded kernel tree does not read: a broken build.
pub fn library() -> Result<CircuitLibrary> {
    CircuitLibrary::new(metrale_kernel_tree::files()).context("the built-in kernel tree")
}

/// A checkpoint, its device and its plan; nothing is on the device yet.
pub struct Opened {
    /// The checkpoint and its circuit.
    pub prepared: Prepared,
    /// What will run.
    pub plan: Arc<Plan>,
    /// Limits of the planner.
    pub limits: PlannerLimits,
    backend: Arc<dyn GpuBackend>,
    options: LoadOptions,
}

/// Opens a checkpoint, checks its tensors, opens the device and plans the checkpoint for the device's class.
///
/// # Errors
/// What is wrong with the checkpoint, by file, key or tensor, or with the device, and the remedy.
pub fn open(options: LoadOptions) -> Result<Opened> {
    let library = library()?;
    let checkpoint = Checkpoint::open(&options.path)?;
    let prepared = Prepared::new(&library, checkpoint, &options.accept_keys)?;
    let host = HostOptions {
        threads: options.threads,
        isa: options.isa,
        ..HostOptions::default()
    };
    let backend = options.device.open(&host)?;
    let info = backend.device();
    let sizes = sizes::choose(&options, &prepared)?;
    let plan = |kv_blocks| {
        let plan_options = PlanOptions {
            class: info.class.clone(),
            device: None,
            kv: sizes.kv,
            limits: sizes.step,
            kv_blocks,
            fuse: true,
        };
        let plan = prepared.plan(&library, &plan_options);
        options.device.planned(plan)
    };
    let room = match options.device {
        Device::Cpu => Room::of_machine(),
        Device::Cuda(_) => {
            let memory = plan(sizes::LEAST_BLOCKS)?.memory;
            let rest = memory.total_bytes() - memory.arena_bytes(ArenaKind::Kv);
            Room::of_device(info.memory, rest)
        }
    };
    let plan = Arc::new(plan(sizes.kv_blocks(&options, &prepared, room)?)?);
    Ok(Opened {
        prepared,
        plan,
        limits: sizes.planner,
        backend,
        options,
    })
}

/// A model that answers.
pub struct LoadedModel {
    /// What the HTTP side needs.
    pub served: ServedModel,
    /// The running engine.
    pub engine: Arc<LiveEngine>,
    /// What runs.
    pub plan: Arc<Plan>,
}

impl Opened {
    /// The device that will compute.
    #[must_use]
    pub fn device(&self) -> &DeviceInfo {
        self.backend.device()
    }

    /// Bytes of weights that [`Opened::load`] will read.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.prepared
            .checkpoint
            .store
            .as_ref()
            .map_or(0, |s| s.total_bytes())
    }

    /// Loads the weights and starts the engine. `progress` is told the bytes read since it was told last.
    ///
    /// # Errors
    /// What failed, and why.
    pub fn load(self, progress: impl FnMut(u64)) -> Result<LoadedModel> {
        let Opened {
            prepared,
            plan,
            limits,
            backend,
            options,
        } = &self;
        // A GPU's memory is its own, and there once it is reserved.
        if self.device().lazy_memory {
            memory::fits(&plan.memory, available_memory())?;
        }
        // The tokenizer takes as long to build as the weights to read: both at once.
        let (text, model) = std::thread::scope(|scope| {
            let text = scope.spawn(|| text_of(&prepared.checkpoint));
            let model = load(prepared, Arc::clone(plan), Arc::clone(backend), progress);
            (text.join(), model)
        });
        let text = match text {
            Ok(text) => text?,
            Err(_) => bail!(
                "the tokenizer of {} panicked while it was built",
                options.path.display()
            ),
        };
        let model = model?;
        let engine_options = EngineOptions {
            limits: limits.clone(),
            row_hashes: options.row_hashes,
            hash_key: random_u64()?,
            ..EngineOptions::default()
        };
        let engine = Arc::new(LiveEngine::new(Engine::start(model, engine_options)?));
        let card = ModelCard {
            max_model_len: engine.capacity(),
            digest: plan.digest.short(),
            created: sizes::modified(&options.path),
            defaults: defaults::merge(&options.sampling, &prepared.checkpoint.config.generation),
            settings: sizes::settings(options, plan, limits, backend.device()),
        };
        let served = ServedModel {
            engine: engine.clone(),
            text: text.0,
            template: text.1,
            card,
        };
        Ok(LoadedModel {
            served,
            engine,
            plan: Arc::clone(plan),
        })
    }
}

type Text = (
    Arc<dyn text_face::TextModel>,
    Option<Arc<dyn text_face::ChatTemplate>>,
);

/// The tokenizer and the chat template of a checkpoint; a base model has no template.
///
/// # Errors
/// If the checkpoint has no tokenizer, or one that cannot be used.
pub fn text_of(checkpoint: &Checkpoint) -> Result<Text> {
    let (tokenizer, template) = tokenizer_and_template(checkpoint)?;
    let template = template.map(|t| Arc::new(t) as Arc<dyn text_face::ChatTemplate>);
    Ok((Arc::new(tokenizer), template))
}

/// The tokenizer of a checkpoint, and its chat template if it has one.
///
/// # Errors
/// If the checkpoint has no tokenizer, or one that cannot be used.
pub fn tokenizer_and_template(
    checkpoint: &Checkpoint,
) -> Result<(Tokenizer, Option<ChatTemplate>)> {
    let tokenizer = tokenizer_of(checkpoint)?.with_ends(&checkpoint.config.eos);
    let tokens = TemplateTokens::from(&tokenizer);
    let template = match ChatTemplate::new(
        &checkpoint.config.chat_templates,
        tokens,
        TemplateLimits::default(),
    ) {
        Ok(template) => Some(template),
        Err(TemplateError::None) => None,
        Err(error) => return Err(error.into()),
    };
    Ok((tokenizer, template))
}

fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    if let Some(header) = &checkpoint.gguf {
        return Ok(Tokenizer::from_gguf(header)?);
    }
    let Some(path) = &checkpoint.files.tokenizer else {
        bail!(
            "{} has no tokenizer.json: text cannot be served from it",
            checkpoint.path.display()
        );
    };
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| path.display().to_string());
    let json = read(path)?;
    let config = checkpoint
        .files
        .tokenizer_config
        .as_ref()
        .map(read)
        .transpose()?;
    Ok(Tokenizer::from_json(&json, config.as_deref())?)
}

/// A number that nobody can guess: the operating system's.
///
/// # Errors
/// If the system gives none.
pub fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| anyhow::anyhow!("the system gives no random numbers: {e}"))?;
    Ok(u64::from_le_bytes(bytes))
}
