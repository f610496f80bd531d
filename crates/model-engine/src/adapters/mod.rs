// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adapters: the traits of crates that may not know each other, implemented over each other.

mod device_router;
mod guesses;
mod host_tier;
mod kv_accounts;
mod pages;

pub use device_router::ModelRouter;
pub use guesses::{Guess, Guesses};
pub use host_tier::{HostSpill, HostTier, StepPace, TierStats};
pub use kv_accounts::CacheAccounts;
pub use pages::TierError;
