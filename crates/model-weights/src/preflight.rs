// SPDX-License-Identifier: MIT OR Apache-2.0
//! Preflight: the store against what the model expects, before anything is loaded.
//!
//! The list of expected tensors comes as a value, from the circuit's instance through a family's name table. What the
//! model does not expect matters as much as what it lacks: a bias that nobody reads means wrong answers, so it is refused
//! unless its name is known to carry nothing.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use metrale_core::Elem;
use thiserror::Error;

use crate::WeightStore;

/// Tensors that older checkpoints save although they follow from the configuration. `*` stands for any text.
pub const HARMLESS: &[&str] = &[
    "*.rotary_emb.inv_freq",
    "*rotary_pos_emb.inv_freq",
    "*.attn.masked_bias",
    "*.position_ids",
];

/// Problems that a message spells out; the rest is counted.
const SHOWN: usize = 8;

/// One tensor that the model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// Its dimensions, outermost first.
    pub shape: &'a [u64],
    /// Formats that can be loaded; empty = any.
    pub formats: &'a [Elem],
    /// Whether the checkpoint may lack it (a tied head).
    pub optional: bool,
}

/// One disagreement between store and model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The model reads it, the checkpoint has it not.
    Missing {
        /// The tensor.
        tensor: String,
        /// The shape expected.
        shape: Vec<u64>,
    },
    /// It has another shape.
    Misshapen {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape in the file.
        found: Vec<u64>,
        /// The shape expected.
        expected: Vec<u64>,
    },
    /// It is in a format that cannot be loaded there.
    Format {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The format in the file.
        found: Elem,
        /// The formats that can.
        allowed: Vec<Elem>,
    },
    /// The checkpoint has it, the model reads it not.
    Unexpected {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing { tensor, shape } => write!(
                f,
                "tensor `{tensor}` {shape:?} is missing; fetch the checkpoint again, or its \
                 config does not belong to it"
            ),
            Problem::Misshapen {
                file,
                tensor,
                found,
                expected,
            } => write!(
                f,
                "{}: tensor `{tensor}` has shape {found:?}, the config asks for {expected:?}; \
                 config and weights are of different models",
                file.display()
            ),
            Problem::Format {
                file,
                tensor,
                found,
                allowed,
            } => {
                write!(
                    f,
                    "{}: tensor `{tensor}` is {found}, which can be loaded as",
                    file.display()
                )?;
                for (i, elem) in allowed.iter().enumerate() {
                    write!(f, "{} {elem}", if i == 0 { "" } else { "," })?;
                }
                f.write_str(" only; use another quantization of the model")
            }
            Problem::Unexpected {
                file,
                tensor,
                shape,
            } => write!(
                f,
                "{}: tensor `{tensor}` {shape:?} is not one that this model family reads; \
                 fetch the checkpoint that its config describes: this one is of another variant",
                file.display()
            ),
        }
    }
}

/// A checkpoint that does not fit its model: every disagreement that was found.
#[derive(Debug, Error)]
#[error("the weights do not fit the model: {} problem(s){}", problems.len(), listed(problems))]
pub struct PreflightError {
    /// All of them: first as the model expects, then the unexpected in file order.
    pub problems: Vec<Problem>,
}

/// Compares `store` with `expected`. `allowed` names tensors that may be there unread, `*` standing for any text;
/// [`HARMLESS`] are always allowed. Gives the tensors that were allowed so.
///
/// # Errors
/// [`PreflightError`] with every problem, not the first alone.
pub fn preflight<'s, 'e>(
    expected: impl IntoIterator<Item = Expected<'e>>,
    allowed: &[&str],
    store: &'s WeightStore,
) -> Result<Vec<&'s str>, PreflightError> {
    let mut problems = Vec::new();
    let mut read = HashSet::new();
    for want in expected {
        read.insert(want.name);
        match store.get(want.name) {
            Some(tensor) => {
                let file = || store.path_of(tensor).to_owned();
                if tensor.shape != want.shape {
                    problems.push(Problem::Misshapen {
                        file: file(),
                        tensor: tensor.name.clone(),
                        found: tensor.shape.clone(),
                        expected: want.shape.to_vec(),
                    });
                }
                if !want.formats.is_empty() && !want.formats.contains(&tensor.elem) {
                    problems.push(Problem::Format {
                        file: file(),
                        tensor: tensor.name.clone(),
                        found: tensor.elem,
                        allowed: want.formats.to_vec(),
                    });
                }
            }
            None if want.optional => {}
            None => problems.push(Problem::Missing {
                tensor: want.name.to_owned(),
                shape: want.shape.to_vec(),
            }),
        }
    }
    let mut unread = Vec::new();
    for tensor in store
        .tensors()
        .iter()
        .filter(|t| !read.contains(t.name.as_str()))
    {
        if HARMLESS
            .iter()
            .chain(allowed)
            .any(|pattern| matches(pattern, &tensor.name))
        {
            unread.push(tensor.name.as_str());
        } else {
            problems.push(Problem::Unexpected {
                file: store.path_of(tensor).to_owned(),
                tensor: tensor.name.clone(),
                shape: tensor.shape.clone(),
            });
        }
    }
    if problems.is_empty() {
        Ok(unread)
    } else {
        Err(PreflightError { problems })
    }
}

fn listed(problems: &[Problem]) -> String {
    let mut text: String = problems
        .iter()
        .take(SHOWN)
        .map(|p| format!("\n  {p}"))
        .collect();
    if problems.len() > SHOWN {
        text += &format!("\n  and {} more", problems.len() - SHOWN);
    }
    text
}

/// Whether `name` matches `pattern`, in which `*` stands for any text. Linear: each literal is taken at its first place.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(head) else {
        return false;
    };
    let mut literals = rest.split('*').peekable();
    while let Some(literal) = literals.next() {
        if literals.peek().is_none() {
            return left.ends_with(literal);
        }
        match left.find(literal) {
            Some(at) => left = &left[at + literal.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_any_text() {
        assert!(matches("a.b", "a.b") && !matches("a.b", "a.bc"));
        assert!(matches("*.inv_freq", "model.0.inv_freq") && !matches("*.inv_freq", "inv_freqs"));
        assert!(matches("mtp.*", "mtp.0.w") && matches("*", "") && matches("a*b*c", "a1b2b3c"));
        assert!(!matches("a*b*c", "a1c2b") && !matches("ab*b", "ab"));
    }
}
