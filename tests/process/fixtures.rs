// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every tiny checkpoint, of every family and file format, through the whole of `met`: plan, memory, a server's answer,
//! and a benchmark of those that have no tokenizer to be served with. What the numbers are is held elsewhere; here nothing
//! on that path may know one family less than the rest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::checkpoints::fixture;
use crate::met::{Met, run};

/// Processes at a time, each with two threads of its own at most.
const AT_ONCE: usize = 4;
const SMALL: [&str; 4] = ["--kv-cache-bytes", "2000000", "--threads", "1"];

/// The checkpoints under `tests/fixtures/tiny`: folders with config.json, and GGUF files.
fn all() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(fixture("")).unwrap();
    let path = |entry: std::io::Result<std::fs::DirEntry>| {
        let folder = entry.unwrap().path();
        let gguf = folder.join("model.gguf");
        let there = gguf.exists() || folder.join("config.json").exists();
        there.then_some(if gguf.exists() { gguf } else { folder })
    };
    folders.filter_map(path).collect()
}

#[test]
fn every_checkpoint_is_planned_served_and_measured() {
    let all = all();
    assert!(all.len() >= 43, "{} checkpoints", all.len());
    let next = Mutex::new(all.iter());
    let families = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(path) = { next.lock().unwrap().next() } {
                    let family = whole_path(path);
                    families.lock().unwrap().insert(family);
                }
            });
        }
    });
    // A circuit without a checkpoint would not be seen here: all have one.
    let circuits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/circuits");
    let circuits = std::fs::read_dir(circuits).unwrap().flatten();
    let written: BTreeSet<String> = circuits
        .filter(|e| e.path().join("circuit.toml").exists())
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    assert_eq!(*families.lock().unwrap(), written);
}

/// Takes one checkpoint through `met`; gives its family.
fn whole_path(path: &Path) -> String {
    let model = path.to_str().unwrap();
    let told = |arguments: &[&str]| {
        let (code, out, err) = run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        out
    };
    let plan = told(&["circuit", "plan", model, "--hardware", "cpu"]);
    let memory = told(&["circuit", "memory", model]);
    assert!(
        memory.contains("weights") && memory.contains("kv"),
        "{memory}"
    );

    // Without a tokenizer there is nothing to serve but made weights, and that is told before any are read.
    let mut flags = SMALL.to_vec();
    let (code, _, err) = run(&[&["run", model, "hello", "--max-tokens", "2"], &SMALL[..]].concat());
    if code != 0 {
        assert_eq!(code, 3, "{model}: {err}");
        assert!(err.contains("holds its tokenizer"), "{model}: {err}");
        assert!(err.contains(model) && !err.contains('%'), "{model}: {err}");
        measured(model);
        flags.extend(["--load-format", "dummy"]);
        // Packed formats cannot be made.
        if model.contains("gpt-oss-gguf") {
            return family(&plan);
        }
    }
    let met = Met::ready(path, &flags);
    let ask =
        json!({"prompt": [5, 6, 7, 90, 11], "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let answer = met.post("/v1/completions", &ask).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{model}: {answer}");
    // The second time from the prefix cache.
    let again = met.post("/v1/completions", &ask).ok();
    assert_eq!(again["choices"], answer["choices"], "{model}");
    let digest = answer["system_fingerprint"].as_str().unwrap();
    assert_eq!(
        plan.contains(digest),
        code == 0,
        "{model}: {digest} in {plan}"
    );
    family(&plan)
}

/// Measures a checkpoint, which needs no tokenizer: its own weights answer.
fn measured(model: &str) {
    let ladder = "--only decode --concurrency 2 --input 5 --output 3 --prompts 5 --repeats 1";
    let ladder: Vec<&str> = ladder.split(' ').collect();
    let more = ["--format", "json"];
    let (code, out, err) = run(&[&["bench", model], &ladder[..], &SMALL, &more].concat());
    assert_eq!(code, 0, "{model}: {err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let speed = report["decode"][0]["tokens_per_second"].as_f64();
    assert!(speed > Some(0.0), "{model}: {report}");
}

/// The family that `met circuit plan` names.
fn family(plan: &str) -> String {
    let rest = plan.split("family ").nth(1);
    let name = rest.and_then(|rest| rest.split(' ').next());
    name.unwrap_or_else(|| panic!("{plan}")).to_owned()
}
