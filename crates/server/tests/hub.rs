// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hub client against a stand-in server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod standin;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use metrale_server::hub::{FetchError, Hub, HubFile, HubOptions, Progress, RepoId, Silent};
use sha2::{Digest, Sha256};
use standin::{Answer, Seen, Server};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILE: &str = "model.gguf";

fn content() -> Vec<u8> {
    (0..100_000u32)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A folder of the test's own, empty.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("hub")
        .join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn hub(url: &str, cache: &Path) -> Hub {
    Hub::new(options(url, cache)).unwrap()
}

fn options(url: &str, cache: &Path) -> HubOptions {
    HubOptions {
        endpoint: url.to_owned(),
        token: Some("secret".to_owned()),
        cache: cache.to_owned(),
        offline: false,
        certificates: None,
        retries: 3,
        retry_delay: Duration::ZERO,
    }
}

fn file() -> HubFile {
    HubFile {
        repo: RepoId::new("org/name").unwrap(),
        revision: "main".into(),
        file: FILE.into(),
        sha256: None,
    }
}

fn blob(cache: &Path) -> PathBuf {
    cache
        .join("models--org--name/blobs")
        .join(sha256(&content()))
}

fn incomplete(cache: &Path) -> PathBuf {
    blob(cache).with_extension("incomplete")
}

/// What the hub answers for the file: its facts to HEAD, its bytes from where asked to GET.
fn answer(request: &Seen) -> Answer {
    let all = content();
    let mut headers = vec![
        ("X-Repo-Commit", COMMIT.to_owned()),
        ("X-Linked-Etag", format!("\"{}\"", sha256(&all))),
        ("X-Linked-Size", all.len().to_string()),
    ];
    let from = request.from() as usize;
    let (status, body) = match from {
        0 => (200, all),
        _ if from >= all.len() => {
            return Answer {
                status: 416,
                headers,
                ..Answer::default()
            };
        }
        _ => {
            headers.push((
                "Content-Range",
                format!("bytes {from}-{}/{}", all.len() - 1, all.len()),
            ));
            (206, all[from..].to_vec())
        }
    };
    if request.method == "HEAD" {
        headers.push(("Content-Length", body.len().to_string()));
    }
    Answer {
        status,
        headers,
        body,
        ..Answer::default()
    }
}

#[test]
fn a_file_is_fetched_into_the_layout_of_huggingface_hub() {
    let (server, cache) = (Server::start(answer), folder("layout"));
    let path = hub(&server.url, &cache).file(&file(), &Silent).unwrap();
    assert_eq!(
        path,
        cache.join(format!("models--org--name/snapshots/{COMMIT}/{FILE}"))
    );
    assert_eq!(fs::read(&path).unwrap(), content());
    assert_eq!(
        fs::read_link(&path).unwrap(),
        Path::new("../../blobs").join(sha256(&content()))
    );
    assert_eq!(
        fs::read_to_string(cache.join("models--org--name/refs/main")).unwrap(),
        COMMIT
    );
    assert!(
        cache
            .join(format!(
                ".locks/models--org--name/{}.lock",
                sha256(&content())
            ))
            .is_file()
    );
    assert!(!incomplete(&cache).exists());
    let seen = server.seen();
    assert_eq!(seen[0].path, format!("/org/name/resolve/main/{FILE}"));
    assert_eq!(seen[1].path, format!("/org/name/resolve/{COMMIT}/{FILE}"));
    assert!(
        seen.iter()
            .all(|s| s.header("authorization") == Some("Bearer secret"))
    );

    // By commit the cache answers; by branch the hub is asked, and nothing is fetched.
    let pinned = HubFile {
        revision: COMMIT.into(),
        ..file()
    };
    assert_eq!(
        hub(&server.url, &cache).file(&pinned, &Silent).unwrap(),
        path
    );
    assert_eq!((server.count("HEAD"), server.count("GET")), (1, 1));
    hub(&server.url, &cache).file(&file(), &Silent).unwrap();
    assert_eq!((server.count("HEAD"), server.count("GET")), (2, 1));
}

/// Progress adds up: what was there and what came is the whole.
#[derive(Default)]
struct Count {
    begun: AtomicU64,
    came: AtomicU64,
    notes: AtomicUsize,
}

impl Progress for Count {
    fn begin(&self, _: &str, total: Option<u64>, done: u64) {
        assert_eq!(total, Some(content().len() as u64));
        self.begun.store(done, Ordering::Relaxed);
    }
    fn advance(&self, bytes: u64) {
        self.came.fetch_add(bytes, Ordering::Relaxed);
    }
    fn end(&self) {}
    fn note(&self, _: &str) {
        self.notes.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn survival_40_a_download_that_was_killed_goes_on_where_it_stopped() {
    let (server, cache) = (Server::start(answer), folder("resume"));
    fs::create_dir_all(blob(&cache).parent().unwrap()).unwrap();
    fs::write(incomplete(&cache), &content()[..123_456]).unwrap();
    let count = Count::default();
    let path = hub(&server.url, &cache).file(&file(), &count).unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
    assert_eq!(server.seen().last().unwrap().from(), 123_456);
    assert_eq!(count.begun.into_inner(), 123_456);
    assert_eq!(count.came.into_inner(), content().len() as u64 - 123_456);
}

#[test]
fn survival_40_a_body_that_breaks_off_is_continued() {
    let server = Server::start(|request| Answer {
        cut: Some(90_000),
        ..answer(request)
    });
    let (cache, count) = (folder("broken"), Count::default());
    let path = hub(&server.url, &cache).file(&file(), &count).unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
    let from: Vec<u64> = server
        .seen()
        .iter()
        .filter(|s| s.method == "GET")
        .map(Seen::from)
        .collect();
    assert_eq!(from, [0, 90_000, 180_000, 270_000, 360_000]);
    assert_eq!(count.notes.into_inner(), 4);
}

#[test]
fn a_server_that_never_gets_on_is_given_up() {
    let server = Server::start(|r| Answer {
        cut: (r.method == "GET").then_some(0),
        ..answer(r)
    });
    let e = hub(&server.url, &folder("stuck"))
        .file(&file(), &Silent)
        .unwrap_err();
    assert!(matches!(e, FetchError::Network { .. }), "{e}");
    assert_eq!(server.count("GET"), 4, "the first and three repetitions");
    let server = Server::start(|r| {
        if r.method == "GET" {
            Answer::status(503)
        } else {
            answer(r)
        }
    });
    let e = hub(&server.url, &folder("busy"))
        .file(&file(), &Silent)
        .unwrap_err();
    assert!(matches!(e, FetchError::Status { status: 503, .. }), "{e}");
}

#[test]
fn a_server_that_cannot_resume_sends_the_whole_again() {
    let server = Server::start(|request| {
        let mut plain = request.clone();
        plain.headers.retain(|(n, _)| n != "range");
        answer(&plain)
    });
    let cache = folder("norange");
    fs::create_dir_all(blob(&cache).parent().unwrap()).unwrap();
    fs::write(incomplete(&cache), vec![7; 5000]).unwrap();
    let path = hub(&server.url, &cache).file(&file(), &Silent).unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
}

#[test]
fn survival_40_a_wrong_hash_is_refused_and_removed() {
    let (server, cache) = (Server::start(answer), folder("hash"));
    fs::create_dir_all(blob(&cache).parent().unwrap()).unwrap();
    fs::write(incomplete(&cache), vec![7; 5000]).unwrap();
    let e = hub(&server.url, &cache).file(&file(), &Silent).unwrap_err();
    assert!(
        matches!(&e, FetchError::WrongHash { expected, .. } if *expected == sha256(&content())),
        "{e}"
    );
    assert!(!incomplete(&cache).exists() && !blob(&cache).exists());
    // The next attempt begins anew.
    hub(&server.url, &cache).file(&file(), &Silent).unwrap();
}

#[test]
fn survival_40_a_file_longer_than_announced_is_refused() {
    let server = Server::start(|request| {
        let mut a = answer(request);
        if request.method == "GET" {
            a.body.push(0);
        }
        a
    });
    let e = hub(&server.url, &folder("long"))
        .file(&file(), &Silent)
        .unwrap_err();
    assert!(matches!(e, FetchError::Protocol { .. }), "{e}");
}

#[test]
fn another_file_than_the_pinned_one_is_not_fetched() {
    let server = Server::start(answer);
    let pinned = HubFile {
        sha256: Some("0".repeat(64)),
        ..file()
    };
    let e = hub(&server.url, &folder("pinned"))
        .file(&pinned, &Silent)
        .unwrap_err();
    assert!(
        matches!(&e, FetchError::OtherFile { got, .. } if *got == sha256(&content())),
        "{e}"
    );
    assert_eq!(server.count("GET"), 0);
    let right = HubFile {
        sha256: Some(sha256(&content())),
        ..file()
    };
    hub(&server.url, &folder("pinned"))
        .file(&right, &Silent)
        .unwrap();
}

#[test]
fn the_token_stays_with_the_hub() {
    let store = Arc::new(Server::start(answer));
    let target = format!("{}/signed?key=secret-of-the-store", store.url);
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/org/name/resolve/main") => Answer {
            status: 307,
            headers: vec![(
                "Location",
                request.path.replace("/main/", &format!("/{COMMIT}/")),
            )],
            ..Answer::default()
        },
        _ => Answer {
            status: 302,
            headers: [answer(request).headers, vec![("Location", target.clone())]].concat(),
            ..Answer::default()
        },
    });
    let path = hub(&server.url, &folder("token"))
        .file(&file(), &Silent)
        .unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
    assert!(
        server
            .seen()
            .iter()
            .all(|s| s.header("authorization") == Some("Bearer secret"))
    );
    assert_eq!(store.seen().len(), 1, "the HEAD stays with the hub too");
    assert_eq!(store.seen()[0].header("authorization"), None);
}

#[test]
fn redirects_end() {
    let server = Server::start(|r| Answer {
        status: 302,
        headers: vec![("Location", r.path.clone())],
        ..Answer::default()
    });
    let e = hub(&server.url, &folder("circle"))
        .file(&file(), &Silent)
        .unwrap_err();
    assert!(matches!(e, FetchError::Protocol { .. }), "{e}");
}

#[test]
fn statuses_have_their_meaning() {
    for (status, wanted) in [
        (404, "not found"),
        (401, "HF_TOKEN"),
        (403, "terms"),
        (400, "status 400"),
    ] {
        let server = Server::start(move |_| Answer::status(status));
        let e = hub(&server.url, &folder("status"))
            .file(&file(), &Silent)
            .unwrap_err()
            .to_string();
        assert!(e.contains(wanted), "{status}: {e}");
    }
}

#[test]
fn survival_39_what_the_server_says_names_no_file_outside() {
    for (name, value) in [
        ("X-Linked-Etag", "\"../../../../evil\""),
        ("X-Repo-Commit", "../../evil"),
        ("X-Linked-Etag", ""),
    ] {
        let server = Server::start(move |request| {
            let mut a = answer(request);
            a.headers.retain(|(n, _)| *n != name);
            a.headers.push((name, value.to_owned()));
            a
        });
        let e = hub(&server.url, &folder("evil"))
            .file(&file(), &Silent)
            .unwrap_err();
        assert!(
            matches!(e, FetchError::Protocol { .. }),
            "{name} {value}: {e}"
        );
        assert_eq!(server.count("GET"), 0);
    }
}

#[test]
fn survival_39_a_link_out_of_the_cache_is_refused() {
    let (server, cache) = (Server::start(answer), folder("escape"));
    let snapshot = cache.join("models--org--name/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", snapshot.join(FILE)).unwrap();
    let pinned = HubFile {
        revision: COMMIT.into(),
        ..file()
    };
    let e = hub(&server.url, &cache).file(&pinned, &Silent).unwrap_err();
    assert!(matches!(e, FetchError::Escape { .. }), "{e}");
}

#[test]
fn survival_40_a_full_disk_has_its_own_error() {
    let (server, cache) = (Server::start(answer), folder("full"));
    fs::create_dir_all(blob(&cache).parent().unwrap()).unwrap();
    // Every write to this device fails as on a full disk.
    std::os::unix::fs::symlink("/dev/full", incomplete(&cache)).unwrap();
    let e = hub(&server.url, &cache).file(&file(), &Silent).unwrap_err();
    assert!(
        matches!(e, FetchError::DiskFull { missing, .. } if missing == content().len() as u64),
        "{e}"
    );
    assert_eq!(server.count("GET"), 1, "not tried again");
}

#[test]
fn offline_sends_nothing() {
    let (server, cache) = (Server::start(answer), folder("offline"));
    let offline = Hub::new(HubOptions {
        offline: true,
        ..options(&server.url, &cache)
    })
    .unwrap();
    assert!(matches!(
        offline.file(&file(), &Silent),
        Err(FetchError::Offline { .. })
    ));
    assert!(matches!(
        offline.checkpoint(&file().repo, "main", &Silent),
        Err(FetchError::Offline { .. })
    ));
    assert_eq!(server.seen().len(), 0);
    let path = hub(&server.url, &cache).file(&file(), &Silent).unwrap();
    let before = server.seen().len();
    assert_eq!(offline.file(&file(), &Silent).unwrap(), path);
    assert_eq!(
        fs::canonicalize(offline.checkpoint(&file().repo, "main", &Silent).unwrap()).unwrap(),
        fs::canonicalize(path).unwrap()
    );
    assert_eq!(server.seen().len(), before);
}

#[test]
fn an_unreachable_hub_leaves_the_cache_usable() {
    let (server, cache) = (Server::start(answer), folder("unreachable"));
    let path = hub(&server.url, &cache).file(&file(), &Silent).unwrap();
    // A port that nobody listens on: bound once, and closed.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gone = hub(&format!("http://{free}"), &cache);
    assert_eq!(gone.file(&file(), &Silent).unwrap(), path);
    let other = HubFile {
        file: "other.gguf".into(),
        ..file()
    };
    assert!(matches!(
        gone.file(&other, &Silent),
        Err(FetchError::Network { .. })
    ));
}

#[test]
fn a_checkpoint_is_a_folder_or_one_gguf() {
    let listing = |names: &[&str]| {
        let siblings: Vec<_> = names
            .iter()
            .map(|n| serde_json::json!({"rfilename": n}))
            .collect();
        serde_json::json!({"sha": COMMIT, "siblings": siblings})
            .to_string()
            .into_bytes()
    };
    let folder_list = listing(&[
        "config.json",
        "model.safetensors",
        "README.md",
        "onnx/x.safetensors",
    ]);
    let server = Server::start(move |r| match r.path.starts_with("/api/") {
        true => Answer {
            status: 200,
            body: folder_list.clone(),
            ..Answer::default()
        },
        false => answer(r),
    });
    let (cache, repo) = (folder("checkpoint"), file().repo);
    let path = hub(&server.url, &cache)
        .checkpoint(&repo, "main", &Silent)
        .unwrap();
    assert_eq!(path, cache.join("models--org--name/snapshots").join(COMMIT));
    let mut names: Vec<String> = fs::read_dir(&path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors"]);
    assert_eq!(
        hub(&server.url, &cache)
            .cached_checkpoint(&repo, "main")
            .unwrap(),
        Some(path)
    );

    let several = listing(&["a.gguf", "b.gguf"]);
    let server = Server::start(move |_| Answer {
        status: 200,
        body: several.clone(),
        ..Answer::default()
    });
    let e = hub(&server.url, &folder("several"))
        .checkpoint(&repo, "main", &Silent)
        .unwrap_err();
    assert!(matches!(e, FetchError::Choice { .. }), "{e}");
}

#[test]
fn survival_40_threads_that_want_one_file_fetch_it_once() {
    let (server, cache) = (Server::start(answer), folder("threads"));
    let paths: Vec<PathBuf> = std::thread::scope(|s| {
        let all: Vec<_> = (0..4)
            .map(|_| s.spawn(|| hub(&server.url, &cache).file(&file(), &Silent).unwrap()))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(paths.iter().all(|p| fs::read(p).unwrap() == content()));
    assert_eq!(server.count("GET"), 1);
}

/// This test binary again, as a process that fetches the file.
fn process(url: &str, cache: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fetching_process", "--ignored", "--quiet"])
        .env("STANDIN_URL", url)
        .env("STANDIN_CACHE", cache)
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "run by the tests that need a second process"]
fn fetching_process() {
    let (url, cache) = (
        std::env::var("STANDIN_URL").unwrap(),
        std::env::var("STANDIN_CACHE").unwrap(),
    );
    hub(&url, Path::new(&cache)).file(&file(), &Silent).unwrap();
}

#[test]
fn survival_40_two_processes_do_not_fight() {
    let (server, cache) = (Server::start(answer), folder("processes"));
    let children: Vec<_> = (0..3).map(|_| process(&server.url, &cache)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read(blob(&cache)).unwrap(), content());
    assert_eq!(server.count("GET"), 1);
}

#[test]
fn survival_40_a_killed_process_leaves_no_lock_and_what_it_had() {
    let stalls = Arc::new(AtomicUsize::new(1));
    let server = Server::start(move |r| {
        let stall = r.method == "GET" && stalls.swap(0, Ordering::SeqCst) == 1;
        Answer {
            cut: stall.then_some(200_000),
            stall,
            ..answer(r)
        }
    });
    let cache = folder("killed");
    let mut child = process(&server.url, &cache);
    // Until the bytes that the server sends are on disk.
    while fs::metadata(incomplete(&cache)).map_or(0, |m| m.len()) < 200_000 {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the process ended early"
        );
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let path = hub(&server.url, &cache).file(&file(), &Silent).unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
    assert_eq!(server.seen().last().unwrap().from(), 200_000);
}
