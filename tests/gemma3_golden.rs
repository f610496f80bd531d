// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gemma 3 270M Q4_K_M against Transformers in f32 on the same weights (tests/goldens/README.md), as `smollm2_golden` does it:
//! teacher-forced, the largest logit at every step whose margin in the reference is clear. One prompt is longer than the
//! sliding window. Runs where the file is: `METRALE_TEST_GEMMA3`, or what `met pull gemma3-270m` fetched.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrale_core::{Elem, KV_BLOCK, SampleRow, StepBlock, StepLayout, StepLimits};
use metrale_gpu_runtime::Progress;
use metrale_model_engine::{Model, TransformerModel};
use metrale_server::cli::{Console, Failure, Machine};
use metrale_server::recipe;
use serde::Deserialize;
use support::{Result, Setup};

/// Margin (logits) above which a step of the reference is clear; half of it is what a logit may be off.
const CLEAR: f32 = 0.05;
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

/// The file, if it is on this machine; a path that the variable names must exist.
fn file() -> Result<Option<PathBuf>> {
    if let Some(path) = std::env::var_os("METRALE_TEST_GEMMA3").filter(|v| !v.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            return Err(format!("METRALE_TEST_GEMMA3: no file {}", path.display()).into());
        }
        return Ok(Some(path));
    }
    let said = |failure: Failure| format!("{:?}", failure.why);
    let console = Arc::new(Console::standard(false));
    let machine = Machine::new(std::env::vars_os(), console).map_err(said)?;
    let hub = machine.hub().map_err(said)?;
    let recipe = recipe::find("gemma3-270m")?.ok_or("no such recipe")?;
    Ok(recipe.local(&machine.home(), &hub)?)
}

/// Runs `tokens` in one step; the logits behind each from token `first` on.
fn logits(model: &mut TransformerModel, tokens: &[u32], first: usize) -> Result<Vec<Vec<f32>>> {
    let mut block = StepBlock::new(Arc::new(StepLayout::new(*model.limits())));
    for index in 0..TOKENS / KV_BLOCK {
        block.push_delta(0, index, index)?;
    }
    block.push_run(0, 0, tokens)?;
    for row in first as u32..tokens.len() as u32 {
        block.push_logits(row, &SampleRow::greedy(row + 1), &[], &[])?;
    }
    model.submit(&block)?;
    while model.wait(Duration::from_secs(1))? == Progress::Running {}
    let mut rows = Vec::new();
    for index in 0..(tokens.len() - first) as u32 {
        let mut row = vec![0.0; model.vocab() as usize];
        model.logits(index, &mut row)?;
        rows.push(row);
    }
    Ok(rows)
}

fn largest(row: &[f32]) -> u32 {
    // The lowest id of equals, as the sampler takes it.
    let better = |best: usize, id: usize| if row[id] > row[best] { id } else { best };
    (0..row.len()).fold(0, better) as u32
}

#[test]
fn clear_steps_of_the_reference_are_ours_too() {
    let Some(path) = file().unwrap() else {
        eprintln!("skipped: `met pull gemma3-270m` first");
        return;
    };
    let golden = golden().unwrap();
    let limits = StepLimits {
        rows: TOKENS,
        logits_rows: golden.steps as u32,
        slots: 1,
        blocks_per_slot: TOKENS / KV_BLOCK,
        history: 1,
        bias: 1,
    };
    let mut setup = Setup::new(limits, u64::from(limits.blocks_per_slot));
    setup.kv = Elem::F32;
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
    assert!(worst < CLEAR / 2.0, "logits differ by {worst}");
}
