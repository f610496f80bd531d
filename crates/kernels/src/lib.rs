// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel registry: the compiled kernels of `kernels/{hw}/{model}/{quant}` that this binary carries.
//!
//! Kernels are compiled ahead of time and embedded; nothing is compiled at run time. The registry answers which targets
//! and points a build holds.

#![forbid(unsafe_code)]
