// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loaded model as a benchmark's target.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrale_bench::{
    About, Gauges, Generated, GroupTime, Stamp, Step, Target, TargetError, Timeline, Work,
};
use metrale_circuit::Phase;
use metrale_core::{ArenaKind, KV_BLOCK};
use metrale_model_engine::gauge::{self, StepShape};
use metrale_model_engine::{Engine, TransformerModel};
use metrale_sampling::{Sampling, SamplingFields};
use metrale_scheduler::{Delivery, Event, EventSink, Request};
use metrale_telemetry::EnergyMeter;

use super::{Device, Opened, Weights};

/// Between the ends of two sequences; more means that the engine stands still.
const LONGEST: Duration = Duration::from_secs(1800);

/// An opened model under measurement.
pub struct Measured {
    opened: Opened,
    about: About,
    state: State,
    meter: Result<EnergyMeter, String>,
}

enum State {
    /// Nothing runs: single launches can be measured.
    Loaded(Box<TransformerModel>),
    Running(Engine),
    /// The engine did not start.
    Lost,
}

impl Measured {
    /// Loads the weights of `opened`; `name` is what the report calls it. `meter` counts the device's energy, or says why
    /// nothing does. `progress` is told the bytes read or made since it was told last.
    ///
    /// # Errors
    /// What failed, and why.
    pub fn load(
        opened: Opened,
        name: &str,
        meter: Result<EnergyMeter, String>,
        progress: impl FnMut(u64),
    ) -> anyhow::Result<Measured> {
        let started = Instant::now();
        let model = opened.model(progress)?;
        let plan = &opened.plan;
        let about = About {
            model: name.to_owned(),
            weights: match opened.options.weights {
                Weights::Checkpoint => "checkpoint",
                Weights::Made(_) => "dummy",
            },
            format: most(plan.weights.iter().map(|w| {
                let bytes = plan.memory.span(w.span).bytes;
                (w.elem.name(), bytes)
            }))
            .unwrap_or_default()
            .to_owned(),
            device: opened.device().name.clone(),
            class: plan.class.clone(),
            digest: plan.digest.short(),
            met: env!("CARGO_PKG_VERSION"),
            kv: plan.kv.to_string(),
            weight_bytes: plan.memory.arena_bytes(ArenaKind::Weights),
            vocab: plan.memory.span(plan.outputs.logits).extent.elems as u32,
            context: opened.limits.max_seq_len,
            kv_tokens: plan.kv_blocks * u64::from(KV_BLOCK),
            prefill_tokens: opened.limits.max_prefill_tokens,
            load_seconds: started.elapsed().as_secs_f64(),
        };
        Ok(Measured {
            opened,
            about,
            state: State::Loaded(Box::new(model)),
            meter,
        })
    }

    fn loaded(&self) -> Result<&TransformerModel, TargetError> {
        match &self.state {
            State::Loaded(model) => Ok(model),
            _ => Err(TargetError::new("the engine has the model already")),
        }
    }

    /// The engine, started if it does not run yet.
    fn engine(&mut self) -> Result<&Engine, TargetError> {
        if let State::Loaded(_) = &self.state
            && let State::Loaded(model) = std::mem::replace(&mut self.state, State::Lost)
        {
            let engine = self.opened.start(*model);
            self.state = State::Running(engine.map_err(|e| TargetError::new(e.to_string()))?);
        }
        match &self.state {
            State::Running(engine) => Ok(engine),
            _ => Err(TargetError::new("the engine did not start")),
        }
    }

    /// When the programs ran since this was last asked, or why nobody knows.
    fn stamps(&self) -> Result<Result<Vec<Stamp>, String>, TargetError> {
        let stamps = self.opened.on.backend.stamps();
        let stamps = stamps.map_err(|e| TargetError::new(e.to_string()))?;
        let of = |s: metrale_gpu_runtime::Stamp| Stamp {
            begin: s.begin,
            end: s.end,
            rows: s.rows,
            logits_rows: s.logits_rows,
        };
        Ok(match (stamps, self.opened.on.device) {
            (Some(stamps), _) => Ok(stamps.into_iter().map(of).collect()),
            (None, Device::Cpu) => Err("measured on a GPU only".to_owned()),
            (None, Device::Cuda(_)) => Err("ask with --idle-share".to_owned()),
        })
    }

    /// The peak that bounds most operations of a row.
    fn heaviest(&self) -> Option<&str> {
        let groups = self.opened.plan.groups.iter();
        most(groups.map(|g| (g.peak.as_str(), g.cost.flops_per_row)))
    }

    /// The arithmetic peak of the plan's largest linear layers, as DEVICES.toml states it.
    fn stated(&self) -> (Option<f64>, String) {
        let plan = &self.opened.plan;
        let Some((name, device)) = &plan.device else {
            return (
                None,
                "operations: this device has no stated peak".to_owned(),
            );
        };
        let peak = self
            .heaviest()
            .and_then(|peak| Some((peak, *device.flops.get(peak)?)));
        match peak {
            Some((peak, flops)) => (Some(flops), format!("stated: {peak} of {name}")),
            None => (None, format!("operations: no stated peak of {name}")),
        }
    }
}

/// The name that counts most.
fn most<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> Option<&'a str> {
    let mut sums = BTreeMap::<&str, u64>::new();
    counts.for_each(|(name, count)| *sums.entry(name).or_default() += count);
    let most = sums.into_iter().max_by_key(|(_, sum)| *sum);
    most.map(|(name, _)| name)
}

impl Target for Measured {
    fn about(&self) -> &About {
        &self.about
    }

    fn gauges(&mut self) -> Result<Gauges, TargetError> {
        let rates = gauge::rates(self.loaded()?).map_err(|e| TargetError::new(e.to_string()))?;
        let (rate, what) = match self.heaviest() {
            Some("int16") => (rates.integer, "16-bit integer products"),
            _ => (rates.float, "f32 multiply-adds"),
        };
        let (operations, operations_source) = match rate {
            Some(rate) => (Some(rate), format!("measured: {what} of all threads")),
            None => self.stated(),
        };
        Ok(Gauges {
            read: rates.read,
            read_bytes: rates.read_bytes,
            operations,
            operations_source,
        })
    }

    fn groups(&mut self, step: Step) -> Result<Vec<GroupTime>, TargetError> {
        let times = gauge::groups(self.loaded()?, shape(step))
            .map_err(|e| TargetError::new(e.to_string()))?;
        let times = times.into_iter().map(|t| GroupTime {
            name: t.name,
            launches: t.launches,
            seconds: t.seconds,
            work: Work {
                bytes: t.bytes,
                operations: t.operations,
            },
        });
        Ok(times.collect())
    }

    fn work(&self, step: Step) -> Work {
        let w = shape(step).workload();
        let mut total = Work::default();
        for group in &self.opened.plan.groups {
            let rows = match group.phase {
                Phase::Forward => w.rows,
                Phase::Sample => w.logits_rows,
            };
            total.bytes += group.cost.bytes(rows, &w);
            total.operations += group.cost.flops(rows, &w);
        }
        total
    }

    fn generate(
        &mut self,
        prompts: Vec<Arc<[u32]>>,
        output: u32,
    ) -> Result<Generated, TargetError> {
        let greedy = SamplingFields {
            temperature: 0.0,
            ..SamplingFields::default()
        };
        let greedy = Sampling::new(&greedy, 0).map_err(|e| TargetError::new(e.to_string()))?;
        let handle = self.engine()?.handle().clone();
        // What ran before is not of this.
        let _ = self.stamps()?;
        let (sender, receiver) = channel();
        let batch = Arc::new(Batch {
            started: Instant::now(),
            count: prompts.len(),
            seen: Mutex::new(Seen::default()),
        });
        for (index, prompt) in prompts.into_iter().enumerate() {
            let request = Request::new(handle.fresh_id(), prompt, greedy, output);
            let watch = Watch {
                index,
                timeline: Timeline::default(),
                batch: Arc::clone(&batch),
                sender: sender.clone(),
            };
            handle
                .submit(request, Box::new(watch))
                .map_err(|e| TargetError::new(e.to_string()))?;
        }
        drop(sender);
        let timelines = collect(&receiver, batch.count, output)?;
        Ok(Generated {
            timelines,
            processor_seconds_per_token: batch.seen().per_token(),
            stamps: self.stamps()?,
        })
    }

    fn processor_seconds(&mut self) -> Option<f64> {
        processor_seconds()
    }

    fn joules(&mut self) -> Result<f64, String> {
        self.meter.as_ref().map_err(Clone::clone)?.joules()
    }
}

/// Processor seconds of this process, the sum over the threads that live: the engine's all do.
fn processor_seconds() -> Option<f64> {
    let mut total = 0.0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread that ended meanwhile has no file any more.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else {
            continue;
        };
        let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
        total += nanoseconds * 1e-9;
    }
    Some(total)
}

/// Sequences that started together.
struct Batch {
    started: Instant,
    count: usize,
    seen: Mutex<Seen>,
}

/// What the engine's thread has seen of a batch.
#[derive(Clone, Copy, Default)]
struct Seen {
    tokens: u32,
    begun: usize,
    /// Tokens and processor seconds when all had begun, and when the first ended.
    from: Option<(u32, f64)>,
    to: Option<(u32, f64)>,
}

impl Batch {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Counts: no panic leaves them half changed.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Processor seconds of a token while all decode.
    fn per_token(&self) -> Option<f64> {
        let ((a, begin), (b, end)) = (self.from?, self.to?);
        (b > a).then(|| (end - begin) / f64::from(b - a))
    }
}

/// What a sequence gave, or why it gave no more, and which sequence.
type Ended = (usize, Result<Timeline, String>);

/// Notes the times of one sequence where they arise. Nobody is woken before its end: waking a thread costs the engine's more
/// than all else that a token does.
struct Watch {
    index: usize,
    timeline: Timeline,
    batch: Arc<Batch>,
    sender: Sender<Ended>,
}

impl EventSink for Watch {
    fn deliver(&mut self, event: Event) -> Delivery {
        let end = match event {
            Event::Admitted { cached_tokens } => {
                self.timeline.cached = cached_tokens;
                return Delivery::Taken;
            }
            Event::Token { .. } => {
                let at = self.batch.started.elapsed().as_secs_f64();
                let mut seen = self.batch.seen();
                seen.tokens += 1;
                if self.timeline.tokens.is_empty() {
                    seen.begun += 1;
                    if seen.begun == self.batch.count {
                        seen.from = processor_seconds().map(|s| (seen.tokens, s));
                    }
                }
                self.timeline.tokens.push(at);
                return Delivery::Taken;
            }
            Event::Prompt { .. } => return Delivery::Taken,
            Event::Finished { .. } => {
                let mut seen = self.batch.seen();
                if seen.to.is_none() {
                    seen.to = processor_seconds().map(|s| (seen.tokens, s));
                }
                Ok(std::mem::take(&mut self.timeline))
            }
            Event::Failed(fault) => Err(fault.to_string()),
        };
        match self.sender.send((self.index, end)) {
            Ok(()) => Delivery::Taken,
            Err(_) => Delivery::Gone,
        }
    }
}

/// The timelines of `count` sequences, each of exactly `output` tokens.
fn collect(
    receiver: &Receiver<Ended>,
    count: usize,
    output: u32,
) -> Result<Vec<Timeline>, TargetError> {
    let mut timelines = vec![Timeline::default(); count];
    for _ in 0..count {
        let (index, timeline) = match receiver.recv_timeout(LONGEST) {
            Ok(ended) => ended,
            Err(RecvTimeoutError::Timeout) => {
                let what = format!("no sequence ended within {LONGEST:?}");
                return Err(TargetError::new(what));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(TargetError::new("the engine went away"));
            }
        };
        let timeline = timeline.map_err(TargetError::new)?;
        if timeline.tokens.len() != output as usize {
            let what = format!(
                "a sequence ended after {} of {output} tokens",
                timeline.tokens.len()
            );
            return Err(TargetError::new(what));
        }
        timelines[index] = timeline;
    }
    Ok(timelines)
}

fn shape(step: Step) -> StepShape {
    StepShape {
        sequences: step.sequences,
        rows_each: step.rows_each,
        context: step.context,
    }
}
