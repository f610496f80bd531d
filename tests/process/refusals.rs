// SPDX-License-Identifier: MIT OR Apache-2.0
//! What cannot be served: each has its exit status, and a message with what, where, why and what to do.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::json;

use crate::checkpoints::fixture;
use crate::met::{Met, command, folder, run};

/// `met serve MODEL` with more arguments must end with `code` and say all of `words`.
fn refused(model: &str, more: &[&str], code: i32, words: &[&str]) {
    let (ended, _, err) = run(&[&["serve", model], more].concat());
    let said = err.lines().last().unwrap_or_default();
    assert_eq!(ended, code, "{model} {more:?}: {err}");
    for word in words {
        assert!(
            said.contains(word),
            "{model} {more:?}: no {word:?} in {said}"
        );
    }
}

const FREE: [&str; 2] = ["--port", "0"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_path_that_is_not_there() {
    refused(
        "./absent.gguf",
        &FREE,
        4,
        &["./absent.gguf", "no such path", "smollm2-135m"],
    );
}

#[test]
fn survival_36_a_gguf_that_breaks_off() {
    let folder = folder("truncated");
    let whole = fs::read(fixture("llama-gguf/model.gguf")).unwrap();
    // Inside the magic number, the keys, the tensor table and the tensors.
    for length in [2, 100, 8_500, whole.len() / 2, whole.len() - 1] {
        let path = folder.join(format!("first-{length}.gguf"));
        fs::write(&path, &whole[..length]).unwrap();
        refused(text(&path), &FREE, 3, &[text(&path)]);
    }
    let half = folder.join(format!("first-{}.gguf", whole.len() / 2));
    refused(
        text(&half),
        &FREE,
        3,
        &["tensor", "bytes", "fetch the file again"],
    );
}

#[test]
fn a_folder_without_weights() {
    let folder = folder("config-only");
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(fixture("llama").join(file), folder.join(file)).unwrap();
    }
    refused(text(&folder), &FREE, 3, &[text(&folder), "no weights"]);
}

#[test]
fn a_folder_without_a_tokenizer() {
    let folder = folder("mute");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("llama").join(file), folder.join(file)).unwrap();
    }
    refused(text(&folder), &FREE, 3, &[text(&folder), "tokenizer.json"]);
}

#[test]
fn a_folder_without_a_checkpoint() {
    let folder = folder("empty");
    refused(
        text(&folder),
        &FREE,
        3,
        &[text(&folder), "config.json", "GGUF"],
    );
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let words = ["127.0.0.1", port.as_str(), "in use", "--port"];
    refused(text(&fixture("llama")), &["--port", &port], 5, &words);
}

#[test]
fn a_host_that_is_not_of_this_machine() {
    // TEST-NET-1: no machine has it.
    let arguments = ["--host", "192.0.2.1", "--port", "0"];
    refused(
        text(&fixture("llama")),
        &arguments,
        5,
        &["192.0.2.1", "--host"],
    );
}

#[test]
fn a_context_beyond_the_checkpoints() {
    let arguments = ["--port", "0", "--max-seq-len", "4096"];
    let words = ["--max-seq-len 4096", "512 tokens"];
    refused(text(&fixture("llama")), &arguments, 2, &words);
}

#[test]
fn a_pool_too_small_for_anything() {
    let arguments = ["--port", "0", "--kv-cache-bytes", "100"];
    refused(
        text(&fixture("llama")),
        &arguments,
        2,
        &["--kv-cache-bytes", "100", "8192"],
    );
}

#[test]
fn a_prompt_beyond_a_small_pool_names_the_pool_and_its_flag() {
    // Four blocks of 16 tokens, 4096 bytes each, of a context of 512.
    let pool = ["--kv-cache-bytes", "16384"];
    let met = Met::ready(&fixture("llama"), &pool);
    let body = json!({"prompt": vec![5; 100], "max_tokens": 1});
    let refused = met.post("/v1/completions", &body);
    assert_eq!(refused.error(), (400, "context_length_exceeded".to_owned()));
    let said = refused.json()["error"]["message"].to_string();
    for word in ["KV pool", "holds 64 tokens", "101", "--kv-cache-bytes"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let long = "word ".repeat(100);
    let (code, _, err) =
        run(&[&["run", text(&fixture("llama")), &long, "--raw"], &pool[..]].concat());
    assert!(code == 2 && err.contains("holds 64 tokens"), "{err}");
}

#[test]
fn a_pool_beyond_the_machine() {
    let folder = folder("long");
    for file in ["model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("llama").join(file), folder.join(file)).unwrap();
    }
    let config = fs::read_to_string(fixture("llama").join("config.json")).unwrap();
    let long = config.replace(
        "\"max_position_embeddings\": 512",
        "\"max_position_embeddings\": 16777216",
    );
    fs::write(folder.join("config.json"), long).unwrap();
    let arguments = [
        "--port",
        "0",
        "--max-num-seqs",
        "1024",
        "--kv-cache-bytes",
        "1125899906842624",
    ];
    let words = [
        "kv arena",
        "4398046511104",
        "--kv-cache-bytes",
        "fewer sequences",
    ];
    refused(text(&folder), &arguments, 5, &words);
}

#[test]
fn more_pool_than_the_sequences_need_is_not_taken() {
    let arguments = [
        "--max-num-seqs",
        "1024",
        "--kv-cache-bytes",
        "1125899906842624",
    ];
    let met = Met::ready(&fixture("llama"), &arguments);
    let settings = met.get("/serve-config").ok()["settings"].clone();
    assert_eq!(settings["kv-cache-tokens"]["value"], 1024 * 512);
    assert_eq!(settings["hardware-class"]["value"], "cpu");
    assert_eq!(settings["device"]["source"], "measured");
}

#[test]
fn the_settings_are_in_the_words_of_the_flags() {
    let flags = "--kv-cache-dtype int8 --kv-cache-dtype-layers 0=f16 --threads 2";
    let flags: Vec<&str> = flags.split(' ').collect();
    let met = Met::ready(&fixture("llama"), &flags);
    let settings = met.get("/serve-config").ok()["settings"].clone();
    for (name, value) in [
        ("kv-cache-dtype", json!("int8")),
        ("kv-cache-dtype-layers", json!("0=f16")),
        ("threads", json!(2)),
    ] {
        assert_eq!(settings[name]["value"], value, "{name}");
        assert_eq!(settings[name]["source"], "flag", "{name}");
    }
}

/// No machine has so many: without kernels, driver or device, and with all of them, there is an error and no fallback.
#[test]
fn a_device_that_is_not_there() {
    let device = ["--device", "cuda:4000000000"];
    let words = ["--device cuda:4000000000: ", ", or choose --device cpu"];
    let model = fixture("llama");
    refused(text(&model), &[&FREE[..], &device].concat(), 5, &words);
    let reference = model.join("ref.safetensors");
    for command in [
        &["run", text(&model), "The capital"][..],
        &["verify", text(&model), "--reference", text(&reference)],
    ] {
        let (code, out, err) = run(&[command, &device].concat());
        assert_eq!((code, out.as_str()), (5, ""), "{err}");
        assert!(words.iter().all(|w| err.contains(w)), "{err}");
    }
    let (code, _, err) = run(&["serve", text(&model), "--device", "tpu"]);
    assert!(code == 2 && err.contains("cuda:N"), "{err}");
}

#[test]
fn an_unknown_variable() {
    let home = folder("home");
    let mut command = command(&["serve", text(&fixture("llama")), "--port", "0"], &home);
    let output = command.env("METRALE_HOEM", "x").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("METRALE_HOEM") && err.contains("METRALE_HOME"),
        "{err}"
    );
}

/// Memory that is refused, at whichever arena, is the machine's: told by the arena's name, before anything answers.
#[test]
fn survival_43_out_of_memory_at_every_allocation_ends_the_command() {
    let model = fixture("llama");
    let model = model.to_str().unwrap();
    let run = |allocation: u32| {
        let fault = format!("allocation={allocation}");
        let arguments = ["run", model, "x", "--max-tokens", "1"];
        let output = command(&arguments, &folder("home"))
            .env("METRALE_FAULT", fault)
            .output()
            .unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), err)
    };
    let mut arenas = Vec::new();
    let err = loop {
        let (code, err) = run(arenas.len() as u32);
        if code == Some(0) {
            break err;
        }
        assert_eq!(code, Some(5), "{err}");
        let arena = err.split("has no room for the ").nth(1);
        let arena = arena.and_then(|rest| rest.split(' ').next());
        let arena = arena.unwrap_or_else(|| panic!("{err}")).to_owned();
        assert!(!arenas.contains(&arena), "{arena} twice");
        arenas.push(arena);
    };
    assert_eq!(arenas.len(), 6, "{arenas:?}: {err}");
}
