// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model assembly: from a checkpoint to something that answers.
//!
//! ```text
//! Checkpoint --Prepared::new--> instance, recipes --Prepared::plan--> Plan --load--> TransformerModel --Engine::start--> requests
//! ```
//!
//! The [`Model`] trait is what drives a step; [`TransformerModel`] is its one
//! implementation, a plan bound and recorded. [`adapters`] join crates that may not know each other. There is no HTTP
//! here and no direct device call.

#![forbid(unsafe_code)]

pub mod adapters;
pub mod engine;
pub mod factory;
mod fp8;
pub mod gauge;
pub mod load;
pub mod model;
mod pools;
pub mod prepare;
pub mod traits;
pub mod verify;

pub use engine::{Engine, EngineOptions};
pub use load::{LoadError, load};
pub use model::TransformerModel;
pub use pools::KvPools;
pub use prepare::{PlanOptions, PrepareError, Prepared};
pub use traits::Model;
