// SPDX-License-Identifier: MIT OR Apache-2.0
//! One compiler process a source, a few at a time; images are kept by closure hash outside the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrale_closure::Resolved;

use super::super::{Result, build_target};
use super::toolchain::Nvcc;

/// A target with the images of its sources.
pub(crate) struct Compiled<'a> {
    pub(crate) target: &'a Resolved,
    pub(crate) images: Vec<ImageFile>,
}

/// An image in the build's own folder.
pub(crate) struct ImageFile {
    pub(crate) source: String,
    pub(crate) closure: String,
    pub(crate) path: PathBuf,
}

struct Job<'a> {
    target: &'a Resolved,
    source: String,
    cached: PathBuf,
    stage: PathBuf,
}

/// `$XDG_CACHE_HOME/metrale/kernels`, or the same under the home folder.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .or_else(|| set("OUT_DIR"))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("metrale").join("kernels"))
}

pub(crate) fn compile<'a>(
    nvcc: &Nvcc,
    targets: &'a [Resolved],
    cache: &Path,
    out: &Path,
) -> Result<Vec<Compiled<'a>>> {
    std::fs::create_dir_all(cache).map_err(at(cache))?;
    let (mut jobs, mut all) = (Vec::new(), Vec::new());
    for target in targets {
        let stage = out.join("stage").join(&target.target);
        let mut images = Vec::new();
        for source in target.sources() {
            let closure = target.closure(source).map_err(|e| e.to_string())?;
            let hash = closure.hash(&target.arch, &target.flags, &nvcc.version);
            let cached = cache.join(format!("{hash}.fatbin"));
            if !cached.is_file() {
                let (source, stage) = (source.to_owned(), stage.clone());
                jobs.push(Job {
                    target,
                    source,
                    cached,
                    stage,
                });
            }
            let path = out.join(format!("{hash}.fatbin"));
            images.push(ImageFile {
                source: source.to_owned(),
                closure: hash,
                path,
            });
        }
        all.push(Compiled { target, images });
    }
    for target in targets
        .iter()
        .filter(|t| jobs.iter().any(|j| j.target.target == t.target))
    {
        stage_files(target, &out.join("stage").join(&target.target))?;
    }
    run_all(nvcc, &jobs)?;
    for image in all.iter().flat_map(|c| &c.images) {
        let cached = cache.join(format!("{}.fatbin", image.closure));
        std::fs::copy(&cached, &image.path).map_err(at(&cached))?;
    }
    Ok(all)
}

/// Lays the resolved files side by side: a quoted include then finds what the target resolves it to, shadows included.
fn stage_files(target: &Resolved, stage: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(stage);
    std::fs::create_dir_all(stage).map_err(at(stage))?;
    for (name, path) in target.files() {
        std::fs::copy(path, stage.join(name)).map_err(at(path))?;
    }
    Ok(())
}

fn run_all(nvcc: &Nvcc, jobs: &[Job<'_>]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<String>> = Mutex::new(None);
    let workers = std::thread::available_parallelism()
        .map_or(1, |n| n.get())
        .min(jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(message) = run(nvcc, job) {
                        // A poisoned lock would mean that a worker panicked while storing a text.
                        *failed.lock().unwrap_or_else(|e| e.into_inner()) = Some(message);
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failed
        .into_inner()
        .unwrap_or_else(|e| e.into_inner())
        .map_or(Ok(()), Err)
}

fn run(nvcc: &Nvcc, job: &Job<'_>) -> Result<()> {
    let class = &job.target.hardware;
    let compute = build_target::resolve_compute_target(&class.target)
        .ok_or_else(|| format!("nothing compiles the target {:?}", class.target))?;
    // Written beside its place and moved there whole: another build may compile the same image at the same time.
    let partial = job
        .cached
        .with_extension(format!("{}.part", std::process::id()));
    let args = compute.compile_args(
        &job.target.arch,
        &job.target.flags,
        &job.stage.join(&job.source),
        &partial,
    );
    let output = Command::new(&nvcc.path)
        .args(args)
        .output()
        .map_err(|e| format!("{}: {e}", nvcc.path.display()))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        return Err(format!(
            "nvcc failed on {}/{}: {}",
            job.target.target,
            job.source,
            text.trim()
        ));
    }
    std::fs::rename(&partial, &job.cached).map_err(at(&job.cached))
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{}: {e}", path.display())
}
