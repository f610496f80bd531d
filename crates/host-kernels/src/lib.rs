// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of the `cpu` hardware class, in Rust, and the persistent thread team that runs them.
//!
//! Each kernel family states its reduction spec; every instruction-set path and every thread count gives the same bits.
//! `unsafe` is confined to the vector paths and to the one module that turns arena spans into slices.
