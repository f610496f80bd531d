// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine counts.

/// Counters and gauges of the engine, read when somebody asks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Sequences that run.
    pub running: u64,
    /// Sequences that wait for a slot or for blocks.
    pub waiting: u64,
    /// Blocks of the KV pool in use by sequences.
    pub kv_blocks_used: u64,
    /// Blocks of the KV pool.
    pub kv_blocks: u64,
    /// Tokens in a block.
    pub block_tokens: u64,
    /// Tokens looked up in the prefix cache since the start.
    pub prefix_queries: u64,
    /// Tokens of them that were found.
    pub prefix_hits: u64,
    /// Sequences preempted since the start.
    pub preemptions: u64,
    /// Draft tokens that were run.
    pub drafted: u64,
    /// Of these, those that became tokens of an answer.
    pub accepted: u64,
    /// Steps done since the start.
    pub steps: u64,
    /// Times the engine loop was begun again after a fault of its own.
    pub restarts: u64,
}
