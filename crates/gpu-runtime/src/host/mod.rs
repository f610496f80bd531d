// SPDX-License-Identifier: MIT OR Apache-2.0
//! Class `cpu`: programs are lists of launches, walked by the thread team of `metrale-host-kernels`.
//!
//! There is one team and so one order: everything submitted, to whatever queue, runs in the order of submission, and the
//! fences of `after` are over by then. A program serves every step up to its bucket; how many tiles a launch has follows
//! from the step's counts when it begins.
//!
//! Host reads and writes need no fences: each span knows the last submitted work that uses and that writes it. Spans of
//! the activation arena share their bytes by plan, and so share one such entry. Writes to KV and staging spans do not wait,
//! as the trait says: blocks that no sequence holds are populated and loaded while steps run.

mod arenas;
mod bind;
mod run;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrale_core::{ArenaKind, Arg, MemoryPlan, PointId, RowRange, SpanId, StepBlock, StepLimits};
use metrale_host_kernels::team::{Outcome, Team, TeamOptions, Ticket, Work, allowed_cores};
use metrale_host_kernels::{HostPoint, Isa, points};

use crate::backend::{
    ArenasId, DeviceInfo, Fence, GpuBackend, Kernel, Launch, Loc, Program, Progress, Queue,
};
use crate::error::{BindError, DeviceFault, OutOfMemory, Unresolved};
use arenas::Arenas;
use bind::Bound;
use run::{CopyWork, Recorded};
use state::{LastUse, State};

/// How the host backend is made.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Threads of the team; 0 = one per core in `affinity`, or, if that is empty, per core that the process may use.
    pub threads: usize,
    /// Instruction set; `None` = the best that the processor has.
    pub isa: Option<Isa>,
    /// Cores to pin the threads to, one each; empty = the system places them, which is right when other jobs run.
    pub affinity: Vec<usize>,
}

impl HostOptions {
    /// Threads that the team will have.
    #[must_use]
    pub fn team(&self) -> usize {
        match (self.threads, self.affinity.len()) {
            (0, 0) => std::thread::available_parallelism().map_or(1, usize::from),
            (0, cores) => cores,
            (threads, _) => threads,
        }
    }
}

/// The team's threads could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system refuses threads.
    #[error(
        "cannot start {threads} worker threads: {source}; lower --threads or the limit on processes"
    )]
    Threads {
        /// How many were wanted.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not one core for each thread.
    #[error(
        "{threads} worker threads and {cores} cores to pin them to; give --cpu-affinity one core for each, or leave out --threads"
    )]
    Cores {
        /// How many threads were wanted.
        threads: usize,
        /// How many cores were named.
        cores: usize,
    },
    /// A core named twice: two threads would take turns on it.
    #[error("--cpu-affinity names core {core} twice; name each core once")]
    Twice {
        /// The first such core.
        core: usize,
    },
    /// A core that the process may not use.
    #[error("cannot pin a thread to core {core}; it can be one of {allowed:?}")]
    Core {
        /// The first such core.
        core: usize,
        /// Those that the process may use.
        allowed: Vec<usize>,
    },
}

/// The device of class `cpu`.
#[derive(Debug)]
pub struct HostBackend {
    team: Team,
    isa: Isa,
    info: DeviceInfo,
    points: Vec<&'static HostPoint>,
    state: Mutex<State>,
}

impl HostBackend {
    /// Starts the team.
    ///
    /// # Errors
    /// [`StartError`] if the system refuses threads, or the cores to pin them to are not to be had.
    pub fn new(options: &HostOptions) -> Result<HostBackend, StartError> {
        let (threads, cores) = (options.team(), options.affinity.len());
        if cores != 0 && cores != threads {
            return Err(StartError::Cores { threads, cores });
        }
        let allowed = allowed_cores();
        for (i, core) in options.affinity.iter().copied().enumerate() {
            if options.affinity[..i].contains(&core) {
                return Err(StartError::Twice { core });
            }
            if !allowed.contains(&core) {
                return Err(StartError::Core { core, allowed });
            }
        }
        let mut team = TeamOptions::new(threads);
        team.affinity.clone_from(&options.affinity);
        let team = Team::new(&team).map_err(|source| StartError::Threads { threads, source })?;
        let isa = options.isa.unwrap_or_else(Isa::detect);
        Ok(HostBackend {
            info: run::device_info(isa, threads as u32),
            team,
            isa,
            points: points().collect(),
            state: Mutex::new(State::default()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The tables are never left half changed: nothing that can panic stands between two changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `io` on the arenas when the span is free of the works that `last` names, holding off new ones meanwhile.
    fn when_free(
        &self,
        arenas: ArenasId,
        span: SpanId,
        last: impl Fn(&LastUse, usize) -> Ticket,
        io: impl FnOnce(&Arenas) -> Result<(), DeviceFault>,
    ) -> Result<(), DeviceFault> {
        loop {
            let state = self.state();
            let Some((memory, uses)) = state.arenas.get(&arenas.0) else {
                return Err(unknown("arenas", arenas.0.into()));
            };
            let Some(entry) = uses.entry.get(span.0 as usize) else {
                return Err(unknown("span", span.0.into()));
            };
            let ticket = last(uses, *entry);
            if self.team.poll(ticket).is_some() {
                return io(memory);
            }
            drop(state);
            // A failed work has ended too; its fence tells of the failure.
            let _ = self.team.wait(ticket, Duration::MAX);
        }
    }

    /// The arenas, if the span is of a kind that the host may write while launches use other parts of it.
    fn shared_at_own_risk(&self, arenas: ArenasId, span: SpanId) -> Option<Arc<Arenas>> {
        let state = self.state();
        let (memory, _) = state.arenas.get(&arenas.0)?;
        let kind = memory.plan.spans.get(span.0 as usize)?.arena;
        matches!(kind, ArenaKind::Kv | ArenaKind::Staging).then(|| memory.clone())
    }

    fn submit_work(
        &self,
        state: &mut State,
        work: Arc<dyn Work>,
        uses: &[(u32, u32, bool)],
    ) -> Fence {
        let ticket = self.team.submit(work);
        for (arenas, span, wrote) in uses {
            if let Some((_, last)) = state.arenas.get_mut(arenas) {
                last.mark(*span, *wrote, ticket);
            }
        }
        Fence(ticket)
    }

    fn progress(&self, outcome: Option<Outcome>) -> Result<Progress, DeviceFault> {
        match outcome {
            None => Ok(Progress::Running),
            Some(Outcome::Done) => Ok(Progress::Done),
            Some(Outcome::Failed { launch, what }) => {
                Err(DeviceFault::rejected(format!("launch {launch}, {what}")))
            }
        }
    }

    fn known(&self, fence: Fence) -> Result<(), DeviceFault> {
        if fence.0 > self.team.submitted() {
            return Err(unknown("fence", fence.0));
        }
        Ok(())
    }

    fn submit_recorded(
        &self,
        state: &mut State,
        recorded: &Arc<Recorded>,
        step: &StepBlock,
    ) -> Result<Fence, DeviceFault> {
        if let Some((point, rows)) = recorded.too_large(step.counts()) {
            return Err(DeviceFault::rejected(format!(
                "{point}: a step of {rows} rows in a program recorded for at most {}",
                recorded.bucket
            )));
        }
        let run = state.runs.take(recorded.clone(), step);
        Ok(self.submit_work(state, run, &recorded.uses))
    }
}

/// A handle that this backend did not give, or that was released.
fn unknown(kind: &str, id: u64) -> DeviceFault {
    DeviceFault::rejected(format!(
        "unknown {kind} handle {id}: released, or of another backend"
    ))
}

/// A range that leaves its span.
fn out_of_range(memory: &Arenas, at: Loc, bytes: u64) -> DeviceFault {
    let (span, begin) = (memory.plan.span(at.span), at.offset);
    DeviceFault::rejected(format!(
        "{bytes} bytes from byte {begin} on were asked for of span {}, which has {}",
        span.name, span.bytes
    ))
}

impl GpuBackend for HostBackend {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn reserve(&self, plan: &MemoryPlan, _limits: &StepLimits) -> Result<ArenasId, OutOfMemory> {
        let taken = ArenaKind::ALL.iter().map(|k| self.reserved(*k)).sum();
        let arenas = Arc::new(Arenas::reserve(plan, &self.info, taken)?);
        let mut state = self.state();
        let id = state.id();
        state.arenas.insert(id, (arenas, LastUse::new(plan)));
        Ok(ArenasId(id))
    }

    fn release(&self, arenas: ArenasId) {
        let last = self.team.submitted();
        // A failed work has ended too; its fence tells of the failure.
        let _ = self.team.wait(last, Duration::MAX);
        let mut state = self.state();
        state
            .programs
            .retain(|_, p| p.uses.iter().all(|(id, _, _)| *id != arenas.0));
        state.launches.retain(|_, l| l.arenas_id != arenas.0);
        state.runs.forget_idle();
        // Work submitted meanwhile holds what it needs; the memory goes back with the last of it.
        state.arenas.remove(&arenas.0);
    }

    fn resolve(&self, point: &PointId) -> Result<Kernel, Unresolved> {
        if let Some(i) = self.points.iter().position(|p| p.id == point.as_str()) {
            return Ok(Kernel(i as u32));
        }
        let family = format!("{}/", point.family());
        let known = self
            .points
            .iter()
            .filter(|p| p.id.starts_with(&family))
            .map(|p| p.id);
        let known = known.collect::<Vec<_>>().join(", ");
        let remedy = if known.is_empty() {
            "the family does not exist on this class".into()
        } else {
            format!("of this family it has {known}")
        };
        Err(Unresolved {
            point: point.clone(),
            class: self.info.class.clone(),
            remedy,
        })
    }

    fn bind(
        &self,
        arenas: ArenasId,
        points: &[(RowRange, Kernel)],
        args: &[Arg],
    ) -> Result<Launch, BindError> {
        let mut resolved = Vec::with_capacity(points.len());
        for (range, kernel) in points {
            let unknown = || BindError::Points(format!("unknown kernel handle {}", kernel.0));
            resolved.push((
                *range,
                *self.points.get(kernel.0 as usize).ok_or_else(unknown)?,
            ));
        }
        let mut state = self.state();
        let memory = state
            .arenas
            .get(&arenas.0)
            .ok_or(BindError::Arenas)?
            .0
            .clone();
        let bound = Bound::new(arenas.0, memory, &resolved, args, self.isa)?;
        let id = state.id();
        state.launches.insert(id, Arc::new(bound));
        Ok(Launch(id))
    }

    fn record(&self, launches: &[Launch], bucket: u32) -> Result<Program, DeviceFault> {
        let mut state = self.state();
        let mut bound = Vec::with_capacity(launches.len());
        for launch in launches {
            let found = state.launches.get(&launch.0);
            bound.push(
                found
                    .ok_or_else(|| unknown("launch", launch.0.into()))?
                    .clone(),
            );
        }
        let id = state.id();
        state
            .programs
            .insert(id, Arc::new(Recorded::new(bound, bucket)));
        Ok(Program(id))
    }

    fn submit(
        &self,
        _queue: Queue,
        program: Program,
        step: &StepBlock,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        for fence in after {
            self.known(*fence)?;
        }
        let mut state = self.state();
        let recorded = state.programs.get(&program.0);
        let recorded = recorded
            .ok_or_else(|| unknown("program", program.0.into()))?
            .clone();
        self.submit_recorded(&mut state, &recorded, step)
    }

    fn run_once(&self, launch: Launch, step: &StepBlock) -> Result<(), DeviceFault> {
        let fence = {
            let mut state = self.state();
            let bound = state.launches.remove(&launch.0);
            let bound = bound.ok_or_else(|| unknown("launch", launch.0.into()))?;
            let recorded = Arc::new(Recorded::new(vec![bound], u32::MAX));
            self.submit_recorded(&mut state, &recorded, step)?
        };
        self.wait(fence, Duration::MAX).map(|_| ())
    }

    fn copy(
        &self,
        _queue: Queue,
        arenas: ArenasId,
        dst: Loc,
        src: Loc,
        bytes: u64,
        after: &[Fence],
    ) -> Result<Fence, DeviceFault> {
        for fence in after {
            self.known(*fence)?;
        }
        let mut state = self.state();
        let found = state.arenas.get(&arenas.0);
        let memory = found
            .ok_or_else(|| unknown("arenas", arenas.0.into()))?
            .0
            .clone();
        let end = |loc: Loc| {
            if loc.span.0 as usize >= memory.plan.spans.len() {
                return Err(unknown("span", loc.span.0.into()));
            }
            usize::try_from(bytes)
                .ok()
                .and_then(|len| memory.range(loc.span, loc.offset, len))
                .ok_or_else(|| out_of_range(&memory, loc, bytes))
        };
        let (to, from) = (end(dst)?, end(src)?);
        let work = CopyWork::new(memory, to, from, bytes as usize).ok_or_else(|| {
            DeviceFault::rejected(format!("a copy of {bytes} bytes overlaps itself"))
        })?;
        let uses = [(arenas.0, dst.span.0, true), (arenas.0, src.span.0, false)];
        Ok(self.submit_work(&mut state, Arc::new(work), &uses))
    }

    fn read(&self, arenas: ArenasId, src: Loc, out: &mut [u8]) -> Result<(), DeviceFault> {
        self.when_free(
            arenas,
            src.span,
            |last, entry| last.wrote[entry],
            |memory| {
                let bytes = out.len() as u64;
                // SAFETY: no submitted work writes the span, and the lock holds off new ones and host writes.
                unsafe { memory.read(src.span, src.offset, out) }
                    .ok_or_else(|| out_of_range(memory, src, bytes))
            },
        )
    }

    fn write(&self, arenas: ArenasId, dst: Loc, data: &[u8]) -> Result<(), DeviceFault> {
        let outside = |memory: &Arenas| out_of_range(memory, dst, data.len() as u64);
        if let Some(memory) = self.shared_at_own_risk(arenas, dst.span) {
            // SAFETY: the caller says by the call that nothing in flight touches the range (contract of `write` for these
            // arenas); launches beside it touch other bytes of the span.
            return unsafe { memory.write(dst.span, dst.offset, data) }
                .ok_or_else(|| outside(&memory));
        }
        self.when_free(
            arenas,
            dst.span,
            |last, entry| last.used[entry],
            |memory| {
                // SAFETY: no submitted work uses the span, and the lock holds off new ones and host reads.
                unsafe { memory.write(dst.span, dst.offset, data) }.ok_or_else(|| outside(memory))
            },
        )
    }

    fn poll(&self, fence: Fence) -> Result<Progress, DeviceFault> {
        self.known(fence)?;
        self.progress(self.team.poll(fence.0))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<Progress, DeviceFault> {
        self.known(fence)?;
        self.progress(self.team.wait(fence.0, timeout))
    }

    fn reserved(&self, kind: ArenaKind) -> u64 {
        self.state()
            .arenas
            .values()
            .map(|(arenas, _)| arenas.bytes(kind))
            .sum()
    }
}
