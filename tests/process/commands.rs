// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that end by themselves.

use std::fs;
use std::process::{Command, Stdio};

use crate::checkpoints::fixture;
use crate::met::{folder, run};

#[test]
fn verify_ends_with_0_on_its_reference_and_with_1_on_another() {
    let path = |name: &str| fixture(name).to_str().unwrap().to_owned();
    let reference = path("qwen3/ref.safetensors");
    let (code, out, err) = run(&["verify", &path("qwen3"), "--reference", &reference]);
    assert_eq!(code, 0, "{out}{err}");
    for schedule in ["whole prefill", "chunk", "decode", "7 other"] {
        assert!(out.contains(schedule), "{schedule}: {out}");
    }
    let (code, out, err) = run(&["verify", &path("qwen3-tied"), "--reference", &reference]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("DIFFERS"), "{out}");
}

#[test]
fn circuit_reads_a_configuration_alone() {
    for name in ["llama", "qwen3"] {
        let folder = folder("config-only");
        fs::copy(
            fixture(name).join("config.json"),
            folder.join("config.json"),
        )
        .unwrap();
        let folder = folder.to_str().unwrap();
        for (command, words) in [
            ("show", ["family", "attention"]),
            ("plan", ["digest", "step"]),
            ("memory", ["weights", "total"]),
        ] {
            let (code, out, err) = run(&["circuit", command, folder]);
            assert_eq!(code, 0, "{name} {command}: {err}");
            assert!(
                words.iter().all(|w| out.contains(w)),
                "{name} {command}: {out}"
            );
        }
    }
}

#[test]
fn bash_takes_its_completions() {
    let (code, script, _) = run(&["completions", "bash"]);
    assert_eq!(code, 0);
    let file = folder("completions").join("met.bash");
    fs::write(&file, script).unwrap();
    let bash = Command::new("bash")
        .arg("-n")
        .arg(&file)
        .stdout(Stdio::null())
        .output();
    let bash = bash.unwrap();
    assert!(
        bash.status.success(),
        "{}",
        String::from_utf8_lossy(&bash.stderr)
    );
}
