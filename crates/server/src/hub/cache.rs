// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hub's cache on disk, as `huggingface_hub` lays it out, so that both use one copy.
//!
//! ```text
//! models--org--name/refs/main              a commit
//! models--org--name/blobs/ETAG             a file's bytes; ETAG.incomplete while it comes
//! models--org--name/snapshots/COMMIT/FILE  a link to ../../blobs/ETAG
//! .locks/models--org--name/ETAG.lock       held (flock) by the process that fetches it
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FetchError, RepoId};

/// The folder of one repository.
#[derive(Clone, Debug)]
pub(super) struct RepoCache {
    root: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, repo: &RepoId) -> Self {
        Self {
            root: cache.join(repo.folder()),
            locks: cache.join(".locks").join(repo.folder()),
        }
    }

    /// The commit that a branch or tag was last seen at.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join("refs").join(revision)).ok()?;
        let commit = text.trim();
        super::name::is_commit(commit).then(|| commit.to_owned())
    }

    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), FetchError> {
        let path = self.root.join("refs").join(revision);
        if self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        write_whole(&path, commit.as_bytes())
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// A file of a snapshot, if it is there whole. A link must end inside the repository's folder.
    pub(super) fn file(&self, commit: &str, file: &Path) -> Result<Option<PathBuf>, FetchError> {
        let path = self.snapshot(commit).join(file);
        let Ok(target) = path.canonicalize() else {
            return Ok(None);
        };
        let root = self
            .root
            .canonicalize()
            .map_err(|e| FetchError::io("reading", &self.root, 0, e))?;
        if !target.starts_with(&root) {
            return Err(FetchError::Escape { path, target });
        }
        Ok(target.is_file().then_some(path))
    }

    /// Makes `file` of the snapshot name the blob.
    pub(super) fn link(
        &self,
        commit: &str,
        file: &Path,
        etag: &str,
    ) -> Result<PathBuf, FetchError> {
        let path = self.snapshot(commit).join(file);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(|e| FetchError::io("creating", folder, 0, e))?;
        let up = file.components().count() + 1;
        let mut target: PathBuf = std::iter::repeat_n("..", up).collect();
        target.push("blobs");
        target.push(etag);
        match symlink(&target, &path) {
            Ok(()) => Ok(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // Another process linked it, or a link whose blob is gone stands there.
                if path.exists() {
                    return Ok(path);
                }
                fs::remove_file(&path).map_err(|e| FetchError::io("removing", &path, 0, e))?;
                symlink(&target, &path).map_err(|e| FetchError::io("linking", &path, 0, e))?;
                Ok(path)
            }
            Err(e) => Err(FetchError::io("linking", &path, 0, e)),
        }
    }
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::hard_link(folder.join(target), path)
}

/// Writes a small file so that no reader sees half of it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FetchError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|e| FetchError::io("creating", folder, 0, e))?;
    // A name of its own for each writer: threads that fetch one file write its revision at the same time.
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("tmp{}-{writer}", std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut f| f.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| FetchError::io("writing", path, bytes.len() as u64, e))
}

/// An exclusive lock on `path`, held until dropped. The system drops it with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock; calls `waiting` first if another process holds it.
    pub(crate) fn take(path: &Path, waiting: impl FnOnce()) -> Result<Self, FetchError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|e| FetchError::io("creating", folder, 0, e))?;
        let options = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = options.map_err(|e| FetchError::io("creating", path, 0, e))?;
        if file.try_lock().is_err() {
            waiting();
            file.lock()
                .map_err(|e| FetchError::io("locking", path, 0, e))?;
        }
        Ok(Self { _file: file })
    }
}
