// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry of every `METRALE_*` environment variable ("lever").
//!
//! One table makes the check of the environment, the typed values and the reference page. A name that is not in it is
//! refused, with the nearest one suggested: a lever that is misspelt and silently ignored is worse than none. Levers of
//! kinds [`LeverKind::Build`] and [`LeverKind::Test`] belong to build scripts and to tests; `met` accepts them and they have
//! no effect on it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use thiserror::Error;

const PREFIX: &str = "METRALE_";

/// When a lever is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeverKind {
    /// By `met`, once at start.
    Run,
    /// By a build script.
    Build,
    /// By a test of the workspace.
    Test,
}

/// What a lever's value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeverType {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `1`/`true` or `0`/`false`.
    Flag,
    /// A path, in the system's own encoding.
    Path,
    /// Any UTF-8 text.
    Text,
}

/// One row of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lever {
    /// The variable's full name.
    pub name: &'static str,
    /// When it is read.
    pub kind: LeverKind,
    /// What its value must be.
    pub ty: LeverType,
    /// What holds where it is not set, in words.
    pub default: &'static str,
    /// What it does, one sentence.
    pub help: &'static str,
}

/// The whole registry, by name.
pub const LEVERS: &[Lever] = &[
    Lever {
        name: "METRALE_CPU_ISA",
        kind: LeverKind::Run,
        ty: LeverType::Choice(&["portable", "avx2", "avx512", "amx"]),
        default: "the best that the processor has",
        help: "Instruction set of the CPU kernels; results have the same bits on each.",
    },
    Lever {
        name: "METRALE_CUDA_WHEELS",
        kind: LeverKind::Build,
        ty: LeverType::Flag,
        default: "0",
        help: "Let the kernel build fetch its CUDA compiler through pip if it finds none.",
    },
    Lever {
        name: "METRALE_FAULT",
        kind: LeverKind::Run,
        ty: LeverType::Text,
        default: "none",
        help: "Faults to inject, for drills and tests, separated by commas: `hang=N` or `lose=N`, the N-th submission to the device never ends, or loses it (on a GPU by a kernel that runs for ever, or traps); `allocation=N`, the N-th allocation fails; `driver=12080`, `capability=8.0`, what a GPU is taken for.",
    },
    Lever {
        name: "METRALE_HOME",
        kind: LeverKind::Run,
        ty: LeverType::Path,
        default: "the user's cache folder, metrale/ in it",
        help: "Folder for downloads and state.",
    },
    Lever {
        name: "METRALE_KERNELS",
        kind: LeverKind::Build,
        ty: LeverType::Choice(&["auto", "off", "require"]),
        default: "auto",
        help: "Whether the build compiles GPU kernels: if it finds a compiler, never, or else it fails.",
    },
    Lever {
        name: "METRALE_NVCC",
        kind: LeverKind::Build,
        ty: LeverType::Path,
        default: "nvcc on PATH, if any",
        help: "The CUDA compiler of the kernel build.",
    },
    Lever {
        name: "METRALE_OFFLINE",
        kind: LeverKind::Run,
        ty: LeverType::Flag,
        default: "0",
        help: "Never use the network to find or fetch a model.",
    },
    Lever {
        name: "METRALE_TARGET_HW",
        kind: LeverKind::Build,
        ty: LeverType::Text,
        default: "every hardware class",
        help: "Hardware class whose kernels the build compiles.",
    },
    Lever {
        name: "METRALE_TARGET_MODEL",
        kind: LeverKind::Build,
        ty: LeverType::Text,
        default: "every model target",
        help: "Model target whose kernels the build compiles.",
    },
    Lever {
        name: "METRALE_TARGET_QUANT",
        kind: LeverKind::Build,
        ty: LeverType::Text,
        default: "every quantization target",
        help: "Quantization target whose kernels the build compiles.",
    },
    Lever {
        name: "METRALE_TEST_SMOLLM2",
        kind: LeverKind::Test,
        ty: LeverType::Path,
        default: "the file that `met pull smollm2-135m` fetched, if any",
        help: "SmolLM2-135M-Instruct.Q4_1.gguf, for the test of its greedy answers.",
    },
];

/// An environment that was refused. The blame is the operator's.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeverError {
    /// A `METRALE_*` name outside the registry.
    #[error(
        "environment variable {name} is not one that met knows{}",
        hint(nearest)
    )]
    Unknown {
        /// The name as set.
        name: String,
        /// The registered name that is closest, if one is close.
        nearest: Option<&'static str>,
    },
    /// A value that its lever does not take.
    #[error("environment variable {name} is {value:?}, expected {expected}")]
    Value {
        /// The lever.
        name: &'static str,
        /// The value as set, lossily decoded.
        value: String,
        /// What it takes.
        expected: String,
    },
}

fn hint(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(name) => format!("; did you mean {name}?"),
        None => {
            let names: Vec<_> = LEVERS.iter().map(|l| l.name).collect();
            format!("; it knows {}", names.join(", "))
        }
    }
}

/// A checked environment: the run levers that are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Levers {
    values: BTreeMap<&'static str, OsString>,
}

impl Levers {
    /// Checks every `METRALE_*` variable of `environment` (pass `std::env::vars_os()`). An empty value counts as not set.
    ///
    /// # Errors
    /// [`LeverError`] for an unknown name, or a run lever with a value that it does not take.
    pub fn from_env(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, LeverError> {
        let mut values = BTreeMap::new();
        for (name, value) in environment {
            let name = name.to_string_lossy();
            if !name.starts_with(PREFIX) {
                continue;
            }
            let Some(lever) = LEVERS.iter().find(|l| l.name == name) else {
                return Err(LeverError::Unknown {
                    nearest: nearest(&name),
                    name: name.into_owned(),
                });
            };
            if lever.kind == LeverKind::Run && !value.is_empty() {
                check(lever, &value)?;
                values.insert(lever.name, value);
            }
        }
        Ok(Self { values })
    }

    /// `METRALE_CPU_ISA`, if set.
    pub fn cpu_isa(&self) -> Option<&str> {
        self.values.get("METRALE_CPU_ISA")?.to_str()
    }

    /// `METRALE_FAULT`, if set.
    pub fn fault(&self) -> Option<&str> {
        self.values.get("METRALE_FAULT")?.to_str()
    }

    /// `METRALE_HOME`, if set.
    pub fn home(&self) -> Option<&Path> {
        self.values.get("METRALE_HOME").map(Path::new)
    }

    /// `METRALE_OFFLINE`; false if not set.
    pub fn offline(&self) -> bool {
        self.values
            .get("METRALE_OFFLINE")
            .and_then(|v| v.to_str())
            .and_then(flag)
            == Some(true)
    }

    /// The levers that are set, by name, for a start-up report.
    pub fn set(&self) -> impl Iterator<Item = (&'static str, PathBuf)> + '_ {
        self.values
            .iter()
            .map(|(name, value)| (*name, PathBuf::from(value)))
    }
}

fn check(lever: &Lever, value: &OsString) -> Result<(), LeverError> {
    let text = value.to_str();
    let (good, expected) = match lever.ty {
        LeverType::Choice(words) => (
            text.is_some_and(|t| words.contains(&t)),
            format!("one of {}", words.join(", ")),
        ),
        LeverType::Flag => (
            text.and_then(flag).is_some(),
            "1, true, 0 or false".to_owned(),
        ),
        LeverType::Path => (true, "a path".to_owned()),
        LeverType::Text => (text.is_some(), "UTF-8 text".to_owned()),
    };
    if good {
        return Ok(());
    }
    let value = value.to_string_lossy().into_owned();
    Err(LeverError::Value {
        name: lever.name,
        value,
        expected,
    })
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// The registered name within a third of `name`'s length in edits, the closest first.
fn nearest(name: &str) -> Option<&'static str> {
    // The prefix is common to all, so it does not count; a name of any length is cut to what can be near.
    let tail: Vec<char> = name.chars().skip(PREFIX.len()).take(64).collect();
    LEVERS
        .iter()
        .map(|l| (edits(&tail, &l.name[PREFIX.len()..]), l.name))
        .min()
        .filter(|(distance, _)| *distance <= (tail.len() / 3).max(2))
        .map(|(_, name)| name)
}

/// Levenshtein distance, one row at a time.
fn edits(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levers(pairs: &[(&str, &str)]) -> Result<Levers, LeverError> {
        Levers::from_env(
            pairs
                .iter()
                .map(|(k, v)| (OsString::from(k), OsString::from(v))),
        )
    }

    #[test]
    fn the_registry_is_sorted_and_prefixed() {
        assert!(LEVERS.is_sorted_by(|a, b| a.name < b.name));
        assert!(
            LEVERS
                .iter()
                .all(|l| l.name.starts_with(PREFIX) && l.help.ends_with('.'))
        );
    }

    #[test]
    fn values_are_typed() {
        let set = levers(&[
            ("METRALE_CPU_ISA", "portable"),
            ("METRALE_OFFLINE", "true"),
            ("METRALE_HOME", "x/y"),
            ("METRALE_NVCC", "anything"),
            ("PATH", "z"),
        ])
        .unwrap();
        assert_eq!(set.cpu_isa(), Some("portable"));
        assert!(set.offline());
        assert_eq!(set.home(), Some(Path::new("x/y")));
        assert_eq!(
            set.set().count(),
            3,
            "a build lever has no value at run time"
        );
        assert!(!levers(&[("METRALE_OFFLINE", "0")]).unwrap().offline());
        assert_eq!(
            levers(&[("METRALE_CPU_ISA", "")]).unwrap(),
            Levers::default()
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_near_one() {
        let near = |name| match levers(&[(name, "1")]).unwrap_err() {
            LeverError::Unknown { nearest, .. } => nearest,
            e => panic!("{e}"),
        };
        assert_eq!(near("METRALE_OFLINE"), Some("METRALE_OFFLINE"));
        assert_eq!(near("METRALE_CPUISA"), Some("METRALE_CPU_ISA"));
        assert_eq!(near("METRALE_SOMETHING_ELSE"), None);
        let message = levers(&[("METRALE_HOM", "1")]).unwrap_err().to_string();
        assert!(message.ends_with("did you mean METRALE_HOME?"), "{message}");
    }

    #[test]
    fn a_value_out_of_its_type_is_refused() {
        let e = levers(&[("METRALE_CPU_ISA", "sse9")]).unwrap_err();
        assert_eq!(
            e.to_string(),
            "environment variable METRALE_CPU_ISA is \"sse9\", expected one of portable, avx2, avx512, amx"
        );
        assert!(levers(&[("METRALE_OFFLINE", "yes")]).is_err());
    }
}
