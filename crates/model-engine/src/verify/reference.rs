// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reference file: what `scripts/refs/make_tiny_refs.py` writes.

use std::path::{Path, PathBuf};

use metrale_core::Elem;
use metrale_model_weights::safetensors;

/// Reference ids and logits of one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// Logits of every row of the prompt, `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Columns of `logits`.
    pub vocab: u32,
    /// The greedy continuation.
    pub greedy_ids: Vec<u32>,
    /// Margin of its tokens over the second best.
    pub greedy_gap: Vec<f32>,
    /// Largest difference between the reference in f32 and in f64, where the script recorded it.
    pub f64_diff: Option<f32>,
    /// Largest difference that rounding the inputs of all linear layers makes, each token as the checkpoint's fp8 scheme says,
    /// where the script recorded it.
    pub f8_diff: Option<f32>,
    /// Largest difference that roundings to bf16 make, before and after all linear layers, where the script recorded it: for
    /// models that amplify them.
    pub bf16_diff: Option<f32>,
    /// Greedy steps before the first in which such roundings come near to another choice of experts, where the script recorded
    /// it. (Rows of the prompt do not: the script chooses it so.)
    pub greedy_clear: Option<u32>,
}

/// A reference file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ReferenceError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what is expected.
    pub why: String,
}

impl Reference {
    /// Reads a reference file.
    ///
    /// # Errors
    /// [`ReferenceError`] names the file, and the tensor that is missing or misshapen.
    pub fn read(path: &Path) -> Result<Reference, ReferenceError> {
        let fail = |why: String| ReferenceError {
            path: path.to_owned(),
            why,
        };
        let bytes = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
        Reference::parse(&bytes).map_err(fail)
    }

    fn parse(bytes: &[u8]) -> Result<Reference, String> {
        let file = File::open(bytes)?;
        let input_ids = file.ids("input_ids")?;
        let greedy_ids = file.ids("greedy_ids")?;
        let greedy_gap = file.floats("greedy_gap")?;
        let logits = file.floats("logits")?;
        if input_ids.is_empty()
            || logits.is_empty()
            || !logits.len().is_multiple_of(input_ids.len())
        {
            return Err(format!(
                "logits has {} values for {} input ids",
                logits.len(),
                input_ids.len()
            ));
        }
        if greedy_gap.len() != greedy_ids.len() {
            return Err(format!(
                "greedy_gap has {} values, greedy_ids {}",
                greedy_gap.len(),
                greedy_ids.len()
            ));
        }
        let recorded = |name| file.floats(name).ok()?.first().copied();
        let vocab = (logits.len() / input_ids.len()) as u32;
        if let Some(id) = input_ids.iter().chain(&greedy_ids).find(|id| **id >= vocab) {
            return Err(format!("token {id} lies outside the vocabulary of {vocab}"));
        }
        Ok(Reference {
            input_ids,
            logits,
            vocab,
            greedy_ids,
            greedy_gap,
            f64_diff: recorded("logits_f64_diff"),
            f8_diff: recorded("logits_f8_diff"),
            bf16_diff: recorded("logits_bf16_diff"),
            greedy_clear: file
                .ids("greedy_clear")
                .ok()
                .and_then(|n| n.first().copied()),
        })
    }

    /// Logits of row `index`, `[vocab]`.
    ///
    /// # Panics
    /// If the prompt has no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        let vocab = self.vocab as usize;
        &self.logits[index * vocab..(index + 1) * vocab]
    }
}

struct File<'a> {
    bytes: &'a [u8],
    tensors: Vec<safetensors::HeaderTensor>,
}

impl<'a> File<'a> {
    fn open(bytes: &'a [u8]) -> Result<File<'a>, String> {
        let tensors =
            safetensors::read_header(bytes, bytes.len() as u64).map_err(|e| e.to_string())?;
        Ok(File { bytes, tensors })
    }

    fn data(&self, name: &str, elem: Elem) -> Result<&'a [u8], String> {
        let tensor = self.tensors.iter().find(|t| t.name == name);
        let tensor = tensor
            .ok_or_else(|| format!("tensor {name} is missing; scripts/refs makes such files"))?;
        if tensor.elem != elem {
            return Err(format!("tensor {name} is {}, expected {elem}", tensor.elem));
        }
        Ok(&self.bytes[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize])
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>, String> {
        let words = self.data(name, Elem::I64)?.chunks_exact(8);
        words
            .map(|w| {
                let id = i64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]);
                u32::try_from(id)
                    .map_err(|_| format!("tensor {name} holds {id}, which is no token id"))
            })
            .collect()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, String> {
        let words = self.data(name, Elem::F32)?.chunks_exact(4);
        Ok(words
            .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
            .collect())
    }
}
