// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real models held to a reference: their files, and teacher-forced logits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrale_core::{SampleRow, StepBlock, StepLayout};
use metrale_gpu_runtime::Progress;
use metrale_model_engine::{Model, TransformerModel};
use metrale_server::cli::{Console, Failure, Machine};
use metrale_server::recipe;

use super::Result;

/// The file of a recipe, if it is on this machine; a path that the variable names must exist.
pub(crate) fn model_file(variable: &str, name: &str) -> Result<Option<PathBuf>> {
    if let Some(path) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            return Err(format!("{variable}: no file {}", path.display()).into());
        }
        return Ok(Some(path));
    }
    let said = |failure: Failure| format!("{:?}", failure.why);
    let console = Arc::new(Console::standard(false));
    let machine = Machine::new(std::env::vars_os(), console).map_err(said)?;
    let hub = machine.hub().map_err(said)?;
    let recipe = recipe::find(name)?.ok_or("no such recipe")?;
    Ok(recipe.local(&machine.home(), &hub)?)
}

/// Runs `tokens` in one step; the logits behind each from token `first` on.
pub(crate) fn logits(
    model: &mut TransformerModel,
    tokens: &[u32],
    first: usize,
) -> Result<Vec<Vec<f32>>> {
    let mut block = StepBlock::new(Arc::new(StepLayout::new(*model.limits())));
    for index in 0..model.limits().blocks_per_slot {
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

/// The id of the largest logit.
pub(crate) fn largest(row: &[f32]) -> u32 {
    // The lowest id of equals, as the sampler takes it.
    let better = |best: usize, id: usize| if row[id] > row[best] { id } else { best };
    (0..row.len()).fold(0, better) as u32
}
