// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the start to the end of a server: loading, draining, stopping, being killed; and clients that leave.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::checkpoints::{deep, fixture};
use crate::client::Stream;
use crate::met::{Met, folder, until};

/// Room for nine sequences of the deep checkpoint.
const DEEP: [&str; 2] = ["--kv-cache-bytes", "160000000"];

/// A completion that goes on for seconds on the deep checkpoint.
fn long() -> Value {
    json!({"prompt": "The capital", "max_tokens": 400, "temperature": 0, "ignore_eos": true})
}

/// A stream of which the first event has come.
fn begun(met: &Met) -> Stream {
    let mut stream = met.stream("/v1/completions", &long());
    stream.next().expect("a first event");
    stream
}

#[test]
fn it_listens_before_the_model_is_loaded() {
    let home = folder("home");
    let met = Met::serve(deep(), &home, &DEEP);
    let early = met.get("/ready");
    let refused = met.post("/v1/completions", &long());
    assert_eq!(met.get("/health/live").status, 200);
    assert!(!met.log().contains("ready"), "this test came too late");
    assert_eq!(
        (early.status, early.json()["status"].as_str()),
        (503, Some("loading"))
    );
    assert_eq!(refused.error(), (503, "model_loading".to_owned()));
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    until("ready", || (met.get("/ready").status == 200).then_some(()));
    assert_eq!(met.get("/health").status, 200);
    let answer = json!({"prompt": "The capital", "max_tokens": 1});
    assert_eq!(met.post("/v1/completions", &answer).status, 200);
}

#[test]
fn survival_48_a_signal_while_loading_ends_it() {
    let mut met = Met::serve(deep(), &folder("home"), &DEEP);
    until("an answer", || {
        (met.get("/health/live").status == 200).then_some(())
    });
    met.signal("TERM");
    assert_eq!(met.ended(), Some(0));
}

#[test]
fn survival_48_sigterm_under_load_drains() {
    let mut met = Met::ready(deep(), &DEEP);
    let streams: Vec<Stream> = (0..4).map(|_| begun(&met)).collect();
    met.signal("TERM");
    until("draining", || {
        (met.get("/ready").status == 503).then_some(())
    });
    assert_eq!(met.get("/ready").json()["status"], "draining");
    let late = met.post("/v1/completions", &long());
    assert_eq!(late.error(), (503, "shutting_down".to_owned()));
    assert_eq!(late.retry_after.as_deref(), Some("1"));
    for stream in streams {
        let events = stream.finish();
        let finish = &events.last().unwrap()["choices"][0]["finish_reason"];
        assert_eq!(finish, "length");
    }
    assert_eq!(met.ended(), Some(0));
}

#[test]
fn survival_48_the_second_sigterm_stops_at_once() {
    let mut met = Met::ready(deep(), &DEEP);
    let mut stream = begun(&met);
    met.signal("TERM");
    until("draining", || {
        (met.get("/ready").status == 503).then_some(())
    });
    met.signal("TERM");
    assert_eq!(met.ended(), Some(1), "answers were cut");
    let mut events = 0;
    while let Some(data) = stream.next() {
        assert_ne!(data, "[DONE]", "a stream that was cut is not done");
        events += 1;
    }
    assert!(
        events < 399,
        "all {events} events came: nothing was stopped"
    );
}

/// The end of a server is bounded, whatever its step does: this one would run for an hour.
#[test]
fn survival_48_a_step_that_does_not_end_is_left_behind() {
    let arguments = ["--step-timeout", "3600"];
    let fault = [("METRALE_FAULT", "hang=200")];
    let mut met = Met::with(&fixture("llama"), &folder("home"), &arguments, &fault);
    until("ready", || (met.get("/ready").status == 200).then_some(()));
    let _stream = begun(&met);
    let (mut tokens, mut since) = (0.0, Instant::now());
    until("a step that does not end", || {
        let now = met.metric("vllm:generation_tokens_total");
        if now != tokens {
            (tokens, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(1)).then_some(())
    });
    met.signal("TERM");
    until("draining", || {
        (met.get("/ready").status == 503).then_some(())
    });
    met.signal("TERM");
    assert_eq!(met.ended(), Some(1), "{}", met.log());
    assert!(met.log().contains("is left to the end"), "{}", met.log());
    assert!(
        met.log().contains("answers that ran were cut"),
        "{}",
        met.log()
    );
}

#[test]
fn survival_48_sigkill_leaves_no_lock() {
    let home = folder("home");
    let mut met = Met::serve(deep(), &home, &DEEP);
    met.signal("KILL");
    assert_eq!(met.ended(), None);
    let mut met = Met::serve(&fixture("llama"), &home, &[]);
    until("ready", || (met.get("/ready").status == 200).then_some(()));
    met.signal("INT");
    assert_eq!(met.ended(), Some(0));
}

#[test]
fn a_log_that_nobody_reads_ends_nothing() {
    let (model, home) = (fixture("llama"), folder("home"));
    let mut met = Met::muted(&model, &home, &["--log-level", "trace"]);
    until("ready", || (met.get("/ready").status == 200).then_some(()));
    let prompt = json!({"prompt": "The capital", "max_tokens": 4});
    assert_eq!(met.post("/v1/completions", &prompt).status, 200);
    met.signal("TERM");
    assert_eq!(met.ended(), Some(0));
}

#[test]
fn survival_5_a_client_that_leaves_gives_back_what_it_held() {
    let met = Met::ready(deep(), &DEEP);
    let usage = || met.metric("vllm:kv_cache_usage_perc");
    let before = usage();
    let streams: Vec<Stream> = (0..3).map(|_| begun(&met)).collect();
    met.wait_running(3);
    assert!(usage() > before);
    drop(streams);
    met.wait_running(0);
    until("free blocks", || (usage() == before).then_some(()));
    let prompt = json!({"prompt": "The capital", "max_tokens": 4});
    assert_eq!(met.post("/v1/completions", &prompt).status, 200);
}

/// A kernel that never ends: its requests fail, and the process starts again on the same socket.
fn starts_again(fault: &str) {
    let model = fixture("llama");
    let arguments = ["--step-timeout", "1"];
    let met = Met::with(
        &model,
        &folder("home"),
        &arguments,
        &[("METRALE_FAULT", fault)],
    );
    until("ready", || (met.get("/ready").status == 200).then_some(()));
    let mut stream = met.stream("/v1/completions", &long());
    let mut last = String::new();
    while let Some(data) = stream.next() {
        last = data;
    }
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["error"]["type"], "server_error", "{last}");
    until("the second life", || {
        met.log().contains("starting again").then_some(())
    });
    // Nobody is refused meanwhile: the socket's queue holds them.
    until("ready again", || {
        (met.get("/ready").status == 200).then_some(())
    });
    let prompt = json!({"prompt": "The capital", "max_tokens": 4});
    assert_eq!(met.post("/v1/completions", &prompt).status, 200);
    met.signal("TERM");
    let mut met = met;
    assert_eq!(met.ended(), Some(0));
}

#[test]
fn survival_42_a_kernel_that_never_ends_is_left_behind_with_its_process() {
    starts_again("hang=200");
}

#[test]
fn survival_43_a_lost_device_is_opened_again_by_a_new_process() {
    starts_again("lose=200");
}

#[test]
fn a_device_that_hangs_while_the_server_drains_does_not_start_it_again() {
    let arguments = ["--step-timeout", "1"];
    let fault = [("METRALE_FAULT", "hang=200")];
    let mut met = Met::with(&fixture("llama"), &folder("home"), &arguments, &fault);
    until("ready", || (met.get("/ready").status == 200).then_some(()));
    let mut stream = begun(&met);
    met.signal("TERM");
    let mut last = String::new();
    while let Some(data) = stream.next() {
        last = data;
    }
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["error"]["type"], "server_error", "{last}");
    assert_eq!(met.ended(), Some(0));
    assert!(!met.log().contains("starting again"), "{}", met.log());
}

#[test]
fn survival_43_a_device_that_is_lost_while_weights_are_loaded_is_no_fault_of_theirs() {
    let fault = [("METRALE_FAULT", "lose=1")];
    let mut met = Met::with(&fixture("llama"), &folder("home"), &[], &fault);
    assert_eq!(met.ended(), Some(5), "{}", met.log());
}
