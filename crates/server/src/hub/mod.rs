// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lean client of the Hugging Face hub: names a file, gets a path.
//!
//! It asks the hub what a name stands for (`HEAD /org/name/resolve/REVISION/FILE` gives the commit, the file's tag and
//! size), takes the file from the cache if it is there, and fetches it otherwise. The cache is the one that
//! `huggingface_hub` keeps (module `cache`). What holds:
//!
//! - a file has its final name only when it is whole and, where the tag is a sha256, has that hash;
//! - a broken or killed download goes on where it stopped;
//! - of several processes one fetches and the others wait for it;
//! - `HF_TOKEN` is sent to the hub's own origin only, never along a redirect to another;
//! - with `HF_HUB_OFFLINE` or `METRALE_OFFLINE` nothing is sent at all.

pub(crate) mod cache;
pub(crate) mod download;
mod error;
mod http;
mod list;
mod name;
mod progress;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::{HeaderMap, Method, StatusCode};

use self::cache::{Lock, RepoCache};
use self::download::{Expected, Retries};
use self::http::{Client, Follow};

pub use self::error::FetchError;
pub use self::list::CachedRepo;
pub use self::name::{MAIN, RepoId, relative};
pub use self::progress::{Progress, Silent};

/// Where the hub is and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubOptions {
    /// Address of the hub. Default `https://huggingface.co` (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Access token (`HF_TOKEN`).
    pub token: Option<String>,
    /// Folder of the cache (`HF_HUB_CACHE`, `HF_HOME`).
    pub cache: PathBuf,
    /// Never use the network.
    pub offline: bool,
    /// PEM file with root certificates in place of the built-in ones (`SSL_CERT_FILE`).
    pub certificates: Option<PathBuf>,
    /// Times that a failing connection is tried again. Default 4.
    pub retries: u32,
    /// Wait before the first repetition, doubled each time. Default 1 s.
    pub retry_delay: Duration,
}

impl HubOptions {
    /// Reads the variables that `huggingface_hub` reads. `offline` is `METRALE_OFFLINE`.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>, offline: bool) -> Self {
        let set = |name: &str| variable(name).filter(|v| !v.is_empty());
        let cache_home = || {
            set("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| set("HOME").map(|h| Path::new(&h).join(".cache")))
        };
        let home = set("HF_HOME")
            .map(PathBuf::from)
            .or_else(|| cache_home().map(|c| c.join("huggingface")))
            .unwrap_or_else(|| PathBuf::from(".cache/huggingface"));
        let yes =
            |v: String| matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
        Self {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token: set("HF_TOKEN").map(|t| t.trim().to_owned()),
            cache: set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            offline: offline || set("HF_HUB_OFFLINE").is_some_and(yes),
            certificates: set("SSL_CERT_FILE").map(PathBuf::from),
            retries: 4,
            retry_delay: Duration::from_secs(1),
        }
    }
}

/// The hub.
#[derive(Debug)]
pub struct Hub {
    options: HubOptions,
    client: Client,
}

/// One file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// The repository.
    pub repo: RepoId,
    /// A branch, tag or commit.
    pub revision: String,
    /// The file's name in the repository.
    pub file: String,
    /// The sha256 that the file must have, in lower-case hexadecimal: another one is refused before it is fetched.
    pub sha256: Option<String>,
}

impl HubFile {
    fn shown(&self) -> String {
        format!("{}/{} ({})", self.repo, self.file, self.revision)
    }
}

/// What the hub says of a file.
#[derive(Debug, Default)]
struct Facts {
    commit: Option<String>,
    etag: Option<String>,
    size: Option<u64>,
}

impl Hub {
    /// A client.
    ///
    /// # Errors
    /// [`FetchError::Name`] if the endpoint is not a web address; [`FetchError::Io`] if the certificates cannot be read.
    pub fn new(options: HubOptions) -> Result<Self, FetchError> {
        let pem = match &options.certificates {
            Some(path) => {
                Some(std::fs::read(path).map_err(|e| FetchError::io("reading", path, 0, e))?)
            }
            None => None,
        };
        let client = Client::new(&options.endpoint, options.token.clone(), pem.as_deref())?;
        Ok(Self { options, client })
    }

    /// How it was set up.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }

    /// The file's path in the cache if it is there, without asking the hub.
    ///
    /// # Errors
    /// [`FetchError::Name`] for a bad name, [`FetchError::Escape`] if the cache's entry leads out of it.
    pub fn cached(&self, file: &HubFile) -> Result<Option<PathBuf>, FetchError> {
        let cache = RepoCache::new(&self.options.cache, &file.repo);
        let path = relative(&file.file)?;
        let revision = name::revision(&file.revision)?;
        let commit = if name::is_commit(revision) {
            Some(revision.to_owned())
        } else {
            cache.commit(revision)
        };
        let found = match commit {
            Some(commit) => cache.file(&commit, &path)?,
            None => None,
        };
        // The blob's name is the hash it was checked against.
        let is_it = |path: &PathBuf| match &file.sha256 {
            None => true,
            Some(sha256) => path
                .canonicalize()
                .is_ok_and(|p| p.file_name().is_some_and(|n| n == sha256.as_str())),
        };
        Ok(found.filter(is_it))
    }

    /// The file's path, fetched if need be.
    ///
    /// # Errors
    /// Every [`FetchError`].
    pub fn file(&self, file: &HubFile, progress: &dyn Progress) -> Result<PathBuf, FetchError> {
        let cached = self.cached(file)?;
        if let (Some(path), true) = (
            &cached,
            name::is_commit(&file.revision) || self.options.offline,
        ) {
            return Ok(path.clone());
        }
        if self.options.offline {
            return Err(FetchError::Offline { what: file.shown() });
        }
        match (self.ask_and_fetch(file, progress), cached) {
            (Err(e @ FetchError::Network { .. }), Some(path)) => {
                progress.note(&format!("{e}; using the copy in the cache"));
                Ok(path)
            }
            (result, _) => result,
        }
    }

    fn ask_and_fetch(
        &self,
        file: &HubFile,
        progress: &dyn Progress,
    ) -> Result<PathBuf, FetchError> {
        let path = relative(&file.file)?;
        let facts = self.ask(file)?;
        let url = self.resolve_url(file, &file.revision);
        let lacks =
            |what: &str| http::protocol(&url, format!("the answer lacks {what}; is it a hub?"));
        let commit = facts
            .commit
            .filter(|c| name::is_commit(c))
            .ok_or_else(|| lacks("X-Repo-Commit"))?;
        let etag = facts
            .etag
            .filter(|t| is_tag(t))
            .ok_or_else(|| lacks("ETag"))?;
        let hash = (etag.len() == 64).then(|| etag.clone());
        if let Some(sha256) = file
            .sha256
            .as_ref()
            .filter(|s| hash.as_ref().is_some_and(|h| h != *s))
        {
            return Err(FetchError::OtherFile {
                what: file.shown(),
                expected: sha256.clone(),
                got: etag,
            });
        }

        let cache = RepoCache::new(&self.options.cache, &file.repo);
        if !name::is_commit(&file.revision) {
            cache.set_commit(&file.revision, &commit)?;
        }
        if let Some(path) = cache.file(&commit, &path)? {
            return Ok(path);
        }
        let blob = cache.blob(&etag);
        let _lock = Lock::take(&cache.lock(&etag), || {
            progress.note(&format!(
                "another process is fetching {}; waiting for it",
                file.file
            ));
        })?;
        if !blob.is_file() {
            let expected = Expected {
                size: facts.size,
                sha256: hash.or_else(|| file.sha256.clone()),
            };
            let retries = Retries {
                most: self.options.retries,
                delay: self.options.retry_delay,
            };
            let url = self.resolve_url(file, &commit);
            download::fetch(&self.client, &url, &blob, &expected, retries, progress)
                .map_err(|e| self.told(e, &file.shown()))?;
        }
        cache.link(&commit, &path, &etag)
    }

    /// Asks what a name stands for, twice at most: on a machine without network the answer must not take long.
    fn ask(&self, file: &HubFile) -> Result<Facts, FetchError> {
        let url = self.resolve_url(file, &file.revision);
        let mut failures = 0;
        loop {
            let mut facts = Facts::default();
            let sent = self
                .client
                .send(Method::HEAD, &url, 0, Follow::Hub, |status, headers| {
                    facts.take(status, headers)
                });
            let result = sent.and_then(|r| match r.status() {
                s if s.is_success() || s.is_redirection() => Ok(()),
                s => Err(FetchError::Status {
                    url: url.clone(),
                    status: s.as_u16(),
                }),
            });
            match result {
                Ok(()) => return Ok(facts),
                Err(e) if e.is_passing() && failures < self.options.retries.min(1) => {
                    std::thread::sleep(self.options.retry_delay * 2u32.saturating_pow(failures));
                    failures += 1;
                }
                Err(e) => return Err(self.told(e, &file.shown())),
            }
        }
    }

    fn resolve_url(&self, file: &HubFile, revision: &str) -> String {
        let escape = |s: &str| s.replace(' ', "%20");
        // A revision's slash would end the path element.
        let revision = revision.replace('/', "%2F");
        self.client.url(&format!(
            "/{}/resolve/{revision}/{}",
            file.repo,
            escape(&file.file)
        ))
    }

    /// Names the file where a status has a plain meaning.
    fn told(&self, error: FetchError, what: &str) -> FetchError {
        let (what, host) = (what.to_owned(), self.client.host().to_owned());
        match error {
            FetchError::Status {
                status: status @ (404 | 410),
                ..
            } => FetchError::NotFound { what, host, status },
            FetchError::Status {
                status: status @ (401 | 403),
                ..
            } => FetchError::Forbidden { what, host, status },
            other => other,
        }
    }
}

impl Facts {
    /// Takes what an answer says: the first commit and tag in a chain of redirects are the file's own.
    fn take(&mut self, status: StatusCode, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let tag = |name: &str| {
            text(name).map(|t| t.trim_start_matches("W/").trim_matches('"').to_owned())
        };
        self.commit = self
            .commit
            .take()
            .or_else(|| text("x-repo-commit").map(str::to_owned));
        self.etag = self.etag.take().or_else(|| tag("x-linked-etag"));
        let number = |name: &str| text(name).and_then(|t| t.parse().ok());
        self.size = self.size.or_else(|| number("x-linked-size"));
        if status.is_success() {
            self.etag = self.etag.take().or_else(|| tag("etag"));
            self.size = self.size.or_else(|| number("content-length"));
        }
    }
}

/// Whether a tag can name a file in the cache.
fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && tag
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> HubOptions {
        let find = |name: &str| {
            pairs
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        };
        HubOptions::from_env(find, false)
    }

    #[test]
    fn the_variables_of_huggingface_hub_are_read() {
        let plain = options(&[("HOME", "/h")]);
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(
            (plain.endpoint.as_str(), plain.offline),
            ("https://huggingface.co", false)
        );
        assert_eq!(
            options(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).cache,
            Path::new("/x/huggingface/hub")
        );
        assert_eq!(
            options(&[("HOME", "/h"), ("HF_HOME", "/y")]).cache,
            Path::new("/y/hub")
        );
        assert_eq!(
            options(&[("HF_HOME", "/y"), ("HF_HUB_CACHE", "/z")]).cache,
            Path::new("/z")
        );
        assert!(options(&[("HF_HUB_OFFLINE", "yes")]).offline);
        assert!(!options(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert_eq!(
            options(&[("HF_TOKEN", " t\n"), ("HF_ENDPOINT", "")])
                .token
                .as_deref(),
            Some("t")
        );
    }

    #[test]
    fn survival_39_a_tag_is_a_file_name() {
        assert!(is_tag("b179c952-12"));
        for bad in ["", "../x", "a/b", ".", "a.b", "a b"] {
            assert!(!is_tag(bad), "{bad}");
        }
    }
}
