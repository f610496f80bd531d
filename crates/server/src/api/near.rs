// SPDX-License-Identifier: MIT OR Apache-2.0
//! The near name, for messages that say "did you mean".

/// The candidate nearest to `name`, if it is near enough to be a slip: one edit in three letters.
pub(super) fn near<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    if name.len() > 64 {
        return None;
    }
    candidates
        .map(|c| (edits(name, c), c))
        .filter(|(d, c)| d * 3 <= c.chars().count().max(3))
        .min()
        .map(|(_, c)| c)
}

/// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substitute = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitute.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        let names = ["temperature", "top_p", "top_k", "max_tokens", "n"];
        let near = |s| near(s, names.into_iter());
        assert_eq!(near("temprature"), Some("temperature"));
        assert_eq!(near("max_token"), Some("max_tokens"));
        assert_eq!(near("tpo_p"), Some("top_p"));
        assert_eq!(near("frobnicate"), None);
        assert_eq!(near(&"x".repeat(1000)), None);
    }
}
