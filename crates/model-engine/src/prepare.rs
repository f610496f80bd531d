// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an opened checkpoint to a plan: instance, name tables, preflight. Nothing here touches a device.

use std::collections::{BTreeMap, BTreeSet};

use metrale_circuit::{
    CircuitLibrary, ConfigInput, Instance, KvFormats, Plan, PlanError, PlanRequest, Refusal,
    Source, WeightKey, WindowPool,
};
use metrale_config::{ConfigError, ConfigSource, Quantization, quantization};
use metrale_core::numeric::{self, DequantizeError};
use metrale_core::{Elem, StepLimits};
use metrale_model_layers::pack::packed_format;
use metrale_model_layers::weight_map::{Piece, Recipe, Transform, recipe};
use metrale_model_weights::{
    Checkpoint, Expected, PreflightError, WeightStore, WeightsError, preflight,
};

use crate::factory::loader_for_family;
use crate::fp8;

/// A checkpoint with its circuit instance, checked against each other.
pub struct Prepared {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Its mathematics.
    pub instance: Instance,
    /// Where each weight comes from; aliases have none.
    pub recipes: BTreeMap<WeightKey, Recipe>,
    /// The format of each weight on disk; without weights, the configuration's dtype.
    pub formats: BTreeMap<WeightKey, Elem>,
    /// The disk formats of weights that packing quantizes.
    pub stored: BTreeMap<WeightKey, Elem>,
    values: BTreeMap<WeightKey, Vec<f32>>,
    fingerprint: String,
    made: Option<u64>,
}

/// What a plan is made for, beside the checkpoint.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Hardware class (`cpu`).
    pub class: String,
    /// Device of `DEVICES.toml` for the roofline, if known.
    pub device: Option<String>,
    /// Formats of the KV pools.
    pub kv: KvFormats,
    /// Capacities of a step.
    pub limits: StepLimits,
    /// Blocks of the first KV group's pool.
    pub kv_blocks: u64,
    /// Windows whose layers get a pool of their own ([`crate::KvPools`]).
    pub windows: Vec<WindowPool>,
    /// Places for snapshots of recurrent state; a prefix of such a model can be resumed only where one was kept.
    pub snapshots: u32,
    /// Whether to fuse; unfused plans expose every edge, for tests.
    pub fuse: bool,
}

/// The checkpoint cannot be served. Every variant names the file, key or tensor, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The configuration is refused.
    #[error("{path}: {source}")]
    Refused {
        /// The checkpoint.
        path: String,
        /// The key and the reason.
        source: Box<Refusal>,
    },
    /// How the weights are quantized is not known.
    #[error("{path}: {source}")]
    Quantization {
        /// The checkpoint.
        path: String,
        /// The key and the reason.
        source: ConfigError,
    },
    /// An e4m3 tensor of a checkpoint that says nothing of scales.
    #[error(
        "{file}: tensor {tensor} is f8_e4m3, and config.json has no quantization_config to say how its scales lie; fetch the checkpoint's own config.json"
    )]
    NoScheme {
        /// Its file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// An e4m3 tensor that cannot be one.
    #[error(
        "{file}: tensor {tensor} is f8_e4m3, which only matrices whose rows move whole can be; take another quantization of the model"
    )]
    NoFp8 {
        /// Its file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// `--quantization fp8` of a checkpoint that is quantized.
    #[error(
        "{path}: its weights are quantized already ({tensor} is {format}); leave --quantization out"
    )]
    Quantized {
        /// The checkpoint.
        path: String,
        /// The first tensor that is.
        tensor: String,
        /// Its format.
        format: Elem,
    },
    /// A family without a loader: a circuit was added and its name tables were not.
    #[error("family {0} has a circuit but no weight loader in this build")]
    NoLoader(String),
    /// A weight without a row in the name tables.
    #[error("family {family}: weight {weight} stands in no {source_name} name table")]
    NoName {
        /// The family.
        family: String,
        /// The weight.
        weight: WeightKey,
        /// `Hf` or `Gguf`.
        source_name: String,
    },
    /// Tensors are missing, misshapen or unexpected.
    #[error("{path}: {source}")]
    Preflight {
        /// The checkpoint.
        path: String,
        /// All problems.
        source: Box<PreflightError>,
    },
    /// The tensors of one weight are of several formats, or of one whose values cannot be moved singly.
    #[error(
        "{file}: tensor {tensor} (of weight {weight}) is {found}, where {wanted} belongs; take another quantization of the model"
    )]
    Format {
        /// The file.
        file: String,
        /// The weight.
        weight: WeightKey,
        /// The tensor.
        tensor: String,
        /// Its format.
        found: Elem,
        /// What belongs there.
        wanted: String,
    },
    /// A file could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tensor whose values enter the plan is in a format that has none.
    #[error("tensor {tensor}: {source}")]
    Values {
        /// The tensor.
        tensor: String,
        /// Why.
        source: DequantizeError,
    },
    /// The class cannot serve the instance.
    #[error(transparent)]
    Plan(Box<PlanError>),
}

impl Prepared {
    /// Instantiates the circuit of `checkpoint` and checks its tensors. `accept` names configuration keys that the user
    /// takes responsibility for (`--accept-key`).
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn new(
        library: &CircuitLibrary,
        checkpoint: Checkpoint,
        accept: &[String],
    ) -> Result<Prepared, PrepareError> {
        let path = checkpoint.path.display().to_string();
        let source = match checkpoint.config.source {
            ConfigSource::Hf => Source::Hf,
            ConfigSource::Gguf => Source::Gguf,
        };
        let tensors: Option<BTreeSet<String>> = checkpoint
            .store
            .as_ref()
            .map(|s| s.tensors().iter().map(|t| t.name.clone()).collect());
        let input = ConfigInput {
            flat: &checkpoint.config.flat,
            source,
            nulls: Some(&checkpoint.config.nulls),
            tensors: tensors.as_ref(),
            accept,
        };
        let instance = library
            .instantiate(&input)
            .map_err(|source| PrepareError::Refused {
                path: path.clone(),
                source: Box::new(source),
            })?;
        let mut prepared = Prepared {
            recipes: recipes(&instance)?,
            formats: BTreeMap::new(),
            stored: BTreeMap::new(),
            values: BTreeMap::new(),
            fingerprint: checkpoint
                .fingerprint()?
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect(),
            made: None,
            checkpoint,
            instance,
        };
        let scheme = match prepared.checkpoint.config.source {
            ConfigSource::Hf => quantization::read(&prepared.checkpoint.config.flat, accept)
                .map_err(|source| PrepareError::Quantization {
                    path: path.clone(),
                    source,
                })?,
            ConfigSource::Gguf => None,
        };
        if let Some(store) = &prepared.checkpoint.store {
            fp8::pair(&mut prepared.recipes, store, scheme.as_ref())?;
        }
        let unused = prepared.check(&path, scheme.as_ref())?;
        if let Some(first) = unused.first() {
            tracing::info!(%path, count = unused.len(), %first, "tensors that this engine leaves unused");
        }
        prepared.read_formats(scheme.as_ref());
        prepared.read_values()?;
        Ok(prepared)
    }

    /// Takes weights of no meaning in the place of the checkpoint's: made on the device when the model is loaded, in the
    /// formats that the checkpoint has or its configuration names, with bits that `seed` fixes on every device.
    #[must_use]
    pub fn with_made_weights(mut self, seed: u64) -> Prepared {
        self.made = Some(seed);
        // Made values are plain; fp8 is what they are quantized to as they are packed.
        let dtype = self.checkpoint.config.dtype.unwrap_or(Elem::BF16);
        for (key, format) in &self.formats {
            if matches!(format, Elem::F8Row | Elem::F8Block) {
                self.stored.entry(key.clone()).or_insert(dtype);
            }
        }
        self.fingerprint = format!("{} made {seed}", self.fingerprint);
        self
    }

    /// The seed of made weights; `None` if the checkpoint's are loaded.
    #[must_use]
    pub fn made(&self) -> Option<u64> {
        self.made
    }

    /// Quantizes to fp8 while loading: the matrices of `linear`, a scale per output channel; head, embedding and routers stay, and experts.
    ///
    /// # Errors
    /// [`PrepareError::Quantized`] if one of them is in a format other than f32, f16 and bf16.
    pub fn quantize_fp8(&mut self) -> Result<(), PrepareError> {
        for key in fp8::linears(&self.instance) {
            let Some(format) = self.formats.get(&key).copied() else {
                continue;
            };
            if !matches!(format, Elem::F32 | Elem::F16 | Elem::BF16) {
                let recipe = self.recipes.get(&key).map(|r| r.first().tensor.clone());
                return Err(PrepareError::Quantized {
                    path: self.checkpoint.path.display().to_string(),
                    tensor: recipe.unwrap_or_else(|| key.to_string()),
                    format,
                });
            }
            self.stored.insert(key.clone(), format);
            self.formats.insert(key, Elem::F8Row);
        }
        Ok(())
    }

    /// Holds the tensors against what the instance needs; gives the names of those left unused.
    fn check(
        &self,
        path: &str,
        scheme: Option<&Quantization>,
    ) -> Result<Vec<String>, PrepareError> {
        let Some(store) = &self.checkpoint.store else {
            return Ok(Vec::new());
        };
        let weights = self.instance.weights().iter();
        let recipes = weights.filter_map(|w| self.recipes.get(&w.key));
        let tensors = |r| Recipe::tensors(r).map(move |(n, shape)| (n, shape, fp8::formats(r, n)));
        let wanted: Vec<_> = recipes.flat_map(tensors).collect();
        let expected = wanted.iter().map(|(name, shape, formats)| Expected {
            name,
            shape,
            formats,
            optional: false,
        });
        // A tied checkpoint may store its head a second time: the embedding is what is used.
        let tied = self.instance.weights().iter().any(|w| w.alias_of.is_some());
        let layers = self.instance.layers().to_string();
        let mut unused: Vec<String> = loader_for_family(self.instance.family())
            .map_or(&[][..], |loader| loader.unused())
            .iter()
            .map(|pattern| pattern.replace("{}", &layers))
            .collect();
        if tied {
            unused.push("lm_head.weight".to_owned());
        }
        unused.extend(
            scheme
                .iter()
                .flat_map(|s| &s.unread)
                .map(|t| (*t).to_owned()),
        );
        let allowed: Vec<&str> = unused.iter().map(String::as_str).collect();
        let left = preflight(expected, &allowed, store)
            .map(|names| names.into_iter().map(str::to_owned).collect())
            .map_err(|source| PrepareError::Preflight {
                path: path.to_owned(),
                source: Box::new(source),
            })?;
        for (key, recipe) in &self.recipes {
            one_format(key, recipe, store)?;
        }
        Ok(left)
    }

    fn read_formats(&mut self, scheme: Option<&Quantization>) {
        let dtype = self.checkpoint.config.dtype.unwrap_or(Elem::BF16);
        let mut matrices = fp8::linears(&self.instance);
        // A scheme is for experts, too: a class without kernels for them has to say so with weights and without.
        let weights = self.instance.weights().iter();
        matrices.extend(
            weights
                .filter(|w| w.shape.len() == 3)
                .map(|w| w.key.clone()),
        );
        for (key, recipe) in &self.recipes {
            let store = self.checkpoint.store.as_ref();
            let stored = store.and_then(|s| s.get(&recipe.first().tensor));
            let format = packed_format(
                &recipe.first().transform,
                stored.map_or(dtype, |tensor| tensor.elem),
            );
            self.formats.insert(key.clone(), format);
            let absent = scheme.filter(|_| store.is_none() && matrices.contains(key));
            if let Some(scheme) = absent.filter(|s| !s.skips(fp8::module(recipe.first()))) {
                let fp8 = match scheme.blocks {
                    true => Elem::F8Block,
                    false => Elem::F8Row,
                };
                // Without a checkpoint's weights, values are made in a plain format and quantized as they are packed.
                self.stored.insert(key.clone(), format);
                self.formats.insert(key.clone(), fp8);
            }
        }
    }

    fn read_values(&mut self) -> Result<(), PrepareError> {
        let Some(store) = &self.checkpoint.store else {
            return Ok(());
        };
        for weight in self.instance.weights().iter().filter(|w| w.constant) {
            let tensor = self
                .recipes
                .get(&weight.key)
                .and_then(|r| store.get(&r.first().tensor));
            // Preflight has found every tensor of a recipe.
            let Some(tensor) = tensor else { continue };
            let mut values = vec![0.0; weight.elems() as usize];
            numeric::dequantize(tensor.elem, &store.read(tensor)?, &mut values).map_err(
                |source| PrepareError::Values {
                    tensor: tensor.name.clone(),
                    source,
                },
            )?;
            self.values.insert(weight.key.clone(), values);
        }
        Ok(())
    }

    /// The plan for `options`.
    ///
    /// # Errors
    /// [`PrepareError::Plan`] names the first point that the class lacks, or what does not fit.
    pub fn plan(
        &self,
        library: &CircuitLibrary,
        options: &PlanOptions,
    ) -> Result<Plan, PrepareError> {
        let request = PlanRequest {
            class: &options.class,
            device: options.device.as_deref(),
            formats: &self.formats,
            kv: &options.kv,
            limits: options.limits,
            kv_blocks: options.kv_blocks,
            windows: &options.windows,
            snapshots: options.snapshots,
            checkpoint: &self.fingerprint,
            stored: &self.stored,
            values: &self.values,
            fuse: options.fuse,
        };
        library
            .plan(&self.instance, &request)
            .map_err(|e| PrepareError::Plan(Box::new(e)))
    }
}

/// All pieces of a weight have one format; pieces that are transposed have one whose values stand alone.
fn one_format(key: &WeightKey, recipe: &Recipe, store: &WeightStore) -> Result<(), PrepareError> {
    let stored = |piece: &Piece| store.get(&piece.tensor).map(|t| t.elem);
    let first = stored(recipe.first());
    for piece in &recipe.pieces {
        let Some(tensor) = store.get(&piece.tensor) else {
            continue;
        };
        let found = tensor.elem;
        let plain = matches!(found, Elem::F32 | Elem::F16 | Elem::BF16);
        let wanted = match piece.transform {
            Transform::Transposed { .. } if !plain => "f32, f16 or bf16".to_owned(),
            Transform::Mxfp4 { .. } if found != Elem::U8 => Elem::U8.to_string(),
            _ => match first {
                Some(first) if first != found => first.to_string(),
                _ => continue,
            },
        };
        return Err(PrepareError::Format {
            file: store.path_of(tensor).display().to_string(),
            weight: key.clone(),
            tensor: piece.tensor.clone(),
            found,
            wanted,
        });
    }
    Ok(())
}

fn recipes(instance: &Instance) -> Result<BTreeMap<WeightKey, Recipe>, PrepareError> {
    let family = instance.family();
    let loader =
        loader_for_family(family).ok_or_else(|| PrepareError::NoLoader(family.to_owned()))?;
    let table = loader.names(instance.source());
    let own = instance.weights().iter().filter(|w| w.alias_of.is_none());
    own.map(|w| {
        let found = recipe(table, instance, w).ok_or_else(|| PrepareError::NoName {
            family: family.to_owned(),
            weight: w.key.clone(),
            source_name: format!("{:?}", instance.source()),
        })?;
        Ok((w.key.clone(), found))
    })
    .collect()
}
