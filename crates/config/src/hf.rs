// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Hugging Face checkpoint's JSON files to a [`ModelConfig`].

use std::collections::BTreeSet;

use metrale_core::{Elem, FlatMap, Scalar};
use serde_json::{Map, Value};

use crate::chat_template::{self, DEFAULT_TEMPLATE};
use crate::flatten::flatten_json;
use crate::generation::GenerationDefaults;
use crate::json::{self, JsonLimits};
use crate::model::{ConfigError, ConfigSource, ModelConfig};

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

/// Keys for the context length, in the order in which they are asked.
const CONTEXT_KEYS: &[&str] = &[
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "seq_length",
];

/// The bytes of a checkpoint's small files; all but `config` may be absent.
#[derive(Debug, Clone, Copy, Default)]
pub struct HfFiles<'a> {
    /// config.json.
    pub config: &'a [u8],
    /// generation_config.json.
    pub generation_config: Option<&'a [u8]>,
    /// tokenizer_config.json; only its `chat_template` is read here.
    pub tokenizer_config: Option<&'a [u8]>,
    /// chat_template.json, where older multimodal checkpoints keep the template.
    pub chat_template_json: Option<&'a [u8]>,
    /// chat_template.jinja, which wins over the JSON files.
    pub chat_template_jinja: Option<&'a [u8]>,
    /// additional_chat_templates/NAME.jinja, as (NAME, bytes).
    pub additional_templates: &'a [(String, Vec<u8>)],
}

/// Reads the configuration of a Hugging Face checkpoint.
///
/// The ids and the context length of a multimodal model are looked for in `text_config` where the top has none.
/// End tokens are those of generation_config.json, then those of config.json.
///
/// # Errors
/// [`ConfigError`], naming file and key.
pub fn from_hf(files: &HfFiles<'_>, limits: &JsonLimits) -> Result<ModelConfig, ConfigError> {
    let document = parse(CONFIG, files.config, limits)?;
    let flat = flatten_json(&document).map_err(|source| ConfigError::Flatten {
        file: CONFIG.to_owned(),
        source,
    })?;
    let top = Keys {
        file: CONFIG,
        flat: &flat,
    };
    let architecture = top.text("model_type")?.ok_or_else(|| {
        let why = "is missing; it names the model's family";
        ConfigError::key(CONFIG, "model_type", why.to_owned())
    })?;

    let mut generation = GenerationDefaults::default();
    let (mut bos, mut eos, mut pad) = (None, Vec::new(), None);
    if let Some(bytes) = files.generation_config {
        let document = parse(GENERATION, bytes, limits)?;
        generation = GenerationDefaults::from_json(GENERATION, object(GENERATION, &document)?)?;
        let flat = flatten_json(&document).map_err(|source| ConfigError::Flatten {
            file: GENERATION.to_owned(),
            source,
        })?;
        let keys = Keys {
            file: GENERATION,
            flat: &flat,
        };
        bos = keys.id("bos_token_id")?;
        eos = keys.ids("eos_token_id")?;
        pad = keys.id("pad_token_id")?;
    }
    for id in top.ids("eos_token_id")? {
        if !eos.contains(&id) {
            eos.push(id);
        }
    }
    let bos = top.id("bos_token_id")?.or(bos);
    let pad = top.id("pad_token_id")?.or(pad);
    if let Some(vocabulary) = top.count("vocab_size")? {
        for (key, id) in bos
            .iter()
            .map(|b| ("bos_token_id", b))
            .chain(eos.iter().map(|e| ("eos_token_id", e)))
        {
            if u64::from(*id) >= vocabulary {
                let why =
                    format!("is {id}, outside of the vocabulary of {vocabulary} (vocab_size)");
                return Err(ConfigError::key(CONFIG, key, why));
            }
        }
    }

    let mut context_length = None;
    for key in CONTEXT_KEYS {
        if context_length.is_none() {
            context_length = top.count(key)?;
        }
    }
    let class = match flat.get("architectures") {
        Some(Scalar::List(names)) => names.first().and_then(Scalar::as_str).map(str::to_owned),
        _ => None,
    };
    Ok(ModelConfig {
        architecture,
        class,
        source: ConfigSource::Hf,
        name: None,
        context_length,
        bos,
        eos,
        pad,
        dtype: dtype(&top)?,
        generation,
        chat_templates: templates(files, limits)?,
        nulls: nulls(&document),
        flat,
    })
}

fn nulls(document: &Value) -> BTreeSet<String> {
    let keys = document.as_object().into_iter().flatten();
    let nulls = keys.filter(|(_, value)| value.is_null());
    nulls.map(|(key, _)| key.clone()).collect()
}

fn parse(file: &str, bytes: &[u8], limits: &JsonLimits) -> Result<Value, ConfigError> {
    json::parse(bytes, limits).map_err(|source| ConfigError::Json {
        file: file.to_owned(),
        source,
    })
}

fn object<'v>(file: &str, value: &'v Value) -> Result<&'v Map<String, Value>, ConfigError> {
    value
        .as_object()
        .ok_or_else(|| ConfigError::key(file, "(whole file)", "must be a JSON object".to_owned()))
}

fn dtype(keys: &Keys<'_>) -> Result<Option<Elem>, ConfigError> {
    let name = match keys.text("dtype")? {
        Some(name) => Some(name),
        None => keys.text("torch_dtype")?,
    };
    Ok(
        name.and_then(|name| match name.trim_start_matches("torch.") {
            "float32" => Some(Elem::F32),
            "float16" => Some(Elem::F16),
            "bfloat16" => Some(Elem::BF16),
            // Others name how a quantized checkpoint computes elsewhere; the tensors say what they are.
            _ => None,
        }),
    )
}

fn templates(
    files: &HfFiles<'_>,
    limits: &JsonLimits,
) -> Result<Vec<chat_template::ChatTemplate>, ConfigError> {
    let mut list = Vec::new();
    let json_files = [
        ("tokenizer_config.json", files.tokenizer_config),
        ("chat_template.json", files.chat_template_json),
    ];
    for (file, bytes) in json_files {
        if let Some(bytes) = bytes {
            let document = parse(file, bytes, limits)?;
            chat_template::put_from_json(&mut list, file, object(file, &document)?)?;
        }
    }
    for (name, bytes) in files.additional_templates {
        let file = format!("additional_chat_templates/{name}.jinja");
        chat_template::put(&mut list, name, &file, utf8(&file, bytes)?);
    }
    if let Some(bytes) = files.chat_template_jinja {
        let file = "chat_template.jinja";
        chat_template::put(&mut list, DEFAULT_TEMPLATE, file, utf8(file, bytes)?);
    }
    Ok(list)
}

fn utf8<'b>(file: &str, bytes: &'b [u8]) -> Result<&'b str, ConfigError> {
    std::str::from_utf8(bytes).map_err(|_| ConfigError::TemplateUtf8 {
        file: file.to_owned(),
    })
}

/// Typed reads of a flat map, at the top or, failing that, in `text_config`.
struct Keys<'a> {
    file: &'a str,
    flat: &'a FlatMap,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<(String, &Scalar)> {
        let nested = format!("text_config.{key}");
        match self.flat.get(key) {
            Some(value) => Some((key.to_owned(), value)),
            None => self.flat.get(&nested).map(|value| (nested, value)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let Some((key, value)) = self.get(key) else {
            return Ok(None);
        };
        match value.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(self.bad(&key, value, "a string")),
        }
    }

    fn count(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        let Some((key, value)) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(n) => Ok(Some(n)),
            None => Err(self.bad(&key, value, "a count")),
        }
    }

    /// One token id. -1 is how several families write "none".
    fn id(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        match self.get(key) {
            // A list of begin tokens (some speech models) has no single begin token.
            None | Some((_, Scalar::List(_))) => Ok(None),
            Some((key, value)) => self.one_id(&key, value),
        }
    }

    /// A token id or a list of them, without repetition.
    fn ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let Some((key, value)) = self.get(key) else {
            return Ok(Vec::new());
        };
        let items = match value {
            Scalar::List(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut ids = Vec::new();
        for item in items {
            if let Some(id) = self.one_id(&key, item)?
                && !ids.contains(&id)
            {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    fn one_id(&self, key: &str, value: &Scalar) -> Result<Option<u32>, ConfigError> {
        match value {
            Scalar::Int(-1) => Ok(None),
            Scalar::Int(id) if u32::try_from(*id).is_ok() => Ok(u32::try_from(*id).ok()),
            _ => Err(self.bad(key, value, "a token id")),
        }
    }

    fn bad(&self, key: &str, value: &Scalar, want: &str) -> ConfigError {
        ConfigError::key(self.file, key, format!("is {value}, expected {want}"))
    }
}
