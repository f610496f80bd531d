// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry over a target whose times are known: which benchmarks run, what they ask, and what the report says.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use metrale_bench::{
    About, Gauges, Generated, GroupTime, Need, Options, Plugin, Registry, Report, Stamp, Step,
    Target, TargetError, Timeline, Work,
};
use serde_json::Value;

/// A step takes 10 ms however many sequences there are; a prompt takes 1 ms a token, one sequence after another.
struct Clockwork {
    about: About,
    asked: Vec<(usize, usize, u32)>,
    prompts: Vec<Arc<[u32]>>,
}

fn clockwork() -> Clockwork {
    Clockwork {
        about: About {
            model: "clockwork".into(),
            weights: "dummy",
            format: "bf16".into(),
            device: "brass".into(),
            class: "cpu".into(),
            digest: "d".into(),
            met: "0",
            kv: "f16".into(),
            weight_bytes: 1000,
            vocab: 64,
            context: 4096,
            kv_tokens: 1 << 20,
            prefill_tokens: 32,
            load_seconds: 1.0,
        },
        asked: Vec::new(),
        prompts: Vec::new(),
    }
}

impl Target for Clockwork {
    fn about(&self) -> &About {
        &self.about
    }

    fn gauges(&mut self) -> Result<Gauges, TargetError> {
        Ok(Gauges {
            read: 200_000.0,
            read_bytes: 1000,
            operations: Some(1e6),
            operations_source: "measured: cogs".into(),
        })
    }

    fn groups(&mut self, step: Step) -> Result<Vec<GroupTime>, TargetError> {
        let part = |name: &str, launches, seconds| GroupTime {
            name: name.into(),
            launches,
            seconds,
            work: self.work(step),
        };
        Ok(vec![
            part("step", 5, 0.010),
            part("linear", 4, 0.006),
            part("attention", 1, 0.002),
        ])
    }

    fn work(&self, step: Step) -> Work {
        Work {
            bytes: 1000,
            operations: u64::from(step.sequences * step.rows_each) * 1000,
        }
    }

    fn generate(
        &mut self,
        prompts: Vec<Arc<[u32]>>,
        output: u32,
    ) -> Result<Generated, TargetError> {
        self.asked.push((prompts.len(), prompts[0].len(), output));
        let times = (1..=prompts.len()).map(|i| {
            let first = (i * prompts[0].len()) as f64 * 1e-3;
            let tokens = (0..output).map(|t| first + f64::from(t) * 0.01).collect();
            Timeline { tokens, cached: 0 }
        });
        let timelines = times.collect();
        let count = prompts.len() as u32;
        self.prompts.extend(prompts);
        Ok(Generated {
            timelines,
            processor_seconds_per_token: (output > 1).then_some(0.005),
            stamps: Ok(stamps(count, output)),
        })
    }

    /// A tenth of a second for each prompt.
    fn processor_seconds(&mut self) -> Option<f64> {
        Some(self.prompts.len() as f64 * 0.1)
    }

    fn joules(&mut self) -> Result<f64, String> {
        Ok(self
            .asked
            .iter()
            .map(|(n, _, output)| *n as f64 * f64::from(*output))
            .sum::<f64>()
            * 0.5)
    }
}

/// Two programs a step, the device without work for a tenth of the time.
fn stamps(sequences: u32, output: u32) -> Vec<Stamp> {
    let programs = 2 * u64::from(output);
    let stamp = |i| Stamp {
        begin: i * 5_000_000,
        end: i * 5_000_000 + 4_500_000,
        rows: sequences,
        logits_rows: sequences,
    };
    (0..programs).map(stamp).collect()
}

fn options() -> Options {
    Options {
        input: 8,
        output: 16,
        concurrency: vec![1, 4],
        prompts: vec![16, 80],
        repeats: 2,
        seed: 7,
    }
}

fn run(names: &[&str]) -> (Result<Report, TargetError>, Clockwork) {
    let mut target = clockwork();
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let report = Registry::builtin().run(&names, &mut target, &options(), &mut |_| {});
    (report, target)
}

#[test]
fn every_rung_is_measured_with_its_bound() {
    let (report, target) = run(&[]);
    let report = report.unwrap();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b.abs(), "{a} {b}");

    assert_eq!(report.decode.len(), 2);
    let four = &report.decode[1];
    assert_eq!((four.concurrency, four.input, four.output), (4, 8, 16));
    near(four.tokens_per_second, 400.0);
    near(four.tpot_ms, 10.0);
    // First tokens after 8, 16, 24 and 32 ms.
    near(four.ttft_ms, 20.0);
    near(four.step_ms, 10.0);
    // 1000 bytes take 5 ms at 200,000 a second, 4000 operations 4 ms.
    near(four.share_of_read, 0.5);
    near(four.share_of_operations.unwrap(), 0.4);
    near(four.end_to_end_tokens_per_second, 64.0 / 0.182);
    near(four.joules_per_token.value.unwrap(), 0.5);
    // 31 gaps of 0.5 ms in 31 * 5 + 4.5 ms.
    near(four.idle_share.value.unwrap(), 15.5 / 159.5);

    near(four.processor_seconds_per_token.unwrap(), 0.1 / 16.0);
    near(four.decode_processor_seconds_per_token.unwrap(), 0.005);

    let long = &report.prefill[1];
    near(long.processor_seconds_per_token.unwrap(), 0.1 / 80.0);
    near(long.ttft_ms, 80.0);
    near(long.tokens_per_second, 1000.0);
    // Three steps of at most 32 rows: 15 ms of reading in 80.
    near(long.share_of_read, 0.015 / 0.08);
    near(long.share_of_operations.unwrap(), 1.0);

    let shapes: Vec<_> = report
        .groups
        .iter()
        .map(|g| (g.sequences, g.rows_each, g.context))
        .collect();
    assert_eq!(shapes[0], (1, 1, 16));
    assert_eq!(shapes[3], (4, 1, 16));
    assert_eq!(
        shapes[6],
        (1, 32, 0),
        "a step holds no more rows than the engine gives it"
    );
    near(report.groups[1].share_of_step, 0.75);

    // A warm run before each rung.
    let decode: Vec<_> = target.asked.iter().filter(|a| a.0 == 4).collect();
    assert_eq!(decode, [&(4, 8, 4), &(4, 8, 16), &(4, 8, 16)]);
    let mut starts: Vec<_> = target.prompts.iter().map(|p| p[..8].to_vec()).collect();
    let all = starts.len();
    starts.sort();
    starts.dedup();
    assert_eq!(starts.len(), all, "two prompts begin alike");
}

#[test]
fn benchmarks_are_chosen_by_name() {
    let (report, target) = run(&["prefill"]);
    let report = report.unwrap();
    assert_eq!(
        (
            report.prefill.len(),
            report.decode.len(),
            report.groups.len()
        ),
        (2, 0, 0)
    );
    assert!(target.asked.iter().all(|a| a.2 == 1));
    let (report, _) = run(&["decode", "speed"]);
    let said = report.unwrap_err().to_string();
    assert!(
        said.contains("`speed`") && said.contains("groups, prefill, decode"),
        "{said}"
    );
}

#[test]
fn a_plugin_joins_or_replaces() {
    struct Own(&'static str);
    impl Plugin for Own {
        fn name(&self) -> &'static str {
            self.0
        }
        fn about(&self) -> &'static str {
            "mine"
        }
        fn needs(&self, _: &Options) -> Vec<Need> {
            Vec::new()
        }
        fn run(
            &self,
            _: &mut dyn Target,
            _: &Options,
            _: &mut Report,
            note: &mut dyn FnMut(&str),
        ) -> Result<(), TargetError> {
            note(self.0);
            Err(TargetError::new("broke"))
        }
    }
    let mut registry = Registry::builtin();
    registry.add(Box::new(Own("prefill")));
    registry.add(Box::new(Own("own")));
    let names: Vec<_> = registry
        .all()
        .map(|p| (p.name(), p.about() == "mine"))
        .collect();
    let wanted = [
        ("groups", false),
        ("prefill", true),
        ("decode", false),
        ("own", true),
    ];
    assert_eq!(names, wanted);
    let failed = registry.run(&["own".into()], &mut clockwork(), &options(), &mut |_| {});
    assert_eq!(failed.unwrap_err().to_string(), "own: broke");
}

#[test]
fn the_json_has_the_documented_fields() {
    let json: Value = serde_json::from_str(&run(&[]).0.unwrap().json()).unwrap();
    let documentation = include_str!("../../../docs/bench.md");
    fn keys(value: &Value, prefix: &str, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    into.push(format!("{prefix}{key}"));
                    keys(value, &format!("{prefix}{key}."), into);
                }
            }
            Value::Array(items) => {
                if let Some(first) = items.first().filter(|i| i.is_object()) {
                    keys(first, prefix, into);
                }
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    keys(&json, "", &mut all);
    assert!(all.len() > 40);
    for key in all {
        assert!(
            documentation.contains(&format!("`{key}`")),
            "docs/bench.md lacks `{key}`"
        );
    }
    assert_eq!(json["schema"], "metrale-bench/1");
    assert_eq!(json["decode"][0]["joules_per_token"]["value"], 0.5);
}

#[test]
fn the_table_shows_every_rung() {
    let text = run(&[]).0.unwrap().text();
    for part in [
        "clockwork",
        "prefill, one prompt",
        "decode, 16 tokens after 8",
        "linear",
        "400.0",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// What is asked of the target fits what the benchmark said before.
#[test]
fn a_benchmark_runs_what_it_said_it_needs() {
    let options = Options {
        input: 100,
        output: 20,
        concurrency: vec![1, 4],
        prompts: vec![64, 4000],
        repeats: 1,
        seed: 0,
    };
    let registry = Registry::builtin();
    let need = |name: &str| {
        let selected = registry.select(&[name.to_owned()]).unwrap();
        let needs = selected[0].needs(&options);
        let most = |of: fn(&Need) -> u32| needs.iter().map(of).max().unwrap();
        (most(|n| n.sequences), most(|n| n.tokens))
    };
    assert_eq!(need("decode"), (4, 120), "no room for the long prompt");
    assert_eq!(need("prefill"), (1, 4001));
    for name in ["decode", "prefill"] {
        let mut target = clockwork();
        let run = registry.run(&[name.into()], &mut target, &options, &mut |_| {});
        run.unwrap();
        let (sequences, tokens) = need(name);
        let asked = target.asked.iter();
        let within = |(n, input, output): &(usize, usize, u32)| {
            *n as u32 <= sequences && *input as u32 + output <= tokens
        };
        assert!(asked.clone().all(within), "{name}: {:?}", target.asked);
    }
}
