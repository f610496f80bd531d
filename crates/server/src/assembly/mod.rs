// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wiring: from a path and options to a served model. The one place that knows every crate.
//!
//! [`open`] opens the device, reads headers and makes the plan, and takes no memory of the device yet: what it prints is all
//! that will be taken. [`Opened::load`] does the rest. The command line and the tests start here.

mod blame;
mod defaults;
mod device;
mod kv_types;
mod live;
mod measured;
mod memory;
mod open_device;
mod planned;
mod sizes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use metrale_circuit::{CircuitLibrary, Plan};
use metrale_core::Elem;
use metrale_gpu_runtime::{CudaOptions, DeviceInfo, FaultPlan, HostOptions, Isa};
use metrale_model_engine::adapters::Guess;
use metrale_model_engine::{Engine, EngineOptions, Prepared, TransformerModel, load};
use metrale_model_weights::Checkpoint;
use metrale_scheduler::{PlannerLimits, Policy};

use crate::engine_face::{ModelCard, ServedModel};
use crate::template::{ChatTemplate, TemplateError, TemplateLimits, TemplateTokens};
use crate::text_face;
use crate::tokenizer::{NoTokenizer, Tokenizer, TokenizerError};
pub(crate) use planned::{Memory, Target, plan_on};

pub use blame::Blame;
pub use defaults::{DefaultError, SamplingFlags};
pub use device::{Device, DeviceError, FAULTS, UnknownDevice, Wanted, fault_plan};
pub use kv_types::{KV_TYPES, KvLayers, KvLayersError, kv_type};
pub use live::LiveEngine;
pub use measured::Measured;
pub use memory::available_memory;
pub use open_device::OpenDevice;
pub use sizes::SizeError;

/// How a model is loaded. [`LoadOptions::new`] gives every default.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// A GGUF file, or a folder with config.json.
    pub path: PathBuf,
    /// What computes.
    pub device: Wanted,
    /// Worker threads; 0 = one per core that the process may use.
    pub threads: usize,
    /// Cores to pin them to, one each; empty = the system places them.
    pub affinity: Vec<usize>,
    /// Instruction set of class cpu; `None` = the best of the machine.
    pub isa: Option<Isa>,
    /// Format of the KV pool; `None` = the checkpoint's own float type, f16 for a GGUF.
    pub kv: Option<Elem>,
    /// Formats of some layers' KV.
    pub kv_layers: KvLayers,
    /// Bytes of the KV pool; `None` = what every sequence at full length needs, at most a quarter of the free memory, or on
    /// a GPU what the rest of the plan leaves of nine tenths of the device's.
    pub kv_bytes: Option<u64>,
    /// Tokens of prompt and answer together; `None` = what the checkpoint was trained for.
    pub max_seq_len: Option<u32>,
    /// Sequences that run at once; `None` = the device's default.
    pub max_num_seqs: Option<u32>,
    /// Prefill rows in one step; `None` = the device's default.
    pub max_prefill_tokens: Option<u32>,
    /// Requests that wait.
    pub queue_len: usize,
    /// In which order they are served.
    pub policy: Policy,
    /// Tokens that prompt lookup may guess for each sequence's next step; 0 = none.
    pub ngram: u32,
    /// Bytes of host memory for evicted KV; 0 = none.
    pub kv_host_bytes: u64,
    /// A step that runs longer has hung.
    pub step_timeout: Duration,
    /// Whether a GPU's programs are stamped with their times.
    pub stamps: bool,
    /// Faults to inject.
    pub fault: FaultPlan,
    /// Configuration keys that the user takes responsibility for.
    pub accept_keys: Vec<String>,
    /// Sampling defaults given by flags.
    pub sampling: SamplingFlags,
    /// Report a hash of each logits row.
    pub row_hashes: bool,
    /// Where weights come from.
    pub weights: Weights,
    /// Quantize them to fp8 while loading.
    pub quantize_fp8: bool,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// The checkpoint.
    #[default]
    Checkpoint,
    /// Made on the device, of no meaning; their bits follow from this seed. Neither weights nor a tokenizer have to be there.
    Made(u64),
}

impl LoadOptions {
    /// The defaults for a checkpoint, on the processor.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> LoadOptions {
        let limits = PlannerLimits::default();
        LoadOptions {
            path: path.into(),
            device: Wanted::Named(Device::Cpu),
            threads: 0,
            affinity: Vec::new(),
            isa: None,
            kv: None,
            kv_layers: KvLayers::default(),
            kv_bytes: None,
            max_seq_len: None,
            max_num_seqs: None,
            max_prefill_tokens: None,
            queue_len: limits.queue_len,
            policy: limits.policy,
            ngram: 0,
            kv_host_bytes: 0,
            step_timeout: EngineOptions::default().step_deadline,
            stamps: false,
            fault: FaultPlan::default(),
            accept_keys: Vec::new(),
            sampling: SamplingFlags::default(),
            row_hashes: false,
            weights: Weights::default(),
            quantize_fp8: false,
        }
    }

    /// Opens the device. It needs no checkpoint, so that a missing driver is found before one is fetched.
    ///
    /// # Errors
    /// Why the device does not serve, and the remedy.
    pub fn open_device(&self) -> Result<OpenDevice, DeviceError> {
        let cuda = CudaOptions {
            patience: self.step_timeout,
            stamps: self.stamps,
            faults: self.fault,
            ..CudaOptions::default()
        };
        self.device.open(self.host(), cuda)
    }

    /// The team of class cpu.
    fn host(&self) -> HostOptions {
        HostOptions {
            threads: self.threads,
            isa: self.isa,
            affinity: self.affinity.clone(),
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
    /// What will compute, and why not another.
    pub on: OpenDevice,
    options: LoadOptions,
}

/// Opens the device and then the checkpoint: [`open_on`].
///
/// # Errors
/// What is wrong with the checkpoint, by file, key or tensor, or with the device, and the remedy.
pub fn open(options: LoadOptions) -> Result<Opened> {
    let on = options.open_device()?;
    open_on(options, on)
}

/// Opens a checkpoint, checks its tensors, and plans it for the class of an opened device.
///
/// # Errors
/// What is wrong with the checkpoint, by file, key or tensor, or what the device lacks, and the remedy.
pub fn open_on(options: LoadOptions, on: OpenDevice) -> Result<Opened> {
    let library = library()?;
    let checkpoint = Checkpoint::open(&options.path)?;
    let mut prepared = Prepared::new(&library, checkpoint, &options.accept_keys)?;
    if let Weights::Made(seed) = options.weights {
        prepared = prepared.with_made_weights(seed);
    }
    if options.quantize_fp8 {
        prepared.quantize_fp8()?;
    }
    let (on, (plan, limits)) = on.planned(|on| {
        let info = on.backend.device();
        let target = Target {
            class: info.class.clone(),
            device: device::stated(&library, info),
            memory: match on.device {
                Device::Cpu => Memory::Machine,
                Device::Cuda(_) => Memory::Device(info.memory),
            },
            rows: 0,
            fuse: true,
        };
        on.device
            .planned(plan_on(&library, &prepared, &options, target))
    })?;
    Ok(Opened {
        prepared,
        plan: Arc::new(plan),
        limits,
        on,
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
    /// What computes.
    pub device: Device,
}

impl Opened {
    /// The device that will compute.
    #[must_use]
    pub fn device(&self) -> &DeviceInfo {
        self.on.backend.device()
    }

    /// Bytes of weights that [`Opened::load`] will read or make.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        let slots = self.plan.weights.iter();
        let parts = slots.flat_map(|s| s.parts.iter().map(|p| (p.format, p.rows * s.cols)));
        parts
            .filter_map(|(format, values)| format.bytes_for(values))
            .sum()
    }

    /// Loads the weights; nothing runs yet. `progress` is told the bytes read or made since it was told last.
    ///
    /// # Errors
    /// What failed, and why.
    pub fn model(&self, progress: impl FnMut(u64)) -> Result<TransformerModel> {
        // A GPU's memory is its own, and there once it is reserved.
        if self.device().lazy_memory {
            let host = self.options.kv_host_bytes;
            memory::fits(&self.plan.memory, available_memory(), host)?;
        }
        let (plan, backend) = (Arc::clone(&self.plan), Arc::clone(&self.on.backend));
        Ok(load(&self.prepared, plan, backend, progress)?)
    }

    /// Starts the engine over a loaded model.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(&self, model: TransformerModel) -> Result<Engine> {
        let options = EngineOptions {
            limits: self.limits.clone(),
            row_hashes: self.options.row_hashes,
            hash_key: random_u64()?,
            kv_host_bytes: self.options.kv_host_bytes,
            step_deadline: self.options.step_timeout,
            guess: (self.options.ngram > 0).then_some(metrale_speculative::ngram as Guess),
            ..EngineOptions::default()
        };
        Ok(Engine::start(model, options)?)
    }

    /// Loads the weights and starts the engine. `progress` is told the bytes read or made since it was told last.
    ///
    /// # Errors
    /// What failed, and why.
    pub fn load(self, progress: impl FnMut(u64)) -> Result<LoadedModel> {
        let Opened {
            prepared,
            plan,
            limits,
            on,
            options,
        } = &self;
        // Found before gigabytes are read. (A benchmark loads without: it measures, and says nothing.)
        if options.weights == Weights::Checkpoint {
            require_tokenizer(&prepared.checkpoint)
                .with_context(|| options.path.display().to_string())?;
        }
        let generation = &prepared.checkpoint.config.generation;
        let defaults = defaults::merge(&options.sampling, generation)?;
        // The tokenizer takes as long to build as the weights to read: both at once.
        let (text, model) = std::thread::scope(|scope| {
            let text = scope.spawn(|| self.text());
            let model = self.model(progress);
            (text.join(), model)
        });
        let text = match text {
            Ok(text) => text?,
            Err(_) => bail!(
                "the tokenizer of {} panicked while it was built",
                options.path.display()
            ),
        };
        let engine = Arc::new(LiveEngine::new(self.start(model?)?));
        let card = ModelCard {
            max_model_len: engine.capacity(),
            pool_bound: engine.capacity() < limits.max_seq_len,
            digest: plan.digest.short(),
            created: sizes::modified(&options.path),
            defaults,
            by_priority: matches!(options.policy, Policy::Priority { .. }),
            settings: sizes::settings(options, plan, limits, on),
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
            device: on.device,
        })
    }

    /// The tokenizer and the chat template; made weights may come without.
    fn text(&self) -> Result<Text> {
        let checkpoint = &self.prepared.checkpoint;
        if require_tokenizer(checkpoint).is_ok() {
            return text_of(checkpoint);
        }
        let logits = self.plan.memory.span(self.plan.outputs.logits);
        let vocab = u32::try_from(logits.extent.elems).unwrap_or(u32::MAX);
        let text = NoTokenizer::new(vocab, &checkpoint.config.eos);
        Ok((Arc::new(text), None))
    }
}

/// Whether there is a tokenizer, well-formed or not: the file of a folder, the token list of a GGUF.
fn require_tokenizer(checkpoint: &Checkpoint) -> Result<(), TokenizerError> {
    let (there, key) = match &checkpoint.gguf {
        Some(header) => {
            let key = "tokenizer.ggml.tokens";
            (header.get(key).is_some(), key)
        }
        None => (checkpoint.files.tokenizer.is_some(), "tokenizer.json"),
    };
    match there {
        true => Ok(()),
        false => Err(TokenizerError::Missing { key }),
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
    let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
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
