// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of `quantization_config`, by who wrote it, and what each may be.

/// What a key may be.
pub(super) enum Rule {
    /// One of these.
    Is(&'static [&'static str]),
    /// Anything: it says who wrote the file, or how scales were found.
    Any,
    /// A list of modules.
    Modules,
    /// One of these, or the user's risk: then these tensors go unread.
    IsOr(
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
    ),
}

use Rule::{Any, Is, IsOr, Modules};

const NO_STATIC: &str =
    "activations are scaled as they come, which is finer than a scale fixed beforehand";
const NO_KV: &str = "the KV cache has a format of its own (--kv-cache-dtype)";
const INPUTS: &[&str] = &["*.input_scale"];
const KV: &[&str] = &["*.k_scale", "*.v_scale", "*.kv_scale"];

pub(super) const FP8: &[(&str, Rule)] = &[
    ("quant_method", Any),
    ("fmt", Is(&["e4m3"])),
    ("activation_scheme", IsOr(&["dynamic"], NO_STATIC, INPUTS)),
    ("weight_block_size", Is(&["[128, 128]"])),
    ("modules_to_not_convert", Modules),
    ("ignored_layers", Modules),
    ("ignore", Modules),
    // How activations' scales are rounded elsewhere; weights' scales are what is stored.
    ("scale_fmt", Is(&["ue8m0", "float"])),
    ("is_checkpoint_fp8_serialized", Is(&["true"])),
    ("dequantize", Is(&["false"])),
    ("kv_cache_scheme", IsOr(&[], NO_KV, KV)),
    ("kv_cache_quant_method", IsOr(&[], NO_KV, KV)),
];

pub(super) const COMPRESSED: &[(&str, Rule)] = &[
    ("quant_method", Any),
    ("format", Is(&["float-quantized", "naive-quantized"])),
    ("quantization_status", Is(&["compressed", "frozen"])),
    ("global_compression_ratio", Any),
    ("version", Any),
    ("ignore", Modules),
    ("sparsity_config.format", Is(&["dense"])),
    ("sparsity_config.*", Any),
    ("kv_cache_scheme.*", IsOr(&[], NO_KV, KV)),
    ("config_groups.*.targets", Is(&["[\"Linear\"]"])),
    (
        "config_groups.*.format",
        Is(&["float-quantized", "naive-quantized"]),
    ),
    ("config_groups.*.weights.num_bits", Is(&["8"])),
    ("config_groups.*.weights.type", Is(&["float"])),
    ("config_groups.*.weights.symmetric", Is(&["true"])),
    ("config_groups.*.weights.dynamic", Is(&["false"])),
    (
        "config_groups.*.weights.strategy",
        Is(&["channel", "tensor", "block"]),
    ),
    (
        "config_groups.*.weights.block_structure",
        Is(&["[128, 128]", "128x128"]),
    ),
    ("config_groups.*.weights.observer", Any),
    ("config_groups.*.weights.observer_kwargs.*", Any),
    ("config_groups.*.weights.scale_dtype", Any),
    ("config_groups.*.weights.zp_dtype", Any),
    ("config_groups.*.input_activations.num_bits", Is(&["8"])),
    ("config_groups.*.input_activations.type", Is(&["float"])),
    ("config_groups.*.input_activations.symmetric", Is(&["true"])),
    (
        "config_groups.*.input_activations.dynamic",
        IsOr(&["true"], NO_STATIC, INPUTS),
    ),
    (
        "config_groups.*.input_activations.strategy",
        Is(&["token", "tensor", "group"]),
    ),
    ("config_groups.*.input_activations.group_size", Is(&["128"])),
    (
        "config_groups.*.input_activations.block_structure",
        Is(&["[1, 128]", "1x128"]),
    ),
    ("config_groups.*.input_activations.observer", Any),
    ("config_groups.*.input_activations.observer_kwargs.*", Any),
    ("config_groups.*.input_activations.scale_dtype", Any),
    ("config_groups.*.input_activations.zp_dtype", Any),
];
