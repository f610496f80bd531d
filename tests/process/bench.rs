// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met bench` to its end on a tiny model. What it measures here means nothing; that it measures everything is held.

use serde_json::Value;

use crate::checkpoints::fixture;
use crate::met::run;

#[test]
fn a_ladder_runs_to_its_end_with_and_without_weights() {
    let model = fixture("qwen3");
    let model = model.to_str().unwrap();
    let ladder = "--concurrency 1,3 --input 20 --output 8 --prompts 5,40 --max-prefill-tokens 16 --repeats 2";
    for (format, weights) in [("auto", "checkpoint"), ("dummy", "dummy")] {
        let mut arguments = vec!["bench", model, "--format", "json", "--load-format", format];
        arguments.extend(ladder.split(' '));
        let (code, out, err) = run(&arguments);
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["about"]["weights"], weights);
        assert!(report["gauges"]["read"].as_f64() > Some(0.0));
        assert!(report["gauges"]["operations"].as_f64() > Some(0.0));
        let rungs = |ladder: &str, key: &str| -> Vec<u64> {
            let rows = report[ladder].as_array().unwrap();
            rows.iter().filter_map(|r| r[key].as_u64()).collect()
        };
        assert_eq!(rungs("decode", "concurrency"), [1, 3]);
        assert_eq!(rungs("prefill", "input"), [5, 40]);
        for rung in report["decode"].as_array().unwrap() {
            assert!(rung["tokens_per_second"].as_f64() > Some(0.0), "{rung}");
            #[cfg(target_os = "linux")]
            assert!(
                rung["processor_seconds_per_token"].as_f64() > Some(0.0),
                "{rung}"
            );
            let reason = &rung["joules_per_token"]["reason"];
            assert!(reason.as_str().is_some_and(|r| r.contains("processor")));
        }
        // Three shapes of step, and all launches of each are in some kind.
        let groups = report["groups"].as_array().unwrap();
        let count = |g: &&Value| g["launches"].as_u64().unwrap();
        let (whole, parts): (Vec<_>, Vec<_>) = groups.iter().partition(|g| g["name"] == "step");
        assert_eq!(whole.len(), 3);
        assert_eq!(
            whole.iter().map(count).sum::<u64>(),
            parts.iter().map(count).sum::<u64>()
        );
        assert_eq!(whole[2]["rows_each"], 16, "no more rows than a step takes");
    }
}

#[test]
fn what_does_not_fit_is_told_before_it_runs() {
    let model = fixture("llama");
    let model = model.to_str().unwrap();
    let cases = [
        (["--concurrency", "1,x"], 2, "commas"),
        (["--only", "speed"], 2, "groups, prefill, decode"),
        (["--input", "100000"], 2, "--max-seq-len"),
        (["--kv-cache-bytes", "65536"], 2, "KV cache"),
    ];
    for (flags, code, part) in cases {
        let (got, _, err) = run(&[&["bench", model, "--prompts", "64"], &flags[..]].concat());
        assert_eq!(got, code, "{flags:?}: {err}");
        assert!(err.contains(part), "{flags:?}: {err}");
    }
}

#[test]
fn a_ladder_that_does_not_run_takes_no_room() {
    let model = fixture("llama");
    let only = "--only decode --concurrency 1 --input 20 --output 8 --repeats 1 --prompts 100000";
    let arguments = [
        &["bench", model.to_str().unwrap()][..],
        &only.split(' ').collect::<Vec<_>>(),
    ];
    let (code, _, err) = run(&arguments.concat());
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_start_is_measured_from_outside() {
    let model = fixture("llama");
    let model = model.to_str().unwrap();
    let (code, out, err) = run(&[
        "bench",
        "start",
        model,
        "--repeats",
        "1",
        "--format",
        "json",
        "--kv-cache-bytes",
        "2000000",
    ]);
    assert_eq!(code, 0, "{err}");
    let row: Value = serde_json::from_str(&out).unwrap();
    let at = |key: &str| row[key].as_f64().unwrap();
    assert!(0.0 < at("listening_ms"));
    assert!(at("listening_ms") <= at("ready_ms") && at("ready_ms") < at("first_token_ms"));
    let (code, _, err) = run(&["bench", "start", "/absent/model"]);
    // Its server's status, and its words without the log's frame.
    assert_eq!(code, 4);
    assert!(err.contains(": no model `/absent/model`"), "{err}");
}
