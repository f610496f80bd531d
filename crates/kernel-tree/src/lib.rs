// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository's `kernels/` manifests and sources, embedded in the binary.
//!
//! Code that reads the kernel tree (the server, which hands it down as a value) needs no checkout at run time.

#![forbid(unsafe_code)]

/// Every file, by path.
static TREE: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/tree.rs"));

/// All files: path below `kernels/` with forward slashes, and text. Ascending by path.
pub fn files() -> impl ExactSizeIterator<Item = (&'static str, &'static str)> + Clone {
    TREE.iter().copied()
}

/// One file's text (`"circuits/OPS.toml"`).
#[must_use]
pub fn file(path: &str) -> Option<&'static str> {
    TREE.binary_search_by_key(&path, |(p, _)| p)
        .ok()
        .map(|i| TREE[i].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_there_and_sorted() {
        let paths: Vec<_> = files().map(|(p, _)| p).collect();
        assert!(paths.is_sorted());
        assert!(paths.contains(&"circuits/llama/circuit.toml"));
        assert!(file("DEVICES.toml").unwrap().contains("[h200-sxm]"));
        assert_eq!(file("nope.toml"), None);
    }

    #[test]
    fn every_file_states_its_licence_on_line_one() {
        for (path, text) in files() {
            let line = text.lines().next().unwrap_or("");
            assert!(
                line.contains("SPDX-License-Identifier: MIT OR Apache-2.0"),
                "{path}"
            );
        }
    }
}
