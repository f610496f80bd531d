// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties over arbitrary configurations and formats.

use std::collections::BTreeSet;

use metrale_circuit::{ConfigInput, Source, Workload, check_memory};
use metrale_core::{Arg, Elem, FlatMap, Scalar};
use proptest::prelude::*;

use crate::common::{TINY_LLAMA, flat, hf, library, request};

fn any_scalar() -> impl Strategy<Value = Scalar> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Scalar::Bool),
        prop_oneof![0..200i64, Just(i64::MAX), Just(-1), 1..1i64 << 40].prop_map(Scalar::Int),
        prop_oneof![any::<f64>(), 0.0..1e6f64].prop_map(Scalar::Float),
        prop_oneof![
            Just("llama3".to_owned()),
            Just("linear".to_owned()),
            Just("silu".to_owned()),
            "[a-z_.*]{0,12}"
        ]
        .prop_map(Scalar::Str),
    ];
    let list = proptest::collection::vec(leaf.clone(), 0..4).prop_map(Scalar::List);
    prop_oneof![6 => leaf, 1 => list]
}

/// Keys of the maps, near misses of them, and noise.
fn any_key(source: Source) -> impl Strategy<Value = String> {
    let base = match source {
        Source::Hf => flat(TINY_LLAMA),
        Source::Gguf => flat(include_str!("../configs/smollm2-135m.gguf.flat")),
    };
    let mut keys: Vec<String> = base.into_keys().collect();
    keys.extend(
        [
            "rope_scaling.factor",
            "rope_scaling.rope_type",
            "rope_scaling.original_max_position_embeddings",
            "llama.rope.scaling.type",
            "llama.attention.key_length",
            "vocab_size",
            "layer_types",
        ]
        .map(str::to_owned),
    );
    prop_oneof![8 => proptest::sample::select(keys), 1 => "[a-z_.*]{0,20}"]
}

fn mutated(source: Source) -> impl Strategy<Value = FlatMap> {
    let base = match source {
        Source::Hf => flat(TINY_LLAMA),
        Source::Gguf => flat(include_str!("../configs/smollm2-135m.gguf.flat")),
    };
    let edit = (
        any_key(source),
        proptest::option::weighted(0.8, any_scalar()),
    );
    proptest::collection::vec(edit, 0..6).prop_map(move |edits| {
        let mut map = base.clone();
        for (key, value) in edits {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        map
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn survival_38_no_configuration_panics(
        hf in mutated(Source::Hf),
        gguf in mutated(Source::Gguf),
    ) {
        prop_assert!(library().try_config(&hf, Source::Hf));
        prop_assert!(library().try_config(&gguf, Source::Gguf));
    }

    #[test]
    fn every_mix_of_formats_gives_a_sound_plan(picks in proptest::collection::vec(0..6usize, 64)) {
        let instance = hf(&flat(TINY_LLAMA)).unwrap();
        let mut formats = instance.uniform_formats(Elem::F32);
        let choice = [Elem::F32, Elem::F16, Elem::BF16, Elem::Q8_0, Elem::Q4_1, Elem::Q5_0];
        let matrices = instance.weights().iter().filter(|w| w.shape.len() > 1);
        for (w, pick) in matrices.zip(picks) {
            formats.insert(w.key.clone(), choice[pick]);
        }
        for fuse in [true, false] {
            let mut request = request(&formats);
            request.fuse = fuse;
            let plan = library().plan(&instance, &request).unwrap();
            prop_assert_eq!(check_memory(&plan.memory, &plan.groups), Ok(()));
            // The launches that write one edge tile its columns.
            let edges = instance.edges().iter().filter(|e| plan.memory.find(&e.name).is_some());
            for edge in edges {
                let span = plan.memory.find(&edge.name).unwrap();
                let mut ranges: Vec<(u32, u32)> = plan.groups.iter().filter_map(|g| {
                    let is_linear = g.points[0].1.family() == "linear";
                    let writes = matches!(g.args.get(3), Some(Arg::Buf { span: s, .. }) if *s == span);
                    match (is_linear && writes, g.args.get(5), g.args.get(6)) {
                        (true, Some(Arg::U32(n)), Some(Arg::U32(col))) => Some((*col, *n)),
                        _ => None,
                    }
                }).collect();
                ranges.sort_unstable();
                let end = ranges.iter().try_fold(0, |at, (col, n)| (at == *col).then_some(col + n));
                prop_assert!(ranges.is_empty() || end == Some(edge.cols as u32), "{}", edge.name);
            }
            // Every weight is packed exactly once.
            let parts = plan.weights.iter().flat_map(|s| &s.parts);
            let keys: BTreeSet<_> = parts.clone().map(|p| &p.key).collect();
            prop_assert_eq!(parts.count(), keys.len());
            prop_assert_eq!(keys.len(), instance.weights().len());
        }
    }

    #[test]
    fn plans_are_functions_of_their_input(config in mutated(Source::Hf)) {
        let input = ConfigInput { flat: &config, source: Source::Hf, nulls: None, tensors: None, accept: &[] };
        prop_assert_eq!(library().instantiate(&input), library().instantiate(&input));
    }
}

#[test]
fn the_text_of_a_plan_survives_any_workload() {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let plan = library().plan(&instance, &request(&formats)).unwrap();
    let w = Workload {
        rows: u64::MAX,
        logits_rows: 0,
        sequences: u64::MAX,
        context: u64::MAX,
    };
    assert!(plan.show(&w).contains("forward"));
    assert!(plan.roofline_seconds(&w).unwrap() > 1e9);
}
