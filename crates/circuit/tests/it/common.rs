// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: the built-in library, and configurations written down from public facts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use metrale_circuit::{
    CircuitLibrary, ConfigInput, Instance, KvFormats, Plan, PlanRequest, Refusal, Source, WeightKey,
};
use metrale_core::{Elem, FlatMap, Scalar, StepLimits};

pub(crate) fn library() -> &'static CircuitLibrary {
    static LIBRARY: OnceLock<CircuitLibrary> = OnceLock::new();
    LIBRARY.get_or_init(|| CircuitLibrary::new(metrale_kernel_tree::files()).unwrap())
}

/// A flat map from lines `key = value`; values are TOML.
pub(crate) fn flat(text: &str) -> FlatMap {
    let mut map = FlatMap::new();
    for line in text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
    {
        let (key, value) = line.split_once('=').unwrap();
        map.insert(key.trim().to_owned(), scalar(value.trim()));
    }
    map
}

pub(crate) fn scalar(text: &str) -> Scalar {
    if let Some(inner) = text.strip_prefix('"') {
        return Scalar::Str(inner.trim_end_matches('"').to_owned());
    }
    if let Some(inner) = text.strip_prefix('[') {
        let items = inner.trim_end_matches(']').split(',').map(str::trim);
        return Scalar::List(items.filter(|i| !i.is_empty()).map(scalar).collect());
    }
    match text {
        "true" => Scalar::Bool(true),
        "false" => Scalar::Bool(false),
        _ => match text.parse::<i64>() {
            Ok(i) => Scalar::Int(i),
            Err(_) => Scalar::Float(text.parse().unwrap()),
        },
    }
}

pub(crate) fn hf(flat: &FlatMap) -> Result<Instance, Refusal> {
    library().instantiate(&ConfigInput {
        flat,
        source: Source::Hf,
        nulls: None,
        tensors: None,
        accept: &[],
    })
}

pub(crate) fn gguf(flat: &FlatMap, tensors: &BTreeSet<String>) -> Result<Instance, Refusal> {
    let tensors = Some(tensors);
    library().instantiate(&ConfigInput {
        flat,
        source: Source::Gguf,
        nulls: None,
        tensors,
        accept: &[],
    })
}

pub(crate) const LIMITS: StepLimits = StepLimits {
    rows: 64,
    logits_rows: 8,
    slots: 8,
    blocks_per_slot: 32,
    tables: 1,
    history: 1024,
    bias: 64,
    mask_words: 0,
};

pub(crate) static KV_BF16: KvFormats = KvFormats::all(Elem::BF16);
pub(crate) static KV_F32: KvFormats = KvFormats::all(Elem::F32);
pub(crate) static KV_Q8_0: KvFormats = KvFormats::all(Elem::Q8_0);

/// A request with small limits; change what a test is about.
pub(crate) fn request<'a>(formats: &'a BTreeMap<WeightKey, Elem>) -> PlanRequest<'a> {
    static NO_VALUES: BTreeMap<WeightKey, Vec<f32>> = BTreeMap::new();
    static NO_STORED: BTreeMap<WeightKey, Elem> = BTreeMap::new();
    PlanRequest {
        class: "cpu",
        device: None,
        formats,
        stored: &NO_STORED,
        values: &NO_VALUES,
        kv: &KV_BF16,
        limits: LIMITS,
        kv_blocks: 256,
        windows: &[],
        snapshots: 0,
        checkpoint: "test",
        fuse: true,
    }
}

pub(crate) fn plan(instance: &Instance, elem: Elem) -> Plan {
    let formats = instance.uniform_formats(elem);
    library().plan(instance, &request(&formats)).unwrap()
}

/// The tiny llama of `scripts/refs`.
pub(crate) const TINY_LLAMA: &str = r#"
model_type = "llama"
vocab_size = 320
hidden_size = 64
intermediate_size = 96
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 16
max_position_embeddings = 512
rms_norm_eps = 0.000001
hidden_act = "silu"
attention_bias = false
mlp_bias = false
attention_dropout = 0.0
initializer_range = 0.1
pretraining_tp = 1
tie_word_embeddings = false
rope_parameters.rope_theta = 10000.0
rope_parameters.rope_type = "default"
bos_token_id = 1
eos_token_id = 2
pad_token_id = 0
use_cache = true
dtype = "bfloat16"
transformers_version = "5.24.0"
architectures = ["LlamaForCausalLM"]
"#;
