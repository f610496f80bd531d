// SPDX-License-Identifier: MIT OR Apache-2.0
//! The penalty history of a sequence, kept up token by token.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plan::HistoryEntry;

/// Each token of prompt and output once, in order of first appearance.
pub(super) struct History {
    entries: Arc<Vec<HistoryEntry>>,
    index: HashMap<u32, usize>,
}

impl History {
    pub(super) fn new(prompt: &[u32]) -> History {
        let mut index = HashMap::new();
        let mut entries = Vec::new();
        for token in prompt {
            index.entry(*token).or_insert_with(|| {
                entries.push(HistoryEntry {
                    token: *token,
                    output_count: 0,
                    in_prompt: true,
                });
                entries.len() - 1
            });
        }
        History {
            entries: Arc::new(entries),
            index,
        }
    }

    /// Counts a generated token. Copies nothing unless a step plan still holds the entries.
    pub(super) fn push(&mut self, token: u32) {
        let entries = Arc::make_mut(&mut self.entries);
        let at = *self.index.entry(token).or_insert(entries.len());
        if at == entries.len() {
            entries.push(HistoryEntry {
                token,
                output_count: 0,
                in_prompt: false,
            });
        }
        entries[at].output_count += 1;
    }

    pub(super) fn entries(&self) -> &Arc<Vec<HistoryEntry>> {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_output_and_remembers_the_prompt() {
        let mut h = History::new(&[5, 7, 5]);
        h.push(7);
        h.push(9);
        h.push(7);
        let seen: Vec<_> = h
            .entries()
            .iter()
            .map(|e| (e.token, e.output_count, e.in_prompt))
            .collect();
        assert_eq!(seen, [(5, 0, true), (7, 2, true), (9, 1, false)]);
    }
}
