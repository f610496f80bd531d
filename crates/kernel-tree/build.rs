// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the table of `kernels/`: every manifest and source by `include_str!`.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What is a manifest or a source; anything else in the tree is left out.
const KINDS: [&str; 6] = ["toml", "cu", "cuh", "h", "hip", "metal"];

fn main() -> io::Result<()> {
    // Asked when it runs: one build folder may serve several checkouts.
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .ok_or_else(|| io::Error::other("CARGO_MANIFEST_DIR is not set"))?;
    let kernels = Path::new(&package).join("../../kernels");
    let root = kernels
        .canonicalize()
        .map_err(|e| io::Error::other(format!("{}: {e}", kernels.display())))?;
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in &files {
        // A folder counts as changed when an entry comes or goes; an edited file has to be named.
        println!("cargo::rerun-if-changed={}", file.display());
        let name = file.strip_prefix(&root).map_err(io::Error::other)?;
        let name = name.to_string_lossy().replace('\\', "/");
        table.push_str(&format!(
            "    ({name:?}, include_str!({:?})),\n",
            file.to_string_lossy()
        ));
    }
    table.push_str("]\n");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(PathBuf::from(out).join("tree.rs"), table)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            collect(&path, files)?;
        } else if path
            .extension()
            .and_then(|e| e.to_str())
            .is_some_and(|e| KINDS.contains(&e))
        {
            files.push(path);
        }
    }
    Ok(())
}
