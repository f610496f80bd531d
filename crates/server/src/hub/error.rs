// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a file could not be fetched.

use std::io;
use std::path::{Path, PathBuf};

/// A download that gave no file. What was fetched so far stays beside the cache's files and is resumed next time, except
/// where the variant says that it was removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A repository id or file name that would leave the cache, or is no name at all.
    #[error("`{name}` is not a {what}")]
    Name {
        /// The name.
        name: String,
        /// What was expected.
        what: &'static str,
    },
    /// The network may not be used and the file is not in the cache.
    #[error(
        "{what} is not in the cache and the network is switched off (HF_HUB_OFFLINE or METRALE_OFFLINE is set)"
    )]
    Offline {
        /// Repository and file.
        what: String,
    },
    /// The server has no such repository, revision or file.
    #[error(
        "{what}: not found on {host} (status {status}); check the name, or set HF_TOKEN if it is private"
    )]
    NotFound {
        /// Repository and file.
        what: String,
        /// The server.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// The server wants other or any credentials.
    #[error(
        "{what}: {host} refuses access (status {status}); accept the model's terms there and set HF_TOKEN"
    )]
    Forbidden {
        /// Repository and file.
        what: String,
        /// The server.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// Another status than the protocol foresees.
    #[error("{url}: status {status}")]
    Status {
        /// Without query.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// An answer that breaks the protocol.
    #[error("{url}: {what}")]
    Protocol {
        /// Without query.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// No connection, or it broke more often than is retried.
    #[error("{url}: {what}")]
    Network {
        /// Without query.
        url: String,
        /// The transport's reason.
        what: String,
    },
    /// The file has another hash than it should; what was fetched has been removed.
    #[error("{what}: sha256 is {got}, expected {expected}; the file was removed")]
    WrongHash {
        /// The file.
        what: String,
        /// Lower-case hexadecimal.
        expected: String,
        /// Lower-case hexadecimal.
        got: String,
    },
    /// The server announces another file than the pinned one; nothing was fetched.
    #[error("{what}: the server has a file with sha256 {got}, expected {expected}; not fetched")]
    OtherFile {
        /// The file.
        what: String,
        /// Lower-case hexadecimal.
        expected: String,
        /// Lower-case hexadecimal, or the server's tag.
        got: String,
    },
    /// The file has another size than announced; what was fetched has been removed.
    #[error("{what}: {got} bytes, expected {expected}; the file was removed")]
    WrongSize {
        /// The file.
        what: String,
        /// Bytes.
        expected: u64,
        /// Bytes.
        got: u64,
    },
    /// The disk or quota is full.
    #[error("no space left for {}: free at least {missing} bytes and try again, the download resumes; or set METRALE_HOME or HF_HOME to another disk", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// Bytes still to come.
        missing: u64,
    },
    /// A file in the cache points out of the cache.
    #[error("{} points outside the cache ({}); remove it", path.display(), target.display())]
    Escape {
        /// The file.
        path: PathBuf,
        /// Where it points.
        target: PathBuf,
    },
    /// Another failure of the file system.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// The attempt: `creating`, `writing`, ...
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The hub's list of a repository's files holds none that can be served, or several.
    #[error("{repo}: {what}")]
    Choice {
        /// The repository.
        repo: String,
        /// What there is, and how to name one.
        what: String,
    },
}

impl FetchError {
    /// Turns an I/O error at `path` into its variant. `missing` is what is still to be written, in bytes.
    pub(crate) fn io(doing: &'static str, path: &Path, missing: u64, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull {
                path: path.to_owned(),
                missing,
            },
            _ => Self::Io {
                doing,
                path: path.to_owned(),
                source,
            },
        }
    }

    /// Whether trying again without a change could help.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Network { .. })
            || matches!(self, Self::Status { status, .. } if *status >= 500 || *status == 429)
    }
}
