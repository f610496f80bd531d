// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a checkpoint could not be opened or read.

use std::path::PathBuf;

use metrale_config::ConfigError;
use metrale_config::gguf::GgufError;
use metrale_config::json::JsonError;
use thiserror::Error;

use crate::safetensors::SafetensorsError;

/// A checkpoint that cannot be used: each variant names the file, and the tensor where there is one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file could not be opened or read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A path that is no regular file (a folder, a pipe, a device).
    #[error("{path}: not a regular file", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A small file (JSON, template) above the limit.
    #[error("{path}: larger than {limit} bytes, which no file of its kind should be", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, bytes.
        limit: u64,
    },
    /// A path that leads out of the checkpoint folder.
    #[error("{path}: {why}", path = path.display())]
    Escapes {
        /// The path as the checkpoint gives it.
        path: PathBuf,
        /// How it leads out, and what to do.
        why: String,
    },
    /// A safetensors header that does not hold.
    #[error("{path}: {source}", path = path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SafetensorsError,
    },
    /// A GGUF header that does not hold.
    #[error("{path}: {source}", path = path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: GgufError,
    },
    /// The parts of a split GGUF do not fit together.
    #[error("{path}: {why}", path = path.display())]
    GgufSplit {
        /// The part.
        path: PathBuf,
        /// What does not fit, and what to do.
        why: String,
    },
    /// The configuration does not hold.
    #[error("{path}: {source}", path = path.display())]
    Config {
        /// The folder or file that it was read from.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
    /// A shard index that does not parse.
    #[error("{path}: {source}", path = path.display())]
    IndexJson {
        /// The index file.
        path: PathBuf,
        /// Why.
        source: JsonError,
    },
    /// A shard index without the expected content.
    #[error("{path}: {why}", path = path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A shard that the index names is not there.
    #[error(
        "{path}: missing, but the index needs it for {tensors} tensors (`{example}` first); \
         fetch the checkpoint again",
        path = path.display()
    )]
    MissingShard {
        /// The shard.
        path: PathBuf,
        /// How many tensors it should hold.
        tensors: usize,
        /// One of them.
        example: String,
    },
    /// The index places a tensor in a shard that does not hold it.
    #[error("{path}: tensor `{tensor}` is not in it, although the index says so; index and shards are of different checkpoints", path = path.display())]
    NotInShard {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// One tensor name in two files.
    #[error("tensor `{tensor}` is both in {first} and in {second}", first = first.display(), second = second.display())]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A read outside of a tensor.
    #[error("tensor `{tensor}` has {bytes} bytes; {len} were asked at {offset}")]
    OutOfTensor {
        /// The tensor.
        tensor: String,
        /// Its size.
        bytes: u64,
        /// Where the read began.
        offset: u64,
        /// How long it was.
        len: u64,
    },
    /// The file ended before the tensor, though it was long enough when it was opened.
    #[error(
        "{path}: it shrank while it was read: tensor `{tensor}` ends early; \
         stop whatever writes the file, fetch it again and start anew",
        path = path.display()
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// The tensor being read.
        tensor: String,
    },
    /// Size or modification time differ from what they were when the file was opened.
    #[error(
        "{path}: it changed while it was loaded ({what}), so what was read may mix two versions; start anew",
        path = path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A path that is no checkpoint of a known kind.
    #[error("{path}: {why}", path = path.display())]
    Unrecognised {
        /// The path.
        path: PathBuf,
        /// What was found and what is expected.
        why: String,
    },
}

impl WeightsError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }
}
