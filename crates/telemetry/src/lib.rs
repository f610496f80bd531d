// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics, traces and progress: what the engine tells about itself, and its exporters.
//!
//! It holds the run metrics under the names that the field's scrapers expect, the launch trace and the progress hooks.

#![forbid(unsafe_code)]
