// SPDX-License-Identifier: MIT OR Apache-2.0
//! The llama family from configuration to plan.

use crate::common::{KV_BF16, TINY_LLAMA, flat, hf, library, plan, request};
use metrale_circuit::{Phase, WeightKey, Workload};
use metrale_core::{ArenaKind, Arg, Elem, Unit};

#[test]
fn tiny_llama_has_the_expected_launches() {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let mut unfused = request(&formats);
    unfused.fuse = false;
    let plan = library().plan(&instance, &unfused).unwrap();
    let names = |phase| {
        plan.groups_of(phase)
            .map(|g| g.name.as_str())
            .collect::<Vec<_>>()
    };
    let forward = names(Phase::Forward);
    assert_eq!(forward[..3], ["tables", "embed.res", "rope_angles.cs"]);
    // The first layer has no pending delta to add.
    assert_eq!(
        forward[3..14],
        [
            "L0.rmsnorm.n1",
            "L0.linear.qkv",
            "L0.rope.qkv",
            "L0.kv_write",
            "L0.attention.a",
            "L0.linear.o",
            "L0.add.res",
            "L0.rmsnorm.n2",
            "L0.linear.gu",
            "L0.swiglu.h",
            "L0.linear.delta",
        ]
    );
    assert_eq!(forward[14], "L1.add.res");
    assert_eq!(forward.len(), 3 + 11 + 3 * 12);
    assert_eq!(names(Phase::Sample).len(), 4);
    let qkv = plan.memory.span(plan.memory.find("L3.qkv").unwrap());
    assert_eq!(
        (qkv.extent.elems, qkv.extent.unit, qkv.bytes),
        (128, Unit::Row, 128 * 4 * 64)
    );
}

#[test]
fn arguments_follow_the_family_list() {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let plan = plan(&instance, Elem::BF16);
    let find = |name: &str| plan.groups.iter().find(|g| g.name == name).unwrap();
    let scalars = |name: &str| -> Vec<Arg> {
        let is_scalar = |a: &&Arg| !matches!(a, Arg::Buf { .. });
        find(name).args.iter().filter(is_scalar).copied().collect()
    };
    // k, n, y_col, y_ld, has_bias, rows_unit
    let linear = |k, n, ld, logits| {
        let v = [k, n, 0, ld, 0, logits].map(Arg::U32);
        v.into_iter().chain([Arg::Step]).collect::<Vec<_>>()
    };
    assert_eq!(scalars("L2.linear.qkv"), linear(64, 128, 128, 0));
    assert_eq!(scalars("L2.linear.delta"), linear(96, 64, 64, 0));
    assert_eq!(scalars("linear.logits"), linear(64, 320, 320, 1));
    // heads, kv_heads, head_dim, blocks_per_slot, scale
    let attention = [
        Arg::U32(4),
        Arg::U32(2),
        Arg::U32(16),
        Arg::U32(32),
        Arg::F32(0.25),
        Arg::Step,
    ];
    assert_eq!(scalars("L2.attention.a"), attention);
    assert_eq!(
        scalars("gather_rows.r"),
        [Arg::U32(64), Arg::U32(1), Arg::Step]
    );
    for group in &plan.groups {
        let family = group.points[0].1.family();
        assert_eq!(
            library().kernel_args(family).unwrap().len(),
            group.args.len(),
            "{family}"
        );
    }
}

#[test]
fn a_tied_embedding_is_one_packed_tensor() {
    let mut config = flat(TINY_LLAMA);
    config.insert(
        "tie_word_embeddings".into(),
        metrale_core::Scalar::Bool(true),
    );
    let instance = hf(&config).unwrap();
    let plan = plan(&instance, Elem::BF16);
    let slots = plan
        .weights
        .iter()
        .filter(|s| s.rows == 320)
        .collect::<Vec<_>>();
    assert_eq!(slots.len(), 1);
    assert_eq!(
        slots[0].parts[0].key,
        WeightKey {
            name: "embed".into(),
            layer: None
        }
    );
    let users = plan.groups.iter().filter(|g| {
        g.args
            .iter()
            .any(|a| matches!(a, Arg::Buf { span, .. } if *span == slots[0].span))
    });
    let users: Vec<_> = users.map(|g| g.name.as_str()).collect();
    assert_eq!(users, ["embed.res", "linear.logits"]);
}

#[test]
fn unequal_formats_cut_a_linear_into_column_ranges() {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let mut formats = instance.uniform_formats(Elem::Q4_0);
    for (key, format) in &mut formats {
        if key.name == "v_proj" {
            *format = Elem::F16;
        }
        if key.name.ends_with("norm") {
            *format = Elem::F32;
        }
    }
    let mut unfused = request(&formats);
    unfused.fuse = false;
    let plan = library().plan(&instance, &unfused).unwrap();
    let runs: Vec<_> = plan
        .groups
        .iter()
        .filter(|g| g.name.starts_with("L1.linear.qkv"))
        .collect();
    let ranges: Vec<_> = runs
        .iter()
        .map(|g| (g.points[0].1.as_str(), g.args[5], g.args[6]))
        .collect();
    assert_eq!(
        ranges,
        [
            ("linear/q4_0", Arg::U32(96), Arg::U32(0)),
            ("linear/f16", Arg::U32(32), Arg::U32(96))
        ]
    );
    // The quantized run reads int16 blocks, the other the f32 edge; one conversion serves q and k.
    assert_eq!(
        plan.groups
            .iter()
            .filter(|g| g.name == "L1.quantize.n1.a16")
            .count(),
        1
    );
    let x = |i: usize| match runs[i].args[0] {
        Arg::Buf { span, .. } => plan.memory.span(span).name.clone(),
        _ => String::new(),
    };
    assert_eq!((x(0), x(1)), ("L1.n1.a16".to_owned(), "L1.n1".to_owned()));
}

#[test]
fn the_pool_is_sized_before_planning() {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    // 4 layers, k and v, 2 heads of 16, 16 tokens, 2 bytes
    assert_eq!(instance.kv_bytes_per_block(&KV_BF16), 4 * 2 * 32 * 16 * 2);
    let plan = plan(&instance, Elem::BF16);
    assert_eq!(
        plan.kv_bytes_per_block(),
        instance.kv_bytes_per_block(&KV_BF16)
    );
    assert_eq!(plan.memory.arena_bytes(ArenaKind::Kv), 256 * 8192);
    assert!(
        plan.show(&Workload::decode(100))
            .contains("L1.linear.qkv x3")
    );
}
