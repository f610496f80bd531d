// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the kernel tree into the registry: resolve and check all manifests (always), find a compiler, compile what is
//! not cached, write `registry.rs`. A build without a compiler succeeds, and says in `STATUS` what it left out.

mod build {
    pub(crate) mod compile;
    pub(crate) mod emit;
    pub(crate) mod families;
    pub(crate) mod toolchain;
}
mod build_target;
#[allow(dead_code, unreachable_pub)] // the build script parses, the crate evaluates
#[path = "src/formula.rs"]
mod formula;

use std::path::{Path, PathBuf};

use build::compile::{self, Compiled};
use build::toolchain::{self, Nvcc};
use build::{emit, families};
use metrale_closure::{Resolved, Tree};

/// Build errors end the build; everything is reported as text.
type Result<T> = std::result::Result<T, String>;

fn main() {
    if let Err(message) = run() {
        println!("cargo::error={}", message.replace('\n', " | "));
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let here =
        PathBuf::from(variable("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let out = PathBuf::from(variable("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let repository = here
        .parent()
        .and_then(Path::parent)
        .ok_or("the crate lies outside a repository")?;
    let root = repository.join("kernels");
    let lever = |name: &str| {
        println!("cargo::rerun-if-env-changed={name}");
        variable(name)
    };
    println!(
        "cargo::rerun-if-changed={}",
        here.join("build.rs").display()
    );
    println!("cargo::rerun-if-changed={}", here.join("build").display());
    println!(
        "cargo::rerun-if-changed={}",
        root.join("circuits/FAMILIES.toml").display()
    );

    let mode = lever("METRALE_KERNELS").unwrap_or_else(|| "auto".into());
    if !["auto", "off", "require"].contains(&mode.as_str()) {
        return Err(format!(
            "METRALE_KERNELS is {mode:?}, expected auto, off or require"
        ));
    }
    let only = ["HW", "MODEL", "QUANT"].map(|part| lever(&format!("METRALE_TARGET_{part}")));
    let asked = ["METRALE_NVCC", "METRALE_CUDA_WHEELS", "CUDA_HOME"].map(variable);
    let asked = asked.iter().chain(&only).any(Option::is_some);
    let search = toolchain::Search {
        nvcc: lever("METRALE_NVCC"),
        cuda_home: lever("CUDA_HOME").or_else(|| lever("CUDA_PATH")),
        wheels: lever("METRALE_CUDA_WHEELS").is_some_and(|v| v == "1" || v == "true"),
        script: repository.join("scripts/kernels/cuda-wheels.sh"),
        cache: compile::cache_folder()?,
    };

    let families = families::read(&root.join("circuits/FAMILIES.toml"))?;
    let tree = Tree::new(&root);
    let targets = targets(&tree, &only)?;
    for target in &targets {
        // A manifest that is wrong fails every build, not just those that have a compiler.
        emit::points(target, &families, &[])?;
    }
    let (status, compiled) = match mode.as_str() {
        "off" => ("left out: METRALE_KERNELS=off".to_owned(), Vec::new()),
        _ if targets.is_empty() => ("left out: METRALE_TARGET_HW=cpu".to_owned(), Vec::new()),
        mode => match compile_all(&search, &targets, &out) {
            Ok((nvcc, compiled)) => (format!("compiled by nvcc {}", nvcc.release), compiled),
            Err(message) if mode == "require" => return Err(message),
            Err(message) => {
                if asked || toolchain::on_path() || gpu_here() {
                    println!("cargo::warning={}", left_out(&message));
                }
                (format!("left out: {message}"), Vec::new())
            }
        },
    };
    let text = emit::registry(&status, &compiled, &families)?;
    std::fs::write(out.join("registry.rs"), text).map_err(|e| format!("registry.rs: {e}"))
}

/// Whether this machine has an NVIDIA GPU: only then, or where a lever or a compiler says so, are kernels missed.
fn gpu_here() -> bool {
    ["/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg"]
        .iter()
        .any(|device| Path::new(device).exists())
}

fn left_out(message: &str) -> String {
    let message = message.replace('\n', " | ");
    format!(
        "no GPU kernels in this build: {message} (METRALE_KERNELS=off: none are wanted; require: an error)"
    )
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// Every target of the tree that something compiles, cut down to what the levers name.
fn targets(tree: &Tree, only: &[Option<String>; 3]) -> Result<Vec<Resolved>> {
    let fits = |i: usize, name: &str| only[i].as_deref().is_none_or(|want| want == name);
    let text = |e: metrale_closure::ClosureError| e.to_string();
    let mut targets = Vec::new();
    let mut classes = Vec::new();
    let (mut leaves, mut leaf_taken) = (Vec::new(), false);
    for class in tree.classes().map_err(text)? {
        let target = build_target::resolve_compute_target(&class.target).ok_or_else(|| {
            format!(
                "{}/HARDWARE.toml: nothing compiles the target {:?}",
                class.name, class.target
            )
        })?;
        if target.source_extension().is_none() {
            continue;
        }
        classes.push(class.name.clone());
        for link in tree.chain(&class.name).map_err(text)? {
            println!("cargo::rerun-if-changed=../../kernels/{}", link.name);
        }
        if !fits(0, &class.name) {
            continue;
        }
        targets.push(tree.resolve(&class.name, None).map_err(text)?);
        for (model, quant) in tree.leaves(&class.name).map_err(text)? {
            if fits(1, &model) && fits(2, &quant) {
                let leaf = tree.resolve(&class.name, Some((&model, &quant)));
                targets.push(leaf.map_err(text)?);
                leaf_taken = true;
            }
            leaves.push(format!("{}/{model}/{quant}", class.name));
        }
    }
    if let Some(hw) = &only[0]
        && !classes.contains(hw)
        && hw != "cpu"
    {
        return Err(format!(
            "METRALE_TARGET_HW is {hw:?}; the kernel tree compiles {} (cpu needs no compiler)",
            classes.join(", ")
        ));
    }
    if (only[1].is_some() || only[2].is_some()) && !leaf_taken {
        let has = match leaves.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", leaves.join(", ")),
        };
        return Err(format!(
            "METRALE_TARGET_MODEL and METRALE_TARGET_QUANT name no leaf of the kernel tree; {has}"
        ));
    }
    Ok(targets)
}

fn compile_all<'a>(
    search: &toolchain::Search,
    targets: &'a [Resolved],
    out: &Path,
) -> Result<(Nvcc, Vec<Compiled<'a>>)> {
    let nvcc = toolchain::find(search)?;
    let compiled = compile::compile(&nvcc, targets, &search.cache, out)?;
    Ok((nvcc, compiled))
}
