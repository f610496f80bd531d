// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paged KV cache: blocks, the radix tree of prefixes, state slots and snapshots.
//!
//! Blocks hold 16 tokens, are reference-counted and copied on write; a hit is confirmed by comparing tokens. Bytes leave
//! and enter through a sink trait, so the cache knows no storage.

#![forbid(unsafe_code)]
