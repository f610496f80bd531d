// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instruments: the metrics of serving, and what the engine counts.
//!
//! Whoever serves times its requests with a [`Meter`] and shows the page of [`Metrics`]; the engine's numbers come as a value
//! ([`EngineStats`]), so that nothing here knows an engine or an HTTP library. [`EnergyMeter`] tells what a GPU's board uses.

#![forbid(unsafe_code)]

mod energy;
mod metrics;
mod stats;

pub use energy::EnergyMeter;
pub use metrics::{Meter, Metrics, Stage};
/// The content type of [`Metrics::page`].
pub use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
pub use stats::EngineStats;
