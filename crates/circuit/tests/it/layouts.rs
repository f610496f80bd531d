// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a fast class states: layouts of packed tensors, shapes and row counts of points, scratch, renamed operands.

use metrale_circuit::{CircuitLibrary, Instance, Plan, Workload};
use metrale_core::{ArenaKind, Arg, Elem, RowRange};

use crate::common::{TINY_LLAMA, flat, hf, request};

const HARDWARE: &str =
    "[hardware]\nname = \"toy\"\ninherits = \"gb10\"\n[circuits]\nserves = [\"*\"]\n";

const POINTS: &str = r#"
[layouts.tiles]
elem = "bf16"
pack = "pack/bf16_tiles"
packed = "ceil(n, 128) * k * 2"
[layouts.pairs]
elem = "bf16"
pack = "pack/bf16_pairs"
packed = "ceil(n, 128) * k * 2"

[[point]]
id = "embed/bf16_tiles"
spec = "dequant_f32"
elems = { table = "bf16" }
layouts = { table = "tiles" }
when = "hidden % 64 == 0"

[[point]]
id = "to_bf16/f32"
spec = "round_even"

[[point]]
id = "linear/bf16_few"
spec = "k16_bf16"
elems = { x = "bf16", w = "bf16", y = "f32" }
layouts = { w = "tiles" }
when = "k % 64 == 0 && n >= 128"
rows = [0, 8]
peak = "bf16"

[[point]]
id = "linear/bf16_k16"
spec = "k16_bf16"
elems = { x = "bf16", w = "bf16", y = "f32" }
layouts = { w = "tiles" }
when = "k % 64 == 0"
peak = "bf16"

[[point]]
id = "linear_swiglu/bf16_k16"
spec = "k16_bf16"
elems = { x = "bf16", w = "bf16", h = "bf16" }
layouts = { w = "pairs" }
when = "k % 64 == 0 && ffn % 8 == 0"
peak = "bf16"

[[point]]
id = "add_rmsnorm_bf16/f32"
spec = "lanes512_bf16"
elems = { res = "f32", y = "bf16" }

[[point]]
id = "rope_kv_write/bf16"
spec = "half_f32"
pool = "panels"
elems = { qkv = "f32", k = "bf16", v = "bf16" }

[[point]]
id = "attention_bf16/tc"
spec = "cut256_step128_bf16"
pool = "panels"
elems = { qkv = "f32", k = "bf16", v = "bf16", a = "bf16" }
scratch = { scratch = "slots * heads * (head_dim + 2) * 4 + rows * kv_heads" }
"#;

/// The toy takes hopper's fusions.
fn library() -> CircuitLibrary {
    let mut files: Vec<(&str, &str)> = metrale_kernel_tree::files().collect();
    files.push(("toy/HARDWARE.toml", HARDWARE));
    files.push(("toy/KERNEL_FAMILIES.toml", POINTS));
    files.push((
        "toy/FUSIONS.toml",
        metrale_kernel_tree::file("hopper/FUSIONS.toml").unwrap(),
    ));
    CircuitLibrary::new(files).unwrap()
}

fn instance(changes: &[(&str, &str)]) -> Instance {
    let mut text = TINY_LLAMA.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    hf(&flat(&text)).unwrap()
}

const WIDE: (&str, &str) = ("intermediate_size = 96", "intermediate_size = 192");
const TIED: (&str, &str) = ("tie_word_embeddings = false", "tie_word_embeddings = true");

fn plan(instance: &Instance, elem: Elem, kv: Elem, fuse: bool) -> Plan {
    let formats = instance.uniform_formats(elem);
    let (mut request, kv) = (request(&formats), kv.into());
    (request.class, request.kv, request.fuse) = ("toy", &kv, fuse);
    library().plan(instance, &request).unwrap()
}

fn layer(plan: &Plan, layer: u32) -> Vec<&str> {
    let of_layer = plan.groups.iter().filter(|g| g.layer == Some(layer));
    of_layer.map(|g| g.points[0].1.as_str()).collect()
}

/// The pack point of a weight's first layer.
fn packed<'a>(plan: &'a Plan, name: &str) -> &'a str {
    let slots = plan.weights.iter();
    let mut parts = slots.flat_map(|s| s.parts.iter().filter(|p| p.key.name == name));
    let first = parts.next().unwrap();
    assert!(parts.all(|p| p.key != first.key), "{name} is packed twice");
    first.pack.as_str()
}

#[test]
fn a_layer_is_as_few_launches_as_the_fusions_allow() {
    let wide = plan(&instance(&[WIDE]), Elem::BF16, Elem::BF16, true);
    assert_eq!(
        layer(&wide, 1),
        [
            "add_rmsnorm_bf16/f32",
            "linear/bf16_few",
            "rope_kv_write/bf16",
            "attention_bf16/tc",
            "linear/bf16_k16",
            "add_rmsnorm_bf16/f32",
            "linear_swiglu/bf16_k16",
            "linear/bf16_k16",
        ]
    );
    // 96 columns of h are no whole tiles: the plain kernel takes them, in f32, and the product cannot disappear.
    let odd = plan(&instance(&[]), Elem::BF16, Elem::BF16, true);
    assert_eq!(
        layer(&odd, 1)[6..],
        ["linear/bf16_few", "swiglu/f32", "linear/bf16"]
    );
}

#[test]
fn each_tensor_lies_once_in_the_layout_of_its_readers() {
    let tied = plan(&instance(&[TIED, WIDE]), Elem::BF16, Elem::BF16, true);
    assert_eq!(packed(&tied, "embed"), "pack/bf16_tiles");
    assert_eq!(packed(&tied, "q_proj"), "pack/bf16_tiles");
    assert_eq!(packed(&tied, "gate_proj"), "pack/bf16_pairs");
    assert_eq!(packed(&tied, "down_proj"), "pack/bf16_tiles");
    let span = |name: &str| &tied.memory.spans[tied.memory.find(name).unwrap().0 as usize];
    // 320 rows padded to 384 of 64 values.
    assert_eq!(span("embed").bytes, 384 * 64 * 2);
    assert_eq!(span("L0.gate_proj+up_proj").bytes, 384 * 64 * 2);
    // Unfused, the same tensor lies as the plain product reads it.
    let unfused = plan(&instance(&[TIED, WIDE]), Elem::BF16, Elem::BF16, false);
    assert_eq!(packed(&unfused, "gate_proj"), "pack/bf16_tiles");
}

#[test]
fn a_shape_that_no_fast_point_takes_is_served_by_the_plain_one() {
    let odd = instance(&[TIED, ("hidden_size = 64", "hidden_size = 48")]);
    let odd = plan(&odd, Elem::BF16, Elem::BF16, true);
    assert_eq!(packed(&odd, "embed"), "pack/bf16");
    assert_eq!(packed(&odd, "q_proj"), "pack/bf16");
    assert_eq!(packed(&odd, "o_proj"), "pack/bf16_tiles");
    let f32 = plan(&instance(&[TIED]), Elem::F32, Elem::F32, true);
    let none = f32
        .groups
        .iter()
        .flat_map(|g| &g.points)
        .all(|(_, p)| !p.as_str().contains("bf16"));
    assert!(none);
}

#[test]
fn points_are_taken_by_row_count_and_shape() {
    let plan = plan(&instance(&[]), Elem::BF16, Elem::BF16, true);
    let points = |name: &str| {
        let group = plan.groups.iter().find(|g| g.name == name).unwrap();
        group
            .points
            .iter()
            .map(|(r, p)| (*r, p.as_str()))
            .collect::<Vec<_>>()
    };
    let few = RowRange { min: 0, max: 8 };
    let more = RowRange {
        min: 9,
        max: u32::MAX,
    };
    assert_eq!(
        points("L0.linear.qkv"),
        [(few, "linear/bf16_few"), (more, "linear/bf16_k16")]
    );
    assert_eq!(points("L0.linear.o"), [(RowRange::ALL, "linear/bf16_k16")]);
    let text = plan.show(&Workload::decode(1));
    assert!(text.contains("linear/bf16_few +1"), "{text}");
}

#[test]
fn scratch_is_one_buffer_for_all_launches() {
    let plan = plan(&instance(&[]), Elem::BF16, Elem::BF16, true);
    let id = plan.memory.find("attention_bf16.scratch").unwrap();
    let span = plan.memory.span(id);
    assert_eq!(span.arena, ArenaKind::State);
    assert_eq!(span.bytes, 8 * 4 * (16 + 2) * 4 + 64 * 2);
    let uses = |g: &&metrale_circuit::Group| {
        g.args
            .iter()
            .any(|a| matches!(a, Arg::Buf { span, .. } if *span == id))
    };
    assert_eq!(plan.groups.iter().filter(uses).count(), 4);
}

#[test]
fn a_fusion_is_not_taken_where_it_would_lose_an_operand() {
    let biased = instance(&[WIDE, ("mlp_bias = false", "mlp_bias = true")]);
    let plan = plan(&biased, Elem::BF16, Elem::BF16, true);
    assert!(!layer(&plan, 0).contains(&"linear_swiglu/bf16_k16"));
    assert!(layer(&plan, 0).contains(&"swiglu/f32"));
}

#[test]
fn the_pool_lies_in_one_way() {
    // Products of f32 weights take no bf16: attention stays plain, and with it what writes the pool.
    let instance = instance(&[WIDE]);
    let mixed = plan(&instance, Elem::F32, Elem::BF16, true);
    let layer = layer(&mixed, 1);
    assert!(
        layer.contains(&"kv_write/bf16") && layer.contains(&"attention/bf16"),
        "{layer:?}"
    );
}

#[test]
fn bits_of_their_own_are_seen_in_the_digest() {
    let instance = instance(&[WIDE]);
    let fused = plan(&instance, Elem::BF16, Elem::BF16, true);
    let unfused = plan(&instance, Elem::BF16, Elem::BF16, false);
    assert_ne!(fused.digest, unfused.digest, "attention differs");
}

/// Qwen3-8B on an H200: what its layers are made of, and how many launches a step has.
#[test]
fn a_layer_of_a_known_model_on_hopper_is_eight_launches() {
    let config = r#"
model_type = "qwen3"
vocab_size = 151936
hidden_size = 4096
intermediate_size = 12288
num_hidden_layers = 36
num_attention_heads = 32
num_key_value_heads = 8
head_dim = 128
max_position_embeddings = 40960
rms_norm_eps = 0.000001
rope_theta = 1000000
hidden_act = "silu"
"#;
    let instance = hf(&flat(config)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let mut request = request(&formats);
    request.class = "hopper";
    let plan = library().plan(&instance, &request).unwrap();
    let of_layer = plan.groups.iter().filter(|g| g.layer == Some(7));
    assert_eq!(
        of_layer.map(|g| g.points[0].1.family()).collect::<Vec<_>>(),
        [
            "rmsnorm_bf16",
            "linear",
            "qk_norm_rope_kv_write",
            "attention_bf16",
            "linear_add",
            "rmsnorm_bf16",
            "linear_swiglu",
            "linear_add",
        ]
    );
    assert_eq!(plan.groups.len(), 3 + 36 * 8 + 4);
    // Every product runs on tensor cores, by the bf16 peak.
    let products = plan.groups.iter().filter(|g| g.name.contains("linear"));
    assert!(products.map(|g| g.peak.as_str()).all(|p| p == "bf16"));
    // Row counts that share a point are few, and the last range has no end.
    let qkv = plan
        .groups
        .iter()
        .find(|g| g.name == "L7.linear.qkv")
        .unwrap();
    assert!(qkv.points.len() >= 4 && qkv.points.last().unwrap().0.max == u32::MAX);
}
