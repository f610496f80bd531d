// SPDX-License-Identifier: MIT OR Apache-2.0
//! Golden plans. A changed snapshot is a changed plan: the digest in it is what reproducibility hangs on.
//!
//! `INSTA_UPDATE=always cargo test -p metrale-circuit` writes them anew.

use std::collections::{BTreeMap, BTreeSet};

use metrale_circuit::{Instance, PlanRequest, WeightKey, Workload};
use metrale_core::{Elem, StepLimits};

use crate::common::{TINY_LLAMA, flat, gguf, hf, library, request};

fn text(instance: &Instance, request: &PlanRequest<'_>, context: u64) -> String {
    let plan = library().plan(instance, request).unwrap();
    format!(
        "{}\n{}\n{}",
        instance.show(),
        plan.show(&Workload::decode(context)),
        plan.memory_text()
    )
}

fn uniform(instance: &Instance) -> BTreeMap<WeightKey, Elem> {
    instance.uniform_formats(Elem::BF16)
}

/// What a server on a large machine would ask for: 8 sequences of 8,192 tokens.
fn served<'a>(formats: &'a BTreeMap<WeightKey, Elem>, class_device: &'a str) -> PlanRequest<'a> {
    let limits = StepLimits {
        rows: 512,
        logits_rows: 16,
        slots: 8,
        blocks_per_slot: 512,
        tables: 1,
        history: 65536,
        bias: 4096,
        mask_words: 0,
    };
    PlanRequest {
        limits,
        kv_blocks: 4096,
        snapshots: 0,
        device: Some(class_device),
        ..request(formats)
    }
}

#[test]
fn tiny_llama() {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    insta::assert_snapshot!(
        "tiny-llama",
        text(&instance, &request(&uniform(&instance)), 24)
    );
}

#[test]
fn tiny_qwen3() {
    let config = TINY_LLAMA
        .replace("\"llama\"", "\"qwen3\"")
        .lines()
        .filter(|l| !l.starts_with("mlp_bias") && !l.starts_with("pretraining_tp"))
        .collect::<Vec<_>>()
        .join("\n");
    let instance = hf(&flat(&config)).unwrap();
    insta::assert_snapshot!(
        "tiny-qwen3",
        text(&instance, &request(&uniform(&instance)), 24)
    );
}

/// SmolLM2 as its file has it: Q8_0 embedding, f32 norms, the rest Q4_1; no `output.weight`.
pub(crate) fn smollm2() -> (Instance, BTreeMap<WeightKey, Elem>) {
    let tensors = BTreeSet::from(["token_embd.weight".to_owned()]);
    let instance = gguf(
        &flat(include_str!("../configs/smollm2-135m.gguf.flat")),
        &tensors,
    )
    .unwrap();
    let mut formats = instance.uniform_formats(Elem::Q4_1);
    for (key, format) in &mut formats {
        match key.name.as_str() {
            "embed" => *format = Elem::Q8_0,
            name if name.ends_with("norm") => *format = Elem::F32,
            _ => {}
        }
    }
    (instance, formats)
}

#[test]
fn smollm2_135m() {
    let (instance, formats) = smollm2();
    assert_eq!(instance.weight_elems(), 134_515_008);
    let request = served(&formats, "cpu-generic");
    let plan = library().plan(&instance, &request).unwrap();
    // The file's tensors: 66,355,200 of Q4_1, 30,081,024 of Q8_0, 140,544 of f32; packing adds no byte but alignment.
    let tensors: u64 = plan
        .weights
        .iter()
        .map(|w| plan.memory.span(w.span).bytes)
        .sum();
    assert_eq!(tensors, 66_355_200 + 30_081_024 + 140_544);
    insta::assert_snapshot!("smollm2-135m", text(&instance, &request, 1024));
}

#[test]
fn llama_3_1_8b() {
    let instance = hf(&flat(include_str!("../configs/llama-3.1-8b.flat"))).unwrap();
    assert_eq!(instance.weight_elems(), 8_030_261_248);
    let formats = uniform(&instance);
    insta::assert_snapshot!(
        "llama-3.1-8b",
        text(&instance, &served(&formats, "cpu-server"), 4096)
    );
}

#[test]
fn qwen3_0_6b() {
    let instance = hf(&flat(include_str!("../configs/qwen3-0.6b.flat"))).unwrap();
    assert_eq!(instance.weight_elems(), 596_049_920);
    let formats = uniform(&instance);
    insta::assert_snapshot!(
        "qwen3-0.6b",
        text(&instance, &served(&formats, "cpu-generic"), 4096)
    );
}
