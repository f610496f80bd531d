// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between whoever drives steps and a model.

mod model;

pub use model::{Model, RowResult};
