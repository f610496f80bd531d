// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a checkpoint: opened once, read by position, and known to have stayed the same.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::WeightsError;

/// An open file and what it looked like when it was opened.
#[derive(Debug)]
pub(crate) struct StoreFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// What changes when somebody writes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec(),
        }
    }
}

impl StoreFile {
    /// Opens a regular file. Anything else is refused before it is opened, since opening a pipe can block.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        let before = std::fs::metadata(path).map_err(|e| WeightsError::io(path, e))?;
        if !before.is_file() {
            return Err(WeightsError::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(|e| WeightsError::io(path, e))?;
        let metadata = file.metadata().map_err(|e| WeightsError::io(path, e))?;
        if !metadata.is_file() {
            return Err(WeightsError::NotAFile {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            stamp: Stamp::of(&metadata),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Length when it was opened, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.stamp.len
    }

    /// A forward reader from the start, for headers.
    pub(crate) fn reader(&self) -> impl Read + '_ {
        At {
            file: &self.file,
            offset: 0,
        }
    }

    /// Fills `out` from byte `offset`; `false` if the file ends before that.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<bool, WeightsError> {
        match self.file.read_exact_at(out, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(WeightsError::io(&self.path, e)),
        }
    }

    /// Whether the file still is what it was when it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), WeightsError> {
        let metadata = self
            .file
            .metadata()
            .map_err(|e| WeightsError::io(&self.path, e))?;
        let now = Stamp::of(&metadata);
        if now == self.stamp {
            return Ok(());
        }
        let what = match now.len == self.stamp.len {
            false => format!("{} bytes then, {} now", self.stamp.len, now.len),
            true => "its modification time is newer".to_owned(),
        };
        Err(WeightsError::Changed {
            path: self.path.clone(),
            what,
        })
    }
}

/// `Read` over positioned reads, so that the file's own cursor is never shared.
struct At<'f> {
    file: &'f File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read_at(out, self.offset)?;
        self.offset += n as u64;
        Ok(n)
    }
}

/// A whole small file of a checkpoint, refused above `limit` bytes and if it is no regular file.
///
/// # Errors
/// [`WeightsError`], naming the file.
pub fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, WeightsError> {
    let file = StoreFile::open(path)?;
    let mut bytes = Vec::new();
    file.reader()
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| WeightsError::io(path, e))?;
    if bytes.len() as u64 > limit {
        return Err(WeightsError::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(bytes)
}
