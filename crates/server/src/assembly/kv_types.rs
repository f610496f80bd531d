// SPDX-License-Identifier: MIT OR Apache-2.0
//! Element types of the KV cache, for all layers and for some.

use std::str::FromStr;

use metrale_circuit::{Instance, KvFormats};
use metrale_core::Elem;

use crate::digits::whole;

/// Names of the types that a KV cache can have, as flags take them.
pub const KV_TYPES: &[&str] = &["f16", "bf16", "f32", "int8", "fp8"];

/// The type of a name.
#[must_use]
pub fn kv_type(name: &str) -> Option<Elem> {
    match name {
        "f32" => Some(Elem::F32),
        "bf16" => Some(Elem::BF16),
        "f16" => Some(Elem::F16),
        "int8" => Some(Elem::I8),
        "fp8" => Some(Elem::F8E4M3),
        _ => None,
    }
}

/// `--kv-cache-dtype-layers`: types of some layers, e.g. `0-3=f16,last=bf16`. What stands later wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayers(Vec<(Which, Elem)>);

/// Which layers an entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// From one to another, counted from 0. Layers without a KV cache between them are passed over.
    Range(u32, u32),
    First,
    Last,
    /// Those that see a window of keys.
    Sliding,
    /// Those that see all keys.
    Full,
}

/// The text of `--kv-cache-dtype-layers` does not read, or does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvLayersError {
    /// An entry that says nothing.
    #[error(
        "--kv-cache-dtype-layers: `{0}` is no LAYERS=TYPE; write it like 0-3=f16,last=bf16, with a layer (from 0), a range, first, last, full or sliding"
    )]
    Entry(String),
    /// A type that is none.
    #[error("--kv-cache-dtype-layers: there is no type `{name}`; it can be one of {}", KV_TYPES.join(", "))]
    Type {
        /// The name.
        name: String,
    },
    /// Layers that the model does not have.
    #[error(
        "--kv-cache-dtype-layers: the model has no such layer with a KV cache as `{which}`; those that have one are {}",
        runs(has)
    )]
    Layers {
        /// What was asked for.
        which: String,
        /// Layers with a KV cache, ascending.
        has: Vec<u32>,
    },
}

impl FromStr for KvLayers {
    type Err = KvLayersError;

    fn from_str(text: &str) -> Result<KvLayers, KvLayersError> {
        let entries = text.split(',').map(|entry| {
            let bad = || KvLayersError::Entry(entry.to_owned());
            let (which, name) = entry.split_once('=').ok_or_else(bad)?;
            let which = which_of(which.trim()).ok_or_else(bad)?;
            let name = name.trim();
            let elem = kv_type(name).ok_or_else(|| KvLayersError::Type {
                name: name.to_owned(),
            })?;
            Ok((which, elem))
        });
        entries.collect::<Result<_, _>>().map(KvLayers)
    }
}

fn which_of(text: &str) -> Option<Which> {
    match text {
        "first" => Some(Which::First),
        "last" => Some(Which::Last),
        "sliding" => Some(Which::Sliding),
        "full" => Some(Which::Full),
        _ => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (whole(first)?, whole(last)?);
            (first <= last).then_some(Which::Range(first, last))
        }
    }
}

impl KvLayers {
    /// Whether no layer is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The formats of a model whose other layers have `all`.
    ///
    /// # Errors
    /// [`KvLayersError::Layers`].
    pub fn formats(&self, all: Elem, instance: &Instance) -> Result<KvFormats, KvLayersError> {
        let has = instance.kv_layers();
        let mut formats = KvFormats::all(all);
        for (which, elem) in &self.0 {
            let named: Vec<u32> = match *which {
                Which::Range(_, last) if last >= instance.layers() => Vec::new(),
                Which::Range(first, last) => {
                    let within = has.iter().filter(|l| (first..=last).contains(l));
                    within.copied().collect()
                }
                Which::First => has.first().copied().into_iter().collect(),
                Which::Last => has.last().copied().into_iter().collect(),
                Which::Sliding | Which::Full => {
                    let sliding = *which == Which::Sliding;
                    let like = |l: &&u32| instance.window(**l).is_some() == sliding;
                    has.iter().filter(like).copied().collect()
                }
            };
            if named.is_empty() {
                return Err(KvLayersError::Layers {
                    which: which.to_string(),
                    has,
                });
            }
            formats.layers.extend(named.iter().map(|l| (*l, *elem)));
        }
        Ok(formats)
    }
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Range(first, last) if first == last => write!(f, "{first}"),
            Which::Range(first, last) => write!(f, "{first}-{last}"),
            Which::First => f.write_str("first"),
            Which::Last => f.write_str("last"),
            Which::Sliding => f.write_str("sliding"),
            Which::Full => f.write_str("full"),
        }
    }
}

/// `0-3, 7` for 0, 1, 2, 3, 7.
fn runs(layers: &[u32]) -> String {
    let runs = layers.chunk_by(|a, b| a + 1 == *b);
    let text = runs.map(|run| Which::Range(run[0], run[run.len() - 1]).to_string());
    match layers {
        [] => "none".to_owned(),
        _ => text.collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use metrale_model_engine::Prepared;
    use metrale_model_weights::Checkpoint;

    use super::*;

    fn formats(name: &str, text: &str) -> Result<String, String> {
        let path = format!(
            "{}/../../tests/fixtures/tiny/{name}",
            env!("CARGO_MANIFEST_DIR")
        );
        let library = crate::assembly::library().unwrap();
        let prepared = Prepared::new(&library, Checkpoint::open(path).unwrap(), &[]).unwrap();
        let layers: KvLayers = text.parse().map_err(|e: KvLayersError| e.to_string())?;
        let formats = layers.formats(Elem::F32, &prepared.instance);
        formats.map(|f| f.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn layers_by_number_place_and_kind() {
        let shown = |name, text| formats(name, text).unwrap();
        assert_eq!(shown("llama", "0-1=f16, last=bf16"), "f32 (0 f16, 1 bf16)");
        assert_eq!(shown("llama", "0-1=f16,1=f32"), "f32 (0 f16)");
        assert_eq!(shown("llama", "0=int8,1=int8"), "f32 (0-1 int8)");
        // Every second layer of this one slides, from the first on.
        assert_eq!(shown("gemma3", "sliding=fp8"), "f32 (0 fp8)");
        assert_eq!(
            shown("gemma3", "full=bf16,first=f16"),
            "f32 (0 f16, 1 bf16)"
        );
        // Only the last layer of this one has a KV cache.
        assert_eq!(shown("qwen3-next", "0-1=f16"), "f32 (1 f16)");
    }

    #[test]
    fn what_does_not_read_or_fit_is_named() {
        let said = |name, text| formats(name, text).unwrap_err();
        for (text, word) in [
            ("", "``"),
            ("3", "`3`"),
            ("+1=f16", "+1=f16"),
            ("0-+1=f16", "0-+1=f16"),
            ("3-1=f16", "3-1=f16"),
            ("middle=f16", "middle=f16"),
            ("0=f12", "`f12`; it can be one of f16, bf16, f32, int8, fp8"),
            ("0-4=f16", "`0-4`; those that have one are 0-1"),
            ("sliding=f16", "`sliding`"),
        ] {
            let e = said("llama", text);
            assert!(e.contains(word), "{text}: {e}");
        }
        let e = said("qwen3-next", "0=f16");
        assert!(e.contains("`0`; those that have one are 1"), "{e}");
    }
}
