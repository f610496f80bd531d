// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one concrete model: a plan, bound and recorded.

mod programs;
mod reserved;
mod transformer;

pub use reserved::Reserved;
pub use transformer::{SetupError, TransformerModel};
