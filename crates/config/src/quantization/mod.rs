// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quantization_config` of a Hugging Face checkpoint: which weights are fp8, and how their scales lie.
//!
//! Two writers are known: `quant_method: fp8` (DeepSeek, Qwen3-FP8, Transformers: blocks of 128 x 128, or a scale per
//! tensor) and `compressed-tensors` with 8-bit float weights (a scale per output channel, tensor or block). Every key is
//! known by name and checked, or refused: one that is passed over could change what the weights mean. What a tensor really
//! is, its own dtype says; the lists of modules that stay as they are matter where there is no tensor to ask.

mod patterns;
mod rules;

use metrale_core::{FlatMap, Scalar};

use crate::ConfigError;
use patterns::{fits, like};
use rules::Rule::{Any, Is, IsOr, Modules};
use rules::{COMPRESSED, FP8};

const FILE: &str = "config.json";
const PREFIX: &str = "quantization_config.";

/// What `quantization_config` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Whether a scale belongs to 128 x 128 values; otherwise to an output channel, or to a whole tensor.
    pub blocks: bool,
    /// What a weight's scales are called in place of `weight`, the usual name first.
    pub scale_names: [&'static str; 2],
    /// Modules that stay as they are, as the file names them.
    pub skip: Vec<String>,
    /// Tensors that go unread, `*` for any text: those of keys that the user accepted.
    pub unread: Vec<&'static str>,
}

/// Reads `quantization_config`; `None` if there is none, or if it is another scheme that the model's own family reads
/// (`mxfp4` of `gpt_oss`). `accept` names keys that the user takes responsibility for.
///
/// # Errors
/// [`ConfigError::Key`] for an unknown scheme, key or value.
pub fn read(flat: &FlatMap, accept: &[String]) -> Result<Option<Quantization>, ConfigError> {
    let mut keys = flat.range(PREFIX.to_owned()..).peekable();
    if keys.peek().is_none_or(|(key, _)| !key.starts_with(PREFIX)) {
        return Ok(None);
    }
    let refuse = |key: &str, why: String| ConfigError::key(FILE, &format!("{PREFIX}{key}"), why);
    let text = |key: &str| flat.get(&format!("{PREFIX}{key}")).map(show);
    let method = text("quant_method").unwrap_or_default();
    let rules = match method.as_str() {
        "fp8" => FP8,
        "compressed-tensors" => COMPRESSED,
        "mxfp4" if flat.get("model_type").and_then(Scalar::as_str) == Some("gpt_oss") => {
            return Ok(None);
        }
        other => {
            let why = format!(
                "is \"{other}\", a scheme that cannot be read; fp8 and compressed-tensors (8-bit \
                 float) can: take such a checkpoint, a GGUF or an unquantized one"
            );
            return Err(refuse("quant_method", why));
        }
    };
    let mut found = Quantization {
        blocks: method == "fp8" && text("weight_block_size").is_some(),
        scale_names: ["weight_scale", "weight_scale_inv"],
        skip: Vec::new(),
        unread: Vec::new(),
    };
    let (mut strategies, mut structures) = (Vec::<String>::new(), 0);
    for (full, value) in keys.take_while(|(key, _)| key.starts_with(PREFIX)) {
        let key = &full[PREFIX.len()..];
        let accepted = accept.iter().any(|a| a == full);
        let rule = rules.iter().find(|(pattern, _)| fits(pattern, key));
        let value_text = show(value);
        match rule.map(|(_, rule)| rule) {
            None if accepted => {}
            None => {
                let why = format!(
                    "is {value}, which is not known and may change what the weights mean; take \
                     another quantization of the model, or pass --accept-key {full}"
                );
                return Err(refuse(key, why));
            }
            Some(Any) => {}
            Some(Modules) => found.skip.extend(modules(value)),
            Some(Is(allowed) | IsOr(allowed, ..)) if allowed.contains(&value_text.as_str()) => {}
            Some(IsOr(_, _, tensors)) if accepted => found.unread.extend(*tensors),
            Some(IsOr(_, why, _)) => {
                let why = format!(
                    "is {value}, which is not done here: {why}; pass --accept-key {full} to have \
                     it so"
                );
                return Err(refuse(key, why));
            }
            Some(Is(_)) if accepted => {}
            Some(Is(allowed)) => {
                let why = format!(
                    "is {value}, and {} can be read; take another quantization of the model",
                    allowed.join(", ")
                );
                return Err(refuse(key, why));
            }
        }
        if key.ends_with(".weights.strategy") {
            strategies.push(value_text);
        }
        structures += usize::from(key.ends_with(".weights.block_structure"));
    }
    if method == "compressed-tensors" {
        let blocks = strategies.iter().filter(|s| *s == "block").count();
        if strategies.is_empty() || blocks % strategies.len() != 0 || blocks != structures {
            let why = "needs a group with weights of a strategy, the same (block, or not) in all, and \
                       a block_structure where it is block";
            return Err(refuse("config_groups", why.to_owned()));
        }
        found.blocks = blocks > 0;
    } else if found.blocks {
        found.scale_names.reverse();
    }
    Ok(Some(found))
}

impl Quantization {
    /// Whether the lists leave a module out (`model.layers.0.mlp.gate_proj`).
    #[must_use]
    pub fn skips(&self, module: &str) -> bool {
        self.skip.iter().any(|name| match name.strip_prefix("re:") {
            Some(pattern) => like(pattern.trim_end_matches('$'), module),
            // As a whole, or as the parts of a path.
            None => format!(".{module}.").contains(&format!(".{name}.")),
        })
    }
}

/// Text as it is, everything else as it is printed.
fn show(value: &Scalar) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn modules(value: &Scalar) -> Vec<String> {
    match value {
        Scalar::List(items) => items.iter().map(show).collect(),
        one => vec![show(one)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flatten::flatten_json;
    use crate::json::{JsonLimits, parse};

    const CHANNEL: &str = r#""config_groups": {"group_0": {
        "input_activations": {"actorder": null, "dynamic": true, "num_bits": 8, "observer": null,
            "observer_kwargs": {}, "strategy": "token", "symmetric": true, "type": "float"},
        "output_activations": null, "targets": ["Linear"],
        "weights": {"dynamic": false, "group_size": null, "num_bits": 8, "observer": "minmax",
            "strategy": "channel", "symmetric": true, "type": "float"}}},
        "format": "float-quantized", "ignore": ["lm_head"], "kv_cache_scheme": null,
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {"format": "dense", "registry_requires_subclass": false}, "version": "0.10.1""#;

    fn flat(inner: &str) -> FlatMap {
        let text = format!(r#"{{"model_type": "qwen3", "quantization_config": {{{inner}}}}}"#);
        flatten_json(&parse(text.as_bytes(), &JsonLimits::default()).unwrap()).unwrap()
    }

    fn of(inner: &str) -> Result<Option<Quantization>, String> {
        read(&flat(inner), &[]).map_err(|e| e.to_string())
    }

    #[test]
    fn the_schemes_in_use() {
        let found = of(
            r#""activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
            "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.3.mlp.gate"]"#,
        );
        let found = found.unwrap().unwrap();
        assert!(found.blocks && found.scale_names[0] == "weight_scale_inv");
        assert!(found.skips("lm_head") && found.skips("model.layers.3.mlp.gate"));
        assert!(!found.skips("model.layers.3.mlp.gate_proj"));
        assert!(!found.skips("model.layers.33.mlp.gate"));
        let found = of(r#""quant_method": "fp8", "activation_scheme": "dynamic""#);
        assert!(!found.unwrap().unwrap().blocks);
        let found = of(CHANNEL).unwrap().unwrap();
        assert!(!found.blocks && found.scale_names[0] == "weight_scale" && found.skips("lm_head"));
        let block = CHANNEL.replace(
            r#""strategy": "channel""#,
            r#""strategy": "block", "block_structure": [128, 128]"#,
        );
        assert!(of(&block).unwrap().unwrap().blocks);
        assert_eq!(read(&FlatMap::new(), &[]).unwrap(), None);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let fp8 = |more: &str| of(&format!(r#""quant_method": "fp8", {more}"#)).unwrap_err();
        for (error, key, word) in [
            (
                of(r#""quant_method": "awq", "bits": 4"#).unwrap_err(),
                "quant_method",
                "awq",
            ),
            (
                of(r#""quant_method": "mxfp4""#).unwrap_err(),
                "quant_method",
                "mxfp4",
            ),
            (of(r#""bits": 4"#).unwrap_err(), "quant_method", "\"\""),
            (fp8(r#""fmt": "e5m2""#), "fmt", "e5m2"),
            (
                fp8(r#""weight_block_size": [64, 128]"#),
                "weight_block_size",
                "[64, 128]",
            ),
            (
                fp8(r#""activation_scheme": "static""#),
                "activation_scheme",
                "--accept-key quantization_config.activation_scheme",
            ),
            (fp8(r#""rotation": {"size": 64}"#), "rotation.size", "64"),
            (
                of(&CHANNEL.replace(
                    "\"num_bits\": 8, \"observer\": \"minmax\"",
                    "\"num_bits\": 4",
                ))
                .unwrap_err(),
                "config_groups.group_0.weights.num_bits",
                "4",
            ),
            (
                of(&CHANNEL.replace(r#"["Linear"]"#, r#"["re:.*down_proj"]"#)).unwrap_err(),
                "config_groups.group_0.targets",
                "down_proj",
            ),
            (
                of(&CHANNEL.replace("float-quantized", "pack-quantized")).unwrap_err(),
                "format",
                "pack-quantized",
            ),
            (
                of(r#""quant_method": "compressed-tensors""#).unwrap_err(),
                "config_groups",
                "group",
            ),
        ] {
            assert!(
                error.contains(&format!("quantization_config.{key}`")) && error.contains(word),
                "{error}"
            );
        }
    }

    #[test]
    fn blocks_of_a_size_that_is_not_said_are_refused() {
        let block = CHANNEL.replace(r#""strategy": "channel""#, r#""strategy": "block""#);
        assert!(of(&block).unwrap_err().contains("block_structure"));
    }

    #[test]
    fn an_accepted_key_leaves_its_tensors_unread() {
        let flat = flat(r#""quant_method": "fp8", "activation_scheme": "static""#);
        let accept = ["quantization_config.activation_scheme".to_owned()];
        assert_eq!(
            read(&flat, &accept).unwrap().unwrap().unread,
            ["*.input_scale"]
        );
    }

    #[test]
    fn patterns_of_modules() {
        let q = |pattern: &str| Quantization {
            blocks: false,
            scale_names: ["weight_scale", "weight_scale_inv"],
            skip: vec![pattern.to_owned()],
            unread: Vec::new(),
        };
        assert!(q("re:.*lm_head").skips("lm_head") && q("re:.*lm_head").skips("model.lm_head"));
        assert!(q("re:.*mlp\\.gate$").skips("model.layers.1.mlp.gate"));
        assert!(!q("re:.*mlp\\.gate$").skips("model.layers.1.mlp.gate_proj"));
        assert!(!q("re:visual.*").skips("model.visual.x") && q("re:visual.*").skips("visual.x"));
    }
}
