// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file, fetched to disk: resumed where it stopped, hashed as it comes, given its name when it is right.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, Method, StatusCode, header};

use super::http::{Client, Follow, protocol};
use super::{FetchError, Progress};

const CHUNK: usize = 256 << 10;

/// What a file must turn out to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Bytes, if known.
    pub(crate) size: Option<u64>,
    /// Lower-case hexadecimal, if known.
    pub(crate) sha256: Option<String>,
}

/// How often a connection may fail in a row without a byte having come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retries {
    pub(super) most: u32,
    /// Wait before the first repetition; it doubles.
    pub(super) delay: Duration,
}

/// Fetches `url` to `path`. The caller holds the lock on it.
pub(super) fn fetch(
    client: &Client,
    url: &str,
    path: &Path,
    expected: &Expected,
    retries: Retries,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    let what = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut part = Part::open(incomplete(path))?;
    progress.begin(&what, expected.size, part.len);
    let result = repeat(client, url, expected, retries, &mut part, progress);
    progress.end();
    result?;
    part.finish(path, &what, expected)
}

/// Where a file stands while it comes.
pub(crate) fn incomplete(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(".incomplete");
    path.with_file_name(name)
}

fn repeat(
    client: &Client,
    url: &str,
    expected: &Expected,
    retries: Retries,
    part: &mut Part,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    let mut failures = 0;
    loop {
        let before = part.len;
        let result = once(client, url, expected, part, progress);
        match result {
            Err(e) if e.is_passing() => {
                failures = if part.len > before { 1 } else { failures + 1 };
                if failures > retries.most {
                    return Err(e);
                }
                progress.note(&format!("{e}; trying again at byte {}", part.len));
                std::thread::sleep(retries.delay * 2u32.saturating_pow(failures - 1));
            }
            other => return other,
        }
    }
}

/// One request: asks for what is missing and appends it.
fn once(
    client: &Client,
    url: &str,
    expected: &Expected,
    part: &mut Part,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    if expected.size.is_some_and(|size| part.len > size) {
        part.restart()?;
    }
    if expected.size == Some(part.len) && part.len > 0 {
        return Ok(());
    }
    let response = client.send(Method::GET, url, part.len, Follow::All, |_, _| {})?;
    let status = response.status();
    match status {
        StatusCode::OK => part.restart()?, // the server sends the whole: it cannot resume
        StatusCode::PARTIAL_CONTENT if range_start(response.headers()) == Some(part.len) => {}
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if part.len > 0 => {
            part.restart()?;
            return Err(FetchError::Network {
                url: shown(url),
                what: "the server does not continue where asked".into(),
            });
        }
        _ => {
            return Err(FetchError::Status {
                url: shown(url),
                status: status.as_u16(),
            });
        }
    }
    let announced = response
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let total = announced.map(|n| n.saturating_add(part.len));
    if let (Some(total), Some(size)) = (total, expected.size)
        && total != size
    {
        return Err(protocol(
            url,
            format!("announces {total} bytes, expected {size}"),
        ));
    }
    let end = expected.size.or(total);
    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                return Err(FetchError::Network {
                    url: shown(url),
                    what: format!("the connection broke: {e}"),
                });
            }
        };
        if end.is_some_and(|end| part.len + read as u64 > end) {
            return Err(protocol(url, "sends more bytes than announced"));
        }
        part.append(&buffer[..read], end)?;
        progress.advance(read as u64);
    }
    match end {
        Some(end) if part.len < end => {
            let what = format!("the connection ended after {} of {end} bytes", part.len);
            Err(FetchError::Network {
                url: shown(url),
                what,
            })
        }
        _ => Ok(()),
    }
}

fn shown(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

/// The first byte of `Content-Range: bytes FIRST-LAST/TOTAL`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// A file on its way, with the hash of what is there.
pub(crate) struct Part {
    file: File,
    path: PathBuf,
    hash: Sha256,
    len: u64,
}

impl Part {
    /// Opens what an earlier attempt left, or an empty file, and hashes it.
    pub(crate) fn open(path: PathBuf) -> Result<Self, FetchError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|e| FetchError::io("creating", folder, 0, e))?;
        let opened = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = opened.map_err(|e| FetchError::io("creating", &path, 0, e))?;
        let mut hash = Sha256::new();
        let mut len = 0;
        let mut buffer = vec![0; CHUNK];
        // Device files and the like are no part of a download: what counts is the length that the system states.
        let mut left = file
            .metadata()
            .map_err(|e| FetchError::io("reading", &path, 0, e))?
            .len();
        while left > 0 {
            let want = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = file
                .read(&mut buffer[..want])
                .map_err(|e| FetchError::io("reading", &path, 0, e))?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            len += read as u64;
            left -= read as u64;
        }
        Ok(Self {
            file,
            path,
            hash,
            len,
        })
    }

    fn restart(&mut self) -> Result<(), FetchError> {
        if self.len == 0 {
            return Ok(());
        }
        let emptied = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|e| FetchError::io("emptying", &self.path, 0, e))?;
        self.hash = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// Appends bytes; `end` is the length that the file will have, if known.
    pub(crate) fn append(&mut self, bytes: &[u8], end: Option<u64>) -> Result<(), FetchError> {
        let missing = end
            .unwrap_or(0)
            .saturating_sub(self.len)
            .max(bytes.len() as u64);
        self.file
            .write_all(bytes)
            .map_err(|e| FetchError::io("writing", &self.path, missing, e))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Checks the whole and gives it its name; a wrong file is removed.
    pub(crate) fn finish(
        self,
        path: &Path,
        what: &str,
        expected: &Expected,
    ) -> Result<(), FetchError> {
        let wrong = |error| {
            // The error to tell of is the wrong file; one that cannot be removed is found again next time.
            let _ = fs::remove_file(&self.path);
            Err(error)
        };
        if let Some(size) = expected.size.filter(|size| *size != self.len) {
            return wrong(FetchError::WrongSize {
                what: what.to_owned(),
                expected: size,
                got: self.len,
            });
        }
        let got = hex(&self.hash.clone().finalize());
        if let Some(sha256) = expected.sha256.as_ref().filter(|sha256| **sha256 != got) {
            return wrong(FetchError::WrongHash {
                what: what.to_owned(),
                expected: sha256.clone(),
                got,
            });
        }
        self.file
            .sync_all()
            .map_err(|e| FetchError::io("writing", &self.path, 0, e))?;
        fs::rename(&self.path, path).map_err(|e| FetchError::io("naming", path, 0, e))
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
