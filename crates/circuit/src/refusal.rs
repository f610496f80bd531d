// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a checkpoint's configuration is refused. Each names the key, the reason and the remedy; the caller adds the file.

/// A configuration that no circuit instance can be made from. The blame is the checkpoint's (or this version's).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The key that chooses the family is missing.
    #[error("key `{key}` is missing: it names the model family; add it")]
    NoFamily {
        /// `model_type` or `general.architecture`.
        key: &'static str,
    },
    /// No circuit serves this family.
    #[error(
        "{key} = \"{value}\": there is no circuit for this family; known: {}; see docs/circuit.md to add one",
        known.join(", ")
    )]
    UnknownFamily {
        /// `model_type` or `general.architecture`.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is served.
        known: Vec<String>,
    },
    /// A key that nobody has looked at: it may change the mathematics.
    #[error(
        "key `{key}` (= {value}) is unknown to family {family} and may change the mathematics{}; \
         correct it, or pass --accept-key {key} if you know that it changes nothing",
        near.as_ref().map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default()
    )]
    UnknownKey {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The family whose map was asked.
        family: String,
        /// The nearest known key.
        near: Option<String>,
    },
    /// A key that the map refuses, whatever its value.
    #[error("key `{key}` (= {value}): {why}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The map's reason, with the remedy.
        why: String,
    },
    /// A key whose value must be another.
    #[error(
        "key `{key}` = {value}, but only {} can be served: {why}; \
         pass --accept-key {key} only if you know that it changes nothing",
        allowed.join(" or ")
    )]
    WrongValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The values that are served.
        allowed: Vec<String>,
        /// The reason.
        why: String,
    },
    /// A value of another type than the param's.
    #[error("key `{key}` = {value}: it must be {wanted} ({doc}); correct it")]
    WrongType {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The type.
        wanted: &'static str,
        /// What the param is.
        doc: String,
    },
    /// A number outside its range.
    #[error(
        "key `{key}` = {value} ({doc}): it must be at least {min} and at most {max}; correct it"
    )]
    OutOfRange {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Least value.
        min: String,
        /// Largest value.
        max: String,
        /// What the param is.
        doc: String,
    },
    /// Two keys that set one param disagree.
    #[error(
        "keys `{first}` = {first_value} and `{second}` = {second_value} mean the same and disagree; remove one"
    )]
    Conflict {
        /// One key.
        first: String,
        /// Its value.
        first_value: String,
        /// The other.
        second: String,
        /// Its value.
        second_value: String,
    },
    /// A key without a default is missing.
    #[error("key {} is missing ({doc}); add it", keys.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(" or "))]
    Missing {
        /// The keys that would set the param.
        keys: Vec<String>,
        /// What the param is.
        doc: String,
    },
    /// Values that contradict each other or give no whole number.
    #[error("key `{key}` ({values}): {why}; correct it")]
    Inconsistent {
        /// The key to blame.
        key: String,
        /// The values that took part.
        values: String,
        /// What should hold.
        why: String,
    },
    /// A size beyond what can be addressed.
    #[error("{what}: {why}; the configuration describes no model that exists, correct it")]
    TooLarge {
        /// What was sized.
        what: String,
        /// The overflow.
        why: String,
    },
    /// The circuit contradicts its own op signatures.
    #[error(
        "circuit of family {family}, op {op}: {what}; this is a fault of the kernel tree, not of the checkpoint: report it"
    )]
    Circuit {
        /// The family.
        family: String,
        /// The op.
        op: String,
        /// The contradiction.
        what: String,
    },
}

/// The nearest of `known` to `name`, if it is near: at most a third of its letters away.
pub(crate) fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    // A key of a megabyte is no typo; the distance is quadratic.
    if name.len() > 64 {
        return None;
    }
    known
        .filter(|k| k.len() <= 64)
        .map(|k| (distance(name.as_bytes(), k.as_bytes()), k))
        .filter(|(d, k)| *d * 3 <= k.len().max(name.len()))
        .min()
        .map(|(_, k)| k.to_owned())
}

/// Levenshtein distance.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != y))
                .min(row[j] + 1)
                .min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names() {
        let known = ["hidden_size", "num_hidden_layers", "rope_theta"];
        assert_eq!(
            near("hiden_size", known.into_iter()).as_deref(),
            Some("hidden_size")
        );
        assert_eq!(near("altup_active_idx", known.into_iter()), None);
        assert_eq!(near(&"x".repeat(100), known.into_iter()), None);
    }
}
