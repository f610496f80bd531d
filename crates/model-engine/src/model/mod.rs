// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one concrete model: a plan, bound and recorded.

mod programs;
mod transformer;

pub use transformer::{SetupError, TransformerModel};
