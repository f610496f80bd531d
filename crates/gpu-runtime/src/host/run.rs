// SPDX-License-Identifier: MIT OR Apache-2.0
//! Works for the team: a program on a step, and a copy.

use std::ptr::NonNull;
use std::sync::Arc;

use metrale_core::{StepBlock, StepCounts};
use metrale_host_kernels::team::Work;
use metrale_host_kernels::{Isa, Scratch};

use super::arenas::Arenas;
use super::bind::Bound;
use crate::backend::DeviceInfo;

/// A recorded program.
#[derive(Debug)]
pub(super) struct Recorded {
    launches: Vec<Arc<Bound>>,
    pub(super) bucket: u32,
    /// (arenas, span, written), each span once.
    pub(super) uses: Vec<(u32, u32, bool)>,
}

impl Recorded {
    pub(super) fn new(launches: Vec<Arc<Bound>>, bucket: u32) -> Recorded {
        let mut uses: Vec<_> = launches
            .iter()
            .flat_map(|l| {
                l.uses
                    .iter()
                    .map(|(span, wrote)| (l.arenas_id, *span, *wrote))
            })
            .collect();
        // Of two uses of a span the written one sorts last and stays.
        uses.sort_unstable();
        uses.reverse();
        uses.dedup_by_key(|(arenas, span, _)| (*arenas, *span));
        Recorded {
            launches,
            bucket,
            uses,
        }
    }

    /// The first launch for which a step has more rows than the bucket: its point and the rows.
    pub(super) fn too_large(&self, counts: StepCounts) -> Option<(&'static str, u32)> {
        self.launches.iter().find_map(|launch| {
            let rows = launch.rows(counts)?;
            (rows > self.bucket).then_some((launch.point(), rows))
        })
    }
}

/// A program on a step.
#[derive(Debug)]
struct Run {
    program: Option<Arc<Recorded>>,
    step: StepBlock,
}

impl Work for Run {
    fn launches(&self) -> usize {
        self.program.as_ref().map_or(0, |p| p.launches.len())
    }

    fn tiles(&self, launch: usize) -> u32 {
        let counts = self.step.counts();
        let bound = self.program.as_ref().map(|p| &p.launches[launch]);
        // A step that no point of the group takes still gets one tile, which reports it.
        bound.map_or(0, |b| b.launch(counts).map_or(1, |l| l.tiles(counts)))
    }

    fn run(&self, launch: usize, tile: u32, scratch: &mut Scratch) -> Result<(), String> {
        let Some(program) = &self.program else {
            return Ok(());
        };
        let bound = &program.launches[launch];
        let Some(launch) = bound.launch(self.step.counts()) else {
            return Err(format!(
                "{}: no point of the group takes this many rows",
                bound.point()
            ));
        };
        // SAFETY: the buffers were checked at bind and `bound` keeps their arenas; the team runs each tile of a launch
        // once and one launch at a time; host reads and writes wait for the works that use their span.
        unsafe { launch.run(&self.step, tile, scratch) }
            .map_err(|fault| format!("{}: {fault}", launch.point.id))
    }
}

/// Runs that are over are used again, so that a step allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Arc<Run>>);

impl Runs {
    /// A run of the program on a copy of the step.
    pub(super) fn take(&mut self, program: Arc<Recorded>, step: &StepBlock) -> Arc<dyn Work> {
        for run in &mut self.0 {
            // The team has dropped a run that is over.
            if let Some(free) = Arc::get_mut(run)
                && free.step.layout() == step.layout()
            {
                free.program = Some(program);
                free.step.clone_from(step);
                return run.clone();
            }
        }
        let run = Arc::new(Run {
            program: Some(program),
            step: step.clone(),
        });
        self.0
            .retain_mut(|run| Arc::get_mut(run).is_none() || run.step.layout() == step.layout());
        self.0.push(run.clone());
        run
    }

    /// Lets go of programs (and so of arenas) that idle runs still hold.
    pub(super) fn forget_idle(&mut self) {
        for run in &mut self.0 {
            if let Some(free) = Arc::get_mut(run) {
                free.program = None;
            }
        }
    }
}

/// A copy between arenas, in one tile.
pub(super) struct CopyWork {
    _keep: Arc<Arenas>,
    dst: NonNull<u8>,
    src: NonNull<u8>,
    bytes: usize,
}

// SAFETY: two ranges of arenas that it keeps alive; the team runs it in order with every other user of them.
unsafe impl Send for CopyWork {}
// SAFETY: as above.
unsafe impl Sync for CopyWork {}

impl CopyWork {
    /// `None` if the ranges overlap. They must lie inside the arenas.
    pub(super) fn new(
        arenas: Arc<Arenas>,
        dst: NonNull<u8>,
        src: NonNull<u8>,
        bytes: usize,
    ) -> Option<CopyWork> {
        let (d, s) = (dst.as_ptr() as usize, src.as_ptr() as usize);
        if bytes > 0 && d < s + bytes && s < d + bytes {
            return None;
        }
        Some(CopyWork {
            _keep: arenas,
            dst,
            src,
            bytes,
        })
    }
}

impl Work for CopyWork {
    fn launches(&self) -> usize {
        1
    }

    fn tiles(&self, _: usize) -> u32 {
        1
    }

    fn run(&self, _: usize, _: u32, _: &mut Scratch) -> Result<(), String> {
        // SAFETY: checked ranges of live arenas that do not overlap; works run one at a time, and host reads and writes
        // wait for this one.
        unsafe {
            std::ptr::copy_nonoverlapping(self.src.as_ptr(), self.dst.as_ptr(), self.bytes);
        }
        Ok(())
    }
}

/// What the machine says about itself; silence gives plain words, not errors.
pub(super) fn device_info(isa: Isa, threads: u32) -> DeviceInfo {
    let field = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|l| l.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|v| v.trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(u64::MAX, |kb| kb * 1024);
    let mut features = Vec::new();
    if isa.has_avx2() {
        features.extend(["avx2", "fma", "f16c"]);
    }
    if isa.has_avx512() {
        features.extend(["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]);
    }
    if isa.has_amx() {
        features.extend(["amx_tile", "amx_bf16"]);
    }
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "CPU".into());
    DeviceInfo {
        name: format!("{model}, {threads} threads, {}", isa.name()),
        class: "cpu".into(),
        memory,
        features: features.into_iter().map(str::to_owned).collect(),
        lazy_memory: true,
    }
}
