// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metrics of serving, under the names that vLLM gave them and that routers and dashboards scrape.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::encoding::prometheus_text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::stats::EngineStats;

type Real = Gauge<f64, AtomicU64>;
/// The constant one, labelled with the size of a block and of the pool.
type CacheConfig = Family<[(&'static str, String); 2], Gauge>;
type ByReason = Family<[(&'static str, &'static str); 1], Counter>;

/// The server's metrics.
pub struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Real,
    prefix_queries: Counter,
    prefix_hits: Counter,
    preemptions: Counter,
    drafted: Counter,
    accepted: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    success: ByReason,
    failed: Counter,
    stages: [Histogram; 3],
    prompt_size: Histogram,
    answer_size: Histogram,
    cache_config: CacheConfig,
    steps: Counter,
    restarts: Counter,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It waits.
    Queue,
    /// Its prompt is computed.
    Prefill,
    /// Its answer is generated.
    Decode,
}

const FIRST_TOKEN: [f64; 18] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0,
];
const BETWEEN_TOKENS: [f64; 16] = [
    0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 1.0, 2.5,
];
const WHOLE: [f64; 14] = [
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0,
];

const SIZES: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
];

impl Metrics {
    /// All at zero; every one is labelled with the model's name.
    pub fn new(model: &str) -> Metrics {
        let label = ("model_name".into(), model.to_owned().into());
        let mut registry = Registry::with_labels(std::iter::once(label));
        let (first_token, between_tokens, whole) = (
            Histogram::new(FIRST_TOKEN),
            Histogram::new(BETWEEN_TOKENS),
            Histogram::new(WHOLE),
        );
        let (running, waiting) = (Gauge::default(), Gauge::default());
        let kv_usage = Real::default();
        let counters: [Counter; 8] = Default::default();
        let [
            prefix_queries,
            prefix_hits,
            preemptions,
            drafted,
            accepted,
            prompt_tokens,
            generation_tokens,
            failed,
        ] = counters;
        let success = ByReason::default();
        let r = &mut registry;
        r.register(
            "vllm:num_requests_running",
            "Sequences that run",
            running.clone(),
        );
        r.register(
            "vllm:num_requests_waiting",
            "Sequences that wait",
            waiting.clone(),
        );
        let part = "Part of the KV pool that is in use; 1 = all";
        r.register("vllm:kv_cache_usage_perc", part, kv_usage.clone());
        // The older name, which routers still look for.
        r.register("vllm:gpu_cache_usage_perc", part, kv_usage.clone());
        let queried = "Tokens looked up in the prefix cache";
        r.register("vllm:prefix_cache_queries", queried, prefix_queries.clone());
        let found = "Tokens found in the prefix cache";
        r.register("vllm:prefix_cache_hits", found, prefix_hits.clone());
        r.register(
            "vllm:num_preemptions",
            "Sequences preempted",
            preemptions.clone(),
        );
        let run = "Draft tokens that were run";
        r.register("vllm:spec_decode_num_draft_tokens", run, drafted.clone());
        let kept = "Draft tokens that became tokens of an answer";
        r.register(
            "vllm:spec_decode_num_accepted_tokens",
            kept,
            accepted.clone(),
        );
        r.register(
            "vllm:prompt_tokens",
            "Prompt tokens of answers",
            prompt_tokens.clone(),
        );
        let generated = "Tokens generated";
        r.register(
            "vllm:generation_tokens",
            generated,
            generation_tokens.clone(),
        );
        let first = "Seconds from a request to its first token";
        r.register(
            "vllm:time_to_first_token_seconds",
            first,
            first_token.clone(),
        );
        let between = "Seconds between two tokens of an answer";
        r.register(
            "vllm:time_per_output_token_seconds",
            between,
            between_tokens.clone(),
        );
        r.register(
            "vllm:inter_token_latency_seconds",
            between,
            between_tokens.clone(),
        );
        let end = "Seconds from a request to its end";
        r.register("vllm:e2e_request_latency_seconds", end, whole.clone());
        let answers = "Answers that were finished, by reason";
        r.register("vllm:request_success", answers, success.clone());
        r.register(
            "metrale:request_failure",
            "Requests that failed",
            failed.clone(),
        );
        let stages = [(); 3].map(|()| Histogram::new(WHOLE));
        let names = [
            (
                "vllm:request_queue_time_seconds",
                "Seconds that a request waits",
            ),
            (
                "vllm:request_prefill_time_seconds",
                "Seconds from there to its first token",
            ),
            (
                "vllm:request_decode_time_seconds",
                "Seconds from there to its end",
            ),
        ];
        for ((name, help), stage) in names.into_iter().zip(&stages) {
            r.register(name, help, stage.clone());
        }
        let (prompt_size, answer_size) = (Histogram::new(SIZES), Histogram::new(SIZES));
        let help = "Prompt tokens of a request";
        r.register("vllm:request_prompt_tokens", help, prompt_size.clone());
        let help = "Generated tokens of a request";
        r.register("vllm:request_generation_tokens", help, answer_size.clone());
        let cache_config = CacheConfig::default();
        let help = "1; its labels are the KV pool's sizes";
        r.register("vllm:cache_config_info", help, cache_config.clone());
        let (steps, restarts) = (Counter::default(), Counter::default());
        r.register("metrale:steps", "Steps of the engine", steps.clone());
        let help = "Times the engine's loop began again after a fault";
        r.register("metrale:engine_restarts", help, restarts.clone());
        Metrics {
            stages,
            prompt_size,
            answer_size,
            cache_config,
            steps,
            restarts,
            registry,
            running,
            waiting,
            kv_usage,
            prefix_queries,
            prefix_hits,
            preemptions,
            drafted,
            accepted,
            prompt_tokens,
            generation_tokens,
            first_token,
            between_tokens,
            whole,
            success,
            failed,
        }
    }

    /// The page, with the engine's numbers as of now; its type is [`CONTENT_TYPE`](crate::CONTENT_TYPE).
    ///
    /// # Errors
    /// If a metric cannot be written as text.
    pub fn page(&self, stats: EngineStats) -> Result<String, std::fmt::Error> {
        self.running.set(stats.running as i64);
        self.waiting.set(stats.waiting as i64);
        let used = stats.kv_blocks_used as f64 / stats.kv_blocks.max(1) as f64;
        self.kv_usage.set(used);
        let totals = [
            (&self.prefix_queries, stats.prefix_queries),
            (&self.prefix_hits, stats.prefix_hits),
            (&self.preemptions, stats.preemptions),
            (&self.drafted, stats.drafted),
            (&self.accepted, stats.accepted),
            (&self.steps, stats.steps),
            (&self.restarts, stats.restarts),
        ];
        for (counter, total) in totals {
            counter.inner().store(total, Ordering::Relaxed);
        }
        self.cache_config.clear();
        let sizes = [
            ("block_size", stats.block_tokens.to_string()),
            ("num_gpu_blocks", stats.kv_blocks.to_string()),
        ];
        self.cache_config.get_or_create(&sizes).set(1);
        let mut page = String::new();
        encode(&mut page, &self.registry)?;
        Ok(page)
    }

    /// A request spent this time in a stage.
    pub fn stage(&self, stage: Stage, took: Duration) {
        self.stages[stage as usize].observe(took.as_secs_f64());
    }

    /// A request failed after it was taken.
    pub fn failure(&self) {
        self.failed.inc();
    }
}

/// Times one request.
pub struct Meter {
    start: Instant,
    /// When the last token of each choice came.
    last: Vec<Option<Instant>>,
}

impl Meter {
    /// For a request that came at `start` and has so many choices.
    pub fn new(start: Instant, choices: usize) -> Meter {
        Meter {
            start,
            last: vec![None; choices],
        }
    }

    /// A choice got tokens.
    pub fn tokens(&mut self, metrics: &Metrics, choice: usize, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        match self.last[choice].replace(now) {
            Some(last) => metrics.between_tokens.observe((now - last).as_secs_f64()),
            None => metrics
                .first_token
                .observe((now - self.start).as_secs_f64()),
        }
    }

    /// A choice ended, for this reason (`stop`, `length`).
    pub fn ended(&self, metrics: &Metrics, reason: &'static str) {
        let reason = [("finished_reason", reason)];
        metrics.success.get_or_create(&reason).inc();
    }

    /// All choices ended, after so many tokens.
    pub fn done(&self, metrics: &Metrics, prompt_tokens: u64, completion_tokens: u64) {
        metrics.whole.observe(self.start.elapsed().as_secs_f64());
        metrics.prompt_size.observe(prompt_tokens as f64);
        metrics.answer_size.observe(completion_tokens as f64);
        metrics.prompt_tokens.inc_by(prompt_tokens);
        metrics.generation_tokens.inc_by(completion_tokens);
    }
}
