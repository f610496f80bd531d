// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways to cut the same tokens into steps.

/// Rows of one sequence in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its slot; 0 is the sequence whose logits are compared.
    pub slot: u32,
    /// Position of its first token.
    pub first: u32,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// Steps that together run the prompt once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// For the report.
    pub name: String,
    /// The steps.
    pub steps: Vec<Vec<Run>>,
}

/// Whole prefill, chunks of 16, 7 and 1 (decode), and the prompt among others.
pub(super) fn all(prompt: &[u32], vocab: u32) -> Vec<Schedule> {
    vec![
        alone("whole prefill", prompt, prompt.len()),
        alone("chunks of 16", prompt, 16),
        alone("chunks of 7", prompt, 7),
        alone("decode, token by token", prompt, 1),
        crowd(prompt, vocab),
    ]
}

fn alone(name: &str, prompt: &[u32], chunk: usize) -> Schedule {
    Schedule {
        name: name.to_owned(),
        steps: runs(0, prompt, chunk)
            .into_iter()
            .map(|run| vec![run])
            .collect(),
    }
}

/// The prompt in chunks of 5 among seven sequences of other tokens, each with a chunk size of its own; the order of the
/// sequences turns from step to step.
fn crowd(prompt: &[u32], vocab: u32) -> Schedule {
    let mut sequences = vec![runs(0, prompt, 5)];
    for slot in 1..super::CROWD {
        let tokens: Vec<u32> = prompt
            .iter()
            .map(|token| (token + 17 * slot) % vocab)
            .collect();
        sequences.push(runs(slot, &tokens, slot as usize));
    }
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let steps = (0..longest).map(|step| {
        let mut runs: Vec<Run> = sequences
            .iter()
            .filter_map(|s| s.get(step).cloned())
            .collect();
        let turn = step % runs.len().max(1);
        runs.rotate_left(turn);
        runs
    });
    Schedule {
        name: format!("among {} other sequences", super::CROWD - 1),
        steps: steps.collect(),
    }
}

fn runs(slot: u32, tokens: &[u32], chunk: usize) -> Vec<Run> {
    let chunks = tokens.chunks(chunk).enumerate();
    chunks
        .map(|(i, tokens)| Run {
            slot,
            first: (i * chunk) as u32,
            tokens: tokens.to_vec(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schedule_runs_the_prompt_once_in_order() {
        let prompt: Vec<u32> = (0..37).collect();
        for schedule in all(&prompt, 320) {
            let ours = schedule.steps.iter().flatten().filter(|run| run.slot == 0);
            let tokens: Vec<u32> = ours
                .inspect(|run| assert_eq!(run.tokens[0], run.first, "{}", schedule.name))
                .flat_map(|run| run.tokens.clone())
                .collect();
            assert_eq!(tokens, prompt, "{}", schedule.name);
        }
    }

    #[test]
    fn the_crowd_mixes_kinds_of_rows() {
        let schedule = crowd(&[1; 40], 320);
        let mixed = schedule
            .steps
            .iter()
            .filter(|s| s.iter().any(|r| r.tokens.len() == 1) && s.len() == 8)
            .count();
        assert!(mixed >= 5, "{mixed}");
    }
}
