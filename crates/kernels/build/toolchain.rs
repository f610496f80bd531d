// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds nvcc: by name, in the toolkit's folder, on PATH, in the usual folder, and in wheels where that was asked for.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::Result;

/// Where to look.
pub(crate) struct Search {
    pub(crate) nvcc: Option<String>,
    pub(crate) cuda_home: Option<String>,
    pub(crate) wheels: bool,
    /// Puts the compiler's wheels into a folder and prints nvcc's path.
    pub(crate) script: PathBuf,
    pub(crate) cache: PathBuf,
}

/// A compiler that runs.
pub(crate) struct Nvcc {
    pub(crate) path: PathBuf,
    /// `13.0`.
    pub(crate) release: String,
    /// The whole of what it says about itself: part of every image's hash.
    pub(crate) version: String,
}

/// The first release whose code generation the tree is written for.
const OLDEST: (u32, u32) = (13, 0);

pub(crate) fn find(search: &Search) -> Result<Nvcc> {
    if let Some(named) = &search.nvcc {
        return probe(Path::new(named)).map_err(|e| format!("METRALE_NVCC: {e}"));
    }
    if let Some(home) = &search.cuda_home {
        return probe(&Path::new(home).join("bin/nvcc")).map_err(|e| format!("CUDA_HOME: {e}"));
    }
    let mut refused = None;
    for candidate in candidates() {
        match probe(&candidate) {
            Ok(nvcc) => return Ok(nvcc),
            Err(e) => refused = Some(e),
        }
    }
    if search.wheels {
        return wheels(search);
    }
    Err(refused.unwrap_or_else(|| {
        "no nvcc on PATH; set METRALE_NVCC or CUDA_HOME, or METRALE_CUDA_WHEELS=1 to fetch it through pip".into()
    }))
}

/// Whether a file named nvcc lies on PATH or in the usual folder, whatever it is good for.
pub(crate) fn on_path() -> bool {
    !candidates().is_empty()
}

fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
    let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
    on_path.chain([usual]).filter(|c| c.is_file()).collect()
}

/// nvcc finds its headers from its own folder, so that a link elsewhere does not work: it is called by its real path.
fn probe(path: &Path) -> Result<Nvcc> {
    let real = path
        .canonicalize()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let output = Command::new(&real)
        .arg("--version")
        .output()
        .map_err(|e| format!("{}: {e}", real.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let release = version
        .split_once("release ")
        .and_then(|(_, rest)| rest.split_once(','))
        .map(|(release, _)| release.trim().to_owned())
        .ok_or_else(|| format!("{} does not say its release", real.display()))?;
    let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < OLDEST {
        return Err(format!(
            "{} is CUDA {release}, {}.{} or newer is needed",
            real.display(),
            OLDEST.0,
            OLDEST.1
        ));
    }
    Ok(Nvcc {
        path: real,
        release,
        version,
    })
}

fn wheels(search: &Search) -> Result<Nvcc> {
    let folder = search.cache.with_file_name("cuda-wheels");
    let output = Command::new("bash")
        .arg(&search.script)
        .arg(&folder)
        .output()
        .map_err(|e| format!("{}: {e}", search.script.display()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("METRALE_CUDA_WHEELS: {}", reason.trim()));
    }
    probe(Path::new(String::from_utf8_lossy(&output.stdout).trim()))
}
