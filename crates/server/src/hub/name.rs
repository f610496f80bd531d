// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of repositories and files, checked before they become paths or URLs.

use std::fmt;
use std::path::{Path, PathBuf};

use super::FetchError;

/// Revision that is taken where none is named.
pub const MAIN: &str = "main";

/// A model repository on the hub: `organization/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoId {
    id: String,
}

impl RepoId {
    /// Checks an id: two parts of letters, digits, `-`, `_` and `.`, neither beginning with `.` or `-`.
    ///
    /// # Errors
    /// [`FetchError::Name`].
    pub fn new(id: &str) -> Result<Self, FetchError> {
        let good = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.contains("--")
                && !part.contains("..")
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        match id.split_once('/') {
            Some((owner, name)) if good(owner) && good(name) => Ok(Self { id: id.to_owned() }),
            _ => Err(FetchError::Name {
                name: id.to_owned(),
                what: "repository id (organization/name)",
            }),
        }
    }

    /// `organization/name`.
    pub fn as_str(&self) -> &str {
        &self.id
    }

    /// The repository's folder in the cache: `models--organization--name`.
    pub fn folder(&self) -> String {
        format!("models--{}", self.id.replace('/', "--"))
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

/// Checks a file's name inside a repository or an archive: relative, with `/` between parts, none of them `.` or `..`,
/// nothing that a file system or URL would read otherwise. Gives it as a relative path.
///
/// # Errors
/// [`FetchError::Name`].
pub fn relative(name: &str) -> Result<PathBuf, FetchError> {
    let good = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= 255
            && !part.chars().any(|c| {
                c.is_control()
                    || matches!(
                        c,
                        '\\' | ':' | '?' | '#' | '%' | '*' | '"' | '<' | '>' | '|'
                    )
            })
    };
    if name.split('/').all(good) {
        Ok(Path::new(name).to_owned())
    } else {
        Err(FetchError::Name {
            name: name.to_owned(),
            what: "file name inside a repository",
        })
    }
}

/// Checks a revision: a branch, tag or commit, without what would leave `refs/`.
pub(super) fn revision(name: &str) -> Result<&str, FetchError> {
    let good = !name.is_empty()
        && name
            .split('/')
            .all(|p| !p.is_empty() && !p.starts_with('.') && !p.contains(".."));
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
    if good && plain {
        Ok(name)
    } else {
        Err(FetchError::Name {
            name: name.to_owned(),
            what: "revision",
        })
    }
}

/// Whether `revision` is a commit, which never changes.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40
        && revision
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_ids() {
        assert_eq!(
            RepoId::new("a-b/c.d_e").unwrap().folder(),
            "models--a-b--c.d_e"
        );
        for bad in [
            "a", "a/b/c", "../b", "a/..", "a/", "/b", "a b/c", "a--b/c", "a/b\0", "-a/b", "a/.b",
            "é/b",
        ] {
            assert!(RepoId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn survival_39_names_do_not_leave_the_folder() {
        assert_eq!(relative("a/b.gguf").unwrap(), Path::new("a/b.gguf"));
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/./b",
            "a\\..\\b",
            "C:x",
            "a?b",
            "a\0b",
            "a%2e",
            "..",
            "a/",
        ] {
            assert!(relative(bad).is_err(), "{bad:?}");
        }
        assert!(revision("refs/pr/1").is_ok());
        for bad in ["", "..", "a/../b", "/a", "a b", ".git"] {
            assert!(revision(bad).is_err(), "{bad:?}");
        }
    }
}
