// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weight stores and loaders: safetensors and GGUF files, checkpoints, and preflight.
//!
//! [`Checkpoint::open`] recognises what a path holds and reads its headers; [`WeightStore`] then reads tensors by
//! position. Files are read by `pread` into the caller's memory, so that a shrunken file is a short read and an error
//! instead of a fault. [`preflight()`] compares the store against the expected tensor list, which comes as a value.
//!
//! ```no_run
//! use metrale_model_weights::Checkpoint;
//!
//! let checkpoint = Checkpoint::open("model.gguf")?;
//! if let Some(store) = &checkpoint.store {
//!     for tensor in store.tensors() {
//!         let mut row = vec![0; tensor.row_bytes() as usize];
//!         store.read_at(tensor, 0, &mut row)?;
//!     }
//!     store.finish()?;
//! }
//! # Ok::<(), metrale_model_weights::WeightsError>(())
//! ```

#![forbid(unsafe_code)]

mod checkpoint;
mod error;
mod file;
mod fingerprint;
mod open_gguf;
mod open_safetensors;
mod paths;
pub mod preflight;
pub mod safetensors;
mod store;

pub use checkpoint::{Checkpoint, CheckpointFiles};
pub use error::WeightsError;
pub use file::read_small;
pub use preflight::{Expected, PreflightError, Problem, preflight};
pub use store::{StoredTensor, WeightStore};
