// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files a checkpoint folder may lead to.
//!
//! A folder that was downloaded is not trusted: a shard index may name `../../secret`, and a link may point anywhere.
//! A file counts as part of a checkpoint if, links resolved, it lies in the folder itself or, where the folder is a
//! snapshot of a hub cache (`models--OWNER--NAME/snapshots/REVISION`), in that repository's `blobs` beside it.

use std::path::{Component, Path, PathBuf};

use crate::WeightsError;

/// A checkpoint folder and the folders that its files may really lie in.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    roots: Vec<PathBuf>,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        let real = path.canonicalize().map_err(|e| WeightsError::io(path, e))?;
        let mut roots = vec![real.clone()];
        if let Some(snapshots) = real.parent()
            && snapshots.file_name().is_some_and(|n| n == "snapshots")
            && let Some(repository) = snapshots.parent()
        {
            roots.push(repository.join("blobs"));
        }
        Ok(Self {
            path: path.to_owned(),
            roots,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file called `name` in the folder; `None` if there is none.
    pub(crate) fn find(&self, name: &str) -> Result<Option<PathBuf>, WeightsError> {
        let path = self.path.join(name);
        let plain = |c: Component<'_>| matches!(c, Component::Normal(_));
        if name.is_empty() || name.contains('\0') || !Path::new(name).components().all(plain) {
            return Err(WeightsError::Escapes {
                path,
                why: format!("{name:?} is no plain name of a file in the checkpoint folder"),
            });
        }
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(WeightsError::io(path, e)),
        };
        if self.roots.iter().any(|root| real.starts_with(root)) {
            return Ok(Some(path));
        }
        Err(WeightsError::Escapes {
            why: format!(
                "it is a link to {}, outside of the checkpoint folder; \
                 put the file itself into the folder",
                real.display()
            ),
            path,
        })
    }

    /// Names of the files directly in the folder that end in `suffix`, sorted.
    pub(crate) fn names_ending(&self, suffix: &str) -> Result<Vec<String>, WeightsError> {
        self.names_in_ending("", suffix)
    }

    /// Names of the files directly in `subfolder` that end in `suffix`, sorted.
    pub(crate) fn names_in_ending(
        &self,
        subfolder: &str,
        suffix: &str,
    ) -> Result<Vec<String>, WeightsError> {
        let path = self.path.join(subfolder);
        let io = |e| WeightsError::io(&path, e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            if let Some(name) = name.to_str().filter(|n| n.ends_with(suffix)) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}
