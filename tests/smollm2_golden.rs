// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmolLM2-135M-Instruct Q4_1 against Transformers in f32 on the same weights (tests/goldens/README.md).
//!
//! Teacher-forced: the ten prompts, each with the reference's own greedy continuation behind it, and our largest logit at
//! every step of it. What stands between the two sides is the rounding of activations and of KV; it must not change an
//! answer that is clear. Runs where the file is: `METRALE_TEST_SMOLLM2`, or what `met pull smollm2-135m` fetched.

mod support;

use std::path::Path;

use metrale_core::{Elem, KV_BLOCK, StepLimits};
use metrale_model_engine::TransformerModel;
use metrale_server::recipe;
use serde::Deserialize;
use support::teacher::{largest, logits, model_file};
use support::{Result, Setup};

/// KV formats, the margin (logits) above which a step of the reference is clear, and how many of the 480 are. Half a margin
/// is what a logit may be off; measured: 0.006 and 0.055 (docs/adr/0008).
const CASES: [(Elem, f32, u32); 2] = [(Elem::F32, 0.02, 477), (Elem::BF16, 0.2, 437)];
/// Tokens of the longest prompt with its continuation, rounded up.
const TOKENS: u32 = 128;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    text: String,
    ids: Vec<u32>,
    transformers: Continuation,
}

#[derive(Deserialize)]
struct Continuation {
    ids: Vec<u32>,
    margins: Vec<f32>,
    /// Behind the prompt: ids 0, 768, 1536, ...
    logits_every_768: Vec<f32>,
}

fn golden() -> Result<Golden> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/smollm2_greedy.json");
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// What one prompt showed.
#[derive(Default)]
struct Seen {
    clear: u32,
    close: u32,
    close_equal: u32,
    worst: f32,
}

fn compare(model: &mut TransformerModel, prompt: &Prompt, clear: f32) -> Result<Seen> {
    let mut seen = Seen::default();
    let Continuation {
        ids,
        margins,
        logits_every_768,
    } = &prompt.transformers;
    let tokens: Vec<u32> = prompt.ids.iter().chain(ids).copied().collect();
    let rows = logits(model, &tokens[..tokens.len() - 1], prompt.ids.len() - 1)?;
    for ((row, want), margin) in rows.iter().zip(ids).zip(margins) {
        let equal = largest(row) == *want;
        if *margin > clear {
            assert!(equal, "{:?}: {want} with margin {margin}", prompt.text);
            seen.clear += 1;
        } else {
            seen.close += 1;
            seen.close_equal += u32::from(equal);
        }
    }
    for (got, want) in rows[0].iter().step_by(768).zip(logits_every_768) {
        seen.worst = seen.worst.max((got - want).abs());
    }
    Ok(seen)
}

#[test]
fn clear_steps_of_the_reference_are_ours_too() {
    let Some(path) = model_file("METRALE_TEST_SMOLLM2", recipe::DEFAULT).unwrap() else {
        eprintln!("skipped: `met pull {}` first", recipe::DEFAULT);
        return;
    };
    let limits = StepLimits {
        rows: TOKENS,
        logits_rows: 64,
        slots: 1,
        blocks_per_slot: TOKENS / KV_BLOCK,
        tables: 1,
        history: 1,
        bias: 1,
        mask_words: 0,
    };
    let golden = golden().unwrap();
    for (kv, clear, count) in CASES {
        let mut setup = Setup::new(limits, u64::from(limits.blocks_per_slot));
        setup.kv = kv.into();
        let mut model = setup.load(&path).unwrap();
        let mut all = Seen::default();
        for prompt in &golden.prompts {
            let seen = compare(&mut model, prompt, clear).unwrap();
            all.clear += seen.clear;
            all.close += seen.close;
            all.close_equal += seen.close_equal;
            all.worst = all.worst.max(seen.worst);
        }
        println!(
            "{kv} KV: {} clear steps equal, {} of {} close ones, logits within {}",
            all.clear, all.close_equal, all.close, all.worst
        );
        assert_eq!(all.clear, count, "{kv}: clear steps of the reference");
        assert!(
            all.worst < clear / 2.0,
            "{kv}: logits differ by {}",
            all.worst
        );
    }
}
