// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler: planner, step plans, effects, router traits, the effect trace and the one driver loop.
//!
//! The planner is a pure function of state and clock. This crate depends on no model and no device; it reaches the KV cache
//! through a trait and owns its own fault scope.

#![forbid(unsafe_code)]
