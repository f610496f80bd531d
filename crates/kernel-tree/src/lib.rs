// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository's `kernels/` manifests and sources, embedded in the binary.
//!
//! Code that reads the kernel tree (the server, which hands it down as a value) needs no checkout at run time.

#![forbid(unsafe_code)]
