// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gemma 3 270M Q4_K_M against Transformers in f32 on the same weights (tests/goldens/README.md), as `smollm2_golden` does it:
//! teacher-forced, the largest logit at every step whose margin in the reference is clear. One prompt is longer than the
//! sliding window. Runs where the file is: `METRALE_TEST_GEMMA3`, or what `met pull gemma3-270m` fetched.

mod support;

use std::path::Path;

use metrale_core::{Elem, KV_BLOCK, StepLimits};
use serde::Deserialize;
use support::teacher::{largest, logits, model_file};
use support::{Result, Setup};

/// What a logit may be off: 8 times the error of a random walk of the roundings of activations to format a16, four a layer of 18
/// (inputs of four products) and one behind, relative to the root mean square of the logits that the reference gives, 8.34, as
/// `verify::bound_of` reckons with formats of 16 bits. Such a rounding is even within half of 1/16383 of its block's largest
/// value, for 32 normal values 2.1 deviations: 2^-14.7 of a value. Measured: 0.0045.
const BOUND: f32 = 0.021;
/// Margin (logits) above which a step of the reference is clear: two logits may be off.
const CLEAR: f32 = 2.0 * BOUND;
/// Tokens of the longest prompt with its continuation, rounded up.
const TOKENS: u32 = 1024;

#[derive(Deserialize)]
struct Golden {
    steps: usize,
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
    /// Behind the prompt: ids 0, 4096, 8192, ...
    logits_every_4096: Vec<f32>,
}

fn golden() -> Result<Golden> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gemma3_greedy.json");
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

#[test]
fn clear_steps_of_the_reference_are_ours_too() {
    let Some(path) = model_file("METRALE_TEST_GEMMA3", "gemma3-270m").unwrap() else {
        eprintln!("skipped: `met pull gemma3-270m` first");
        return;
    };
    let golden = golden().unwrap();
    let limits = StepLimits {
        rows: TOKENS,
        logits_rows: golden.steps as u32,
        slots: 1,
        blocks_per_slot: TOKENS / KV_BLOCK,
        tables: 1,
        history: 1,
        bias: 1,
        mask_words: 0,
    };
    let mut setup = Setup::new(limits, u64::from(limits.blocks_per_slot));
    setup.kv = Elem::F32.into();
    let mut model = setup.load(&path).unwrap();
    let (mut clear, mut close, mut equal_close, mut worst) = (0, 0, 0, 0.0f32);
    for prompt in &golden.prompts {
        let want = &prompt.transformers;
        let tokens: Vec<u32> = prompt.ids.iter().chain(&want.ids).copied().collect();
        let rows = logits(
            &mut model,
            &tokens[..tokens.len() - 1],
            prompt.ids.len() - 1,
        )
        .unwrap();
        for ((row, id), margin) in rows.iter().zip(&want.ids).zip(&want.margins) {
            let equal = largest(row) == *id;
            if *margin > CLEAR {
                assert!(equal, "{:?}: {id} with margin {margin}", prompt.text);
                clear += 1;
            } else {
                close += 1;
                equal_close += u32::from(equal);
            }
        }
        for (got, want) in rows[0].iter().step_by(4096).zip(&want.logits_every_4096) {
            worst = worst.max((got - want).abs());
        }
    }
    println!(
        "{clear} clear steps equal, {equal_close} of {close} close ones, logits within {worst}"
    );
    assert!(clear > close, "the reference has few clear steps");
    assert!(worst < BOUND, "logits differ by {worst}");
}
