// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patterns: of keys, and of modules' names.

/// Whether a key is of a pattern: `*` is one part of it, or all that follow at the end.
pub(super) fn fits(pattern: &str, key: &str) -> bool {
    let (mut parts, mut rest) = (pattern.split('.').peekable(), key.split('.'));
    while let Some(part) = parts.next() {
        match rest.next() {
            None => return false,
            Some(_) if part == "*" && parts.peek().is_none() => return true,
            Some(have) if part != "*" && part != have => return false,
            Some(_) => {}
        }
    }
    rest.next().is_none()
}

/// A pattern of regular expressions as far as lists of modules use them: `.*` is any text, `\.` a dot, the rest itself.
pub(super) fn like(pattern: &str, text: &str) -> bool {
    let plain = pattern.trim_start_matches('^').replace("\\.", ".");
    let mut pieces = plain.split(".*");
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else {
        return rest.is_empty();
    };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
