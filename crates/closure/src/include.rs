// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds quoted includes and follows them.

use std::collections::BTreeMap;

use crate::error::ClosureError;
use crate::hash::Closure;
use crate::layout::Resolved;

/// What `source` reaches in the target. A file that a condition leaves out counts all the same: the hash may change
/// without need, never stay without need.
pub(crate) fn closure(target: &Resolved, source: &str) -> Result<Closure, ClosureError> {
    let mut reached = BTreeMap::new();
    let mut queue = vec![source.to_owned()];
    while let Some(name) = queue.pop() {
        if reached.contains_key(&name) {
            continue;
        }
        let Some(file) = target.files.get(&name) else {
            let (path, message) = (
                source.into(),
                format!("no layer of {} holds it", target.target),
            );
            return Err(ClosureError::Manifest { path, message });
        };
        let text = std::fs::read(&file.path).map_err(|source| ClosureError::Io {
            path: file.path.clone(),
            source,
        })?;
        for (line, included) in quoted(&String::from_utf8_lossy(&text)) {
            if !target.files.contains_key(&included) {
                return Err(ClosureError::MissingInclude {
                    path: file.path.clone(),
                    line,
                    name: included,
                    target: target.target.clone(),
                });
            }
            queue.push(included);
        }
        reached.insert(name, text);
    }
    Ok(Closure::new(source.to_owned(), reached))
}

/// Line (from 1) and name of each `#include "name"`.
fn quoted(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let name = line
            .trim_start()
            .strip_prefix('#')
            .and_then(|l| l.trim_start().strip_prefix("include"))
            .and_then(|l| l.trim_start().strip_prefix('"'))
            .and_then(|l| l.split_once('"'));
        if let Some((name, _)) = name {
            found.push((i + 1, name.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_quoted_includes_count() {
        let text = "#include <cuda_bf16.h>\n  #  include \"a.cuh\" // why\nint include; \"b.cuh\"\n#include\"c.cuh\"\n";
        assert_eq!(
            quoted(text),
            [(2, "a.cuh".to_owned()), (4, "c.cuh".to_owned())]
        );
    }
}
