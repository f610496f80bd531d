// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole checkpoints: which files of a repository one needs.

use std::io::Read;
use std::path::PathBuf;

use serde::Deserialize;
use ureq::http::Method;

use super::cache::RepoCache;
use super::http::{Follow, protocol};
use super::{FetchError, Hub, HubFile, Progress, RepoId, name};

/// Bytes of a repository's file list. The longest have some thousand files of 200 bytes each.
const LIST_BYTES: u64 = 32 << 20;

/// The small files of a checkpoint, beside its weights.
const SMALL: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
];

#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepo {
    /// The repository.
    pub repo: RepoId,
    /// Whole files.
    pub files: usize,
    /// Their bytes together.
    pub bytes: u64,
}

impl Hub {
    /// Fetches a repository's checkpoint: its safetensors folder, or its single GGUF file. Gives the path to load.
    ///
    /// # Errors
    /// [`FetchError::Choice`] if the repository holds neither, or several GGUF files; else as [`Hub::file`].
    pub fn checkpoint(
        &self,
        repo: &RepoId,
        revision: &str,
        progress: &dyn Progress,
    ) -> Result<PathBuf, FetchError> {
        let revision = name::revision(revision)?;
        if self.options.offline {
            return self
                .cached_checkpoint(repo, revision)?
                .ok_or_else(|| FetchError::Offline {
                    what: repo.to_string(),
                });
        }
        let listing = match self.list(repo, revision) {
            Ok(listing) => listing,
            Err(e @ FetchError::Network { .. }) => match self.cached_checkpoint(repo, revision)? {
                Some(path) => {
                    progress.note(&format!("{e}; using the copy in the cache"));
                    return Ok(path);
                }
                None => return Err(e),
            },
            Err(e) => return Err(e),
        };
        let names: Vec<String> = listing.siblings.into_iter().map(|s| s.rfilename).collect();
        let wanted = choose(repo, &names)?;
        let mut first = None;
        for file in &wanted {
            let file = HubFile {
                repo: repo.clone(),
                revision: listing.sha.clone(),
                file: file.clone(),
                sha256: None,
            };
            let path = self.file(&file, progress)?;
            first.get_or_insert(path);
        }
        RepoCache::new(&self.options.cache, repo).set_commit(revision, &listing.sha)?;
        Ok(match &wanted[..] {
            [single] if single.ends_with(".gguf") => first.unwrap_or_default(),
            _ => RepoCache::new(&self.options.cache, repo).snapshot(&listing.sha),
        })
    }

    /// The checkpoint's path as far as the cache knows it, without asking the hub.
    ///
    /// # Errors
    /// [`FetchError::Escape`] if a file in the cache leads out of it.
    pub fn cached_checkpoint(
        &self,
        repo: &RepoId,
        revision: &str,
    ) -> Result<Option<PathBuf>, FetchError> {
        let cache = RepoCache::new(&self.options.cache, repo);
        let revision = name::revision(revision)?;
        let commit = if name::is_commit(revision) {
            Some(revision.to_owned())
        } else {
            cache.commit(revision)
        };
        let Some(commit) = commit else {
            return Ok(None);
        };
        let folder = cache.snapshot(&commit);
        let Ok(entries) = std::fs::read_dir(&folder) else {
            return Ok(None);
        };
        let names: Vec<String> = entries
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        match choose(repo, &names).ok().as_deref() {
            Some([single]) if single.ends_with(".gguf") => cache.file(&commit, single.as_ref()),
            Some(files) => {
                for file in files {
                    if cache.file(&commit, file.as_ref())?.is_none() {
                        return Ok(None);
                    }
                }
                Ok(Some(folder))
            }
            None => Ok(None),
        }
    }

    /// The repositories in the cache, by name. What cannot be read is left out.
    pub fn cached_repos(&self) -> Vec<CachedRepo> {
        let entries = std::fs::read_dir(&self.options.cache)
            .into_iter()
            .flatten()
            .flatten();
        let repo = |folder: std::ffi::OsString| {
            let name = folder
                .to_str()?
                .strip_prefix("models--")?
                .replacen("--", "/", 1);
            RepoId::new(&name).ok()
        };
        let mut repos: Vec<CachedRepo> = entries
            .filter_map(|e| {
                let repo = repo(e.file_name())?;
                let blobs = std::fs::read_dir(e.path().join("blobs")).ok()?.flatten();
                let sizes: Vec<u64> = blobs
                    .filter(|b| !b.file_name().to_string_lossy().ends_with(".incomplete"))
                    .filter_map(|b| b.metadata().ok())
                    .map(|m| m.len())
                    .collect();
                Some(CachedRepo {
                    repo,
                    files: sizes.len(),
                    bytes: sizes.iter().sum(),
                })
            })
            .collect();
        repos.sort_by(|a, b| a.repo.cmp(&b.repo));
        repos
    }

    fn list(&self, repo: &RepoId, revision: &str) -> Result<Listing, FetchError> {
        let url = self.client.url(&format!(
            "/api/models/{repo}/revision/{}",
            revision.replace('/', "%2F")
        ));
        let response = self
            .client
            .send(Method::GET, &url, 0, Follow::All, |_, _| {})?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.told(
                FetchError::Status {
                    url,
                    status: status.as_u16(),
                },
                repo.as_str(),
            ));
        }
        let mut text = Vec::new();
        let read = response
            .into_body()
            .into_reader()
            .take(LIST_BYTES)
            .read_to_end(&mut text);
        read.map_err(|e| FetchError::Network {
            url: url.clone(),
            what: e.to_string(),
        })?;
        let listing: Listing = serde_json::from_slice(&text)
            .map_err(|e| protocol(&url, format!("the list of files: {e}")))?;
        if !name::is_commit(&listing.sha) {
            return Err(protocol(&url, "the list of files names no commit"));
        }
        Ok(listing)
    }
}

/// Which files to fetch: the weights decide. Files in folders (ONNX exports, originals) are left out.
fn choose(repo: &RepoId, names: &[String]) -> Result<Vec<String>, FetchError> {
    let top: Vec<&String> = names.iter().filter(|n| !n.contains('/')).collect();
    let has = |name: &str| top.iter().any(|n| *n == name);
    let safetensors: Vec<&&String> = top.iter().filter(|n| n.ends_with(".safetensors")).collect();
    if has("config.json") && !safetensors.is_empty() {
        let small = SMALL.iter().filter(|n| has(n)).map(|n| (*n).to_owned());
        return Ok(small
            .chain(safetensors.into_iter().map(|n| (*n).clone()))
            .collect());
    }
    let gguf: Vec<&str> = top
        .iter()
        .filter(|n| n.ends_with(".gguf"))
        .map(|n| n.as_str())
        .collect();
    let what = match gguf[..] {
        [single] => return Ok(vec![single.to_owned()]),
        [] => "no config.json with .safetensors and no .gguf file".to_owned(),
        _ => format!(
            "several GGUF files; name one as {repo}:FILE ({})",
            gguf.join(", ")
        ),
    };
    Err(FetchError::Choice {
        repo: repo.to_string(),
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        choose(&RepoId::new("a/b").unwrap(), &names).map_err(|e| e.to_string())
    }

    #[test]
    fn safetensors_come_with_their_small_files() {
        let all = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "onnx/model.onnx",
            "x/y.safetensors",
        ];
        assert_eq!(
            chosen(&all).unwrap(),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
    }

    #[test]
    fn of_several_gguf_files_one_must_be_named() {
        assert_eq!(chosen(&["a.gguf", "README.md"]).unwrap(), ["a.gguf"]);
        let e = chosen(&["a.gguf", "b.gguf"]).unwrap_err();
        assert!(e.contains("a/b:FILE") && e.contains("b.gguf"), "{e}");
        assert!(
            chosen(&["pytorch_model.bin"])
                .unwrap_err()
                .contains("no .gguf")
        );
    }
}
