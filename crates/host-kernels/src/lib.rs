// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of the `cpu` hardware class, in Rust, and the persistent thread team that runs them.
//!
//! A [`HostPoint`] is one point of a kernel family: its argument list, what its buffers must be, how a launch is cut into
//! tiles, and the code of a tile. [`points`] is the registry. Each family's module opens with its *reduction spec*: the
//! order and the rounding of every sum. Every instruction-set path, tile size and thread count gives the same bits; that
//! is what the tests compare.
//!
//! `unsafe` is confined to [`args`] (arena spans into slices, disjoint by construction), [`team`] (one cell that the
//! thread with the right to advance writes) and the vector paths.
//!
//! | module | families |
//! |---|---|
//! | `elementwise` | add, swiglu, gather_rows |
//! | `norm` | rmsnorm, add_rmsnorm, qk_norm |
//! | `quantize` | quantize, rmsnorm_quantize, add_rmsnorm_quantize, swiglu_quantize |
//! | `fp8` | quantize_f8_row, quantize_f8_block |
//! | `rope` | rope_angles, rope |
//! | `kv`, `attention` | tables, kv_write, attention, attention_ext, latent_attention |
//! | `linear` | linear, expert_linear |
//! | `experts` | router, expert_glu, expert_sum |
//! | `latent` | head_norm, rope_part, latent_write |
//! | `variants` | scale, softcap, geglu |
//! | `embed`, `pack`, `formats`, [`layout`] | embed, pack, and the packed layout |
//! | `recurrent` | conv1d, gated_delta, ssm_scan, gated_norm, sigmoid_gate, relu2 |
//! | `sample` | sample |
//! | `fill`, `gauge` | fill (weights of a model without any); read and peak (what the machine can do) |
//!
//! # Measured
//! On an AMD EPYC of family 26 (Zen 5), 2 virtual cores at 2.6 GHz, builds held off for the team's figures (AVX2 path):
//!
//! - `cargo bench -p metrale-host-kernels --bench team`: a step of 300 empty launches on two threads takes 14 us (one tile
//!   each) to 45 us (eight), mean of 400 steps. Beside a process that holds one core, 300 launches of real tiles that take
//!   13.0 ms on one thread alone take 12.6 to 12.9 ms on two. With three and more busy processes on the two cores, two
//!   threads were between 0.8 and 1.6 times as fast as one in the same minute: not better than that yet.
//! - `cargo bench -p metrale-gpu-runtime --bench linear`: products and weight bytes per second of every format.
//! - `cargo bench -p metrale-gpu-runtime --bench smollm2`: steps with the shapes of SmolLM2-135M, whole and by kind of launch.

// Lanes are written `for i in 0..8` over several arrays at once: that is what the vectoriser reads best.
#![allow(clippy::needless_range_loop)]

pub mod args;
mod attention;
mod decl;
mod elementwise;
mod embed;
mod experts;
mod fill;
mod formats;
mod fp8;
mod gauge;
mod isa;
mod kv;
mod lanes;
mod latent;
pub mod layout;
mod linear;
mod norm;
mod pack;
pub mod point;
mod quantize;
mod recurrent;
mod rope;
mod sample;
mod scratch;
pub mod team;
mod tiling;
mod variants;

pub use isa::Isa;
pub use layout::packed_bytes;
pub use point::{HostLaunch, HostPoint, Need, TileFault};
pub use quantize::{A16_BLOCK, A16Block};
pub use scratch::Scratch;

/// Every point of class cpu.
pub fn points() -> impl Iterator<Item = &'static HostPoint> {
    static SINGLE: [&HostPoint; 29] = [
        &kv::TABLES,
        &rope::ROPE_ANGLES,
        &rope::ROPE,
        &elementwise::ADD,
        &elementwise::SWIGLU,
        &elementwise::GATHER_ROWS,
        &norm::RMSNORM,
        &norm::ADD_RMSNORM,
        &norm::QK_NORM,
        &quantize::QUANTIZE,
        &quantize::RMSNORM_QUANTIZE,
        &quantize::ADD_RMSNORM_QUANTIZE,
        &quantize::SWIGLU_QUANTIZE,
        &recurrent::CONV1D,
        &recurrent::GATED_DELTA,
        &recurrent::SSM_SCAN,
        &recurrent::GATED_NORM,
        &recurrent::SIGMOID_GATE,
        &recurrent::RELU2,
        &sample::SAMPLE,
        &gauge::READ,
        &variants::SCALE,
        &variants::SOFTCAP,
        &variants::GEGLU,
        &latent::HEAD_NORM,
        &latent::ROPE_PART,
        &experts::ROUTER,
        &experts::GLU,
        &experts::SUM,
    ];
    SINGLE
        .into_iter()
        .chain(&embed::POINTS)
        .chain(&linear::PLAIN_POINTS)
        .chain(&linear::A16_POINTS)
        .chain(&linear::FP8_POINTS)
        .chain(pack::points())
        .chain(&fp8::POINTS)
        .chain(&linear::EXPERT_PLAIN_POINTS)
        .chain(&linear::EXPERT_A16_POINTS)
        .chain(&kv::KV_WRITE)
        .chain(&attention::POINTS)
        .chain(&attention::EXT_POINTS)
        .chain(&attention::LATENT_POINTS)
        .chain(&latent::LATENT_WRITE)
        .chain(&fill::POINTS)
        .chain(&gauge::PEAKS)
}

/// A point by its id.
#[must_use]
pub fn point(id: &str) -> Option<&'static HostPoint> {
    points().find(|p| p.id == id)
}
