// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shape of the workspace, held by tests.
//!
//! [`ALLOWED`] is the whole list: which crate may depend on which, in an order where every edge points upward in the
//! table (so downward in the system) and no cycle can be written. A new edge is a decision: it is added here first.
//! Dev-dependencies are left aside; normal, build and target-specific ones count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Every role and the roles it may depend on. Roles stand in dependency order.
const ALLOWED: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("config", &["core"]),
    ("closure", &[]),
    ("circuit", &["core"]),
    ("governance", &[]),
    ("host-kernels", &["core"]),
    ("kernels", &["core", "closure"]),
    ("kernel-tree", &[]),
    ("gpu-sys", &[]),
    ("telemetry", &["gpu-sys"]),
    (
        "gpu-runtime",
        &["core", "config", "host-kernels", "kernels", "telemetry"],
    ),
    ("scheduler", &[]),
    ("cache", &["core", "gpu-runtime", "telemetry"]),
    // core: docs/adr/0007.
    ("sampling", &["core", "gpu-runtime", "telemetry"]),
    ("storage", &["core", "gpu-sys"]),
    ("comm", &["gpu-sys"]),
    ("grammar", &[]),
    (
        "model-weights",
        &[
            "core",
            "config",
            "gpu-runtime",
            "gpu-sys",
            "storage",
            "telemetry",
        ],
    ),
    (
        "model-layers",
        &[
            "core",
            "config",
            "closure",
            "circuit",
            "kernels",
            "gpu-runtime",
            "cache",
            "storage",
            "comm",
            "model-weights",
        ],
    ),
    (
        "model-arch",
        &[
            "config",
            "telemetry",
            "gpu-runtime",
            "cache",
            "storage",
            "comm",
            "model-weights",
            "model-layers",
        ],
    ),
    (
        "model-engine",
        &[
            "core",
            "config",
            "circuit",
            "kernels",
            "telemetry",
            "gpu-runtime",
            "scheduler",
            "cache",
            "sampling",
            "storage",
            "comm",
            "model-weights",
            "model-layers",
            "model-arch",
        ],
    ),
    ("speculative", &["model-layers"]),
    ("bench", &["config", "closure", "governance"]),
    (
        "server",
        &[
            "core",
            "config",
            "circuit",
            "kernels",
            "kernel-tree",
            "telemetry",
            "gpu-runtime",
            "scheduler",
            "cache",
            "sampling",
            "storage",
            "comm",
            "grammar",
            "model-weights",
            "model-layers",
            "model-arch",
            "model-engine",
            "speculative",
            "bench",
        ],
    ),
];

#[test]
fn the_allowed_edges_only_point_to_earlier_roles() {
    assert_eq!(ALLOWED.len(), 24);
    let mut earlier = BTreeSet::new();
    for (role, edges) in ALLOWED {
        for edge in *edges {
            assert!(
                earlier.contains(edge),
                "{role} -> {edge} does not point downward"
            );
        }
        assert!(earlier.insert(*role), "{role} is listed twice");
    }
}

#[test]
fn every_crate_depends_only_on_what_its_role_allows() -> Result<()> {
    let mut seen = BTreeSet::new();
    for role in crate_folders()? {
        let manifest = manifest(&root().join("crates").join(&role).join("Cargo.toml"))?;
        let allowed = ALLOWED
            .iter()
            .find(|(name, _)| *name == role)
            .with_context(|| format!("crates/{role} is no role of the design"))?
            .1;
        let name = manifest["package"]["name"].as_str().unwrap_or_default();
        ensure!(
            name == format!("metrale-{role}"),
            "crates/{role} holds package {name}, expected metrale-{role}"
        );
        for edge in internal_dependencies(&manifest) {
            ensure!(
                allowed.contains(&edge.as_str()),
                "metrale-{role} may not depend on metrale-{edge}; pass a value or a trait, \
                 or change the list in tests/crate_graph.rs with a reason"
            );
        }
        seen.insert(role);
    }
    ensure!(
        seen.contains("core") && seen.contains("server"),
        "only {seen:?} were found"
    );
    Ok(())
}

#[test]
fn the_workspace_members_are_the_folders_under_crates() -> Result<()> {
    let manifest = manifest(&root().join("Cargo.toml"))?;
    let members: BTreeSet<String> = manifest["workspace"]["members"]
        .as_array()
        .context("no workspace.members")?
        .iter()
        .filter_map(|member| member.as_str().map(str::to_owned))
        .collect();
    let folders: BTreeSet<String> = crate_folders()?
        .into_iter()
        .map(|role| format!("crates/{role}"))
        .collect();
    assert_eq!(members, folders);
    Ok(())
}

#[test]
fn every_source_file_names_its_licence_on_line_one() -> Result<()> {
    let mut checked = 0;
    let mut missing = Vec::new();
    for path in source_files()? {
        let bytes = std::fs::read(root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_source = matches!(extension, Some("rs" | "toml" | "py" | "sh" | "cu" | "cuh"));
        if !is_source && !text.starts_with("#!") {
            continue;
        }
        checked += 1;
        if !names_the_licence(&text) {
            missing.push(path);
        }
    }
    assert!(
        missing.is_empty(),
        "no SPDX line at the top of {missing:#?}"
    );
    assert!(
        checked > ALLOWED.len(),
        "only {checked} source files were found"
    );
    Ok(())
}

#[test]
fn the_licence_line_is_the_first_or_follows_a_shebang() {
    const LINE: &str = "SPDX-License-Identifier: MIT OR Apache-2.0";
    assert!(names_the_licence(&format!("// {LINE}\nfn main() {{}}\n")));
    assert!(names_the_licence(&format!("# {LINE}\n")));
    assert!(names_the_licence(&format!("#!/bin/sh\n# {LINE}\n")));
    assert!(!names_the_licence(&format!("\n// {LINE}\n")));
    assert!(!names_the_licence("// SPDX-License-Identifier: MIT\n"));
}

/// True when the first line (the second, after a `#!` line) is the SPDX comment of this project.
fn names_the_licence(text: &str) -> bool {
    let mut lines = text.lines();
    let mut line = lines.next().unwrap_or_default();
    if line.starts_with("#!/") {
        line = lines.next().unwrap_or_default();
    }
    let comment = line.strip_prefix("//").or_else(|| line.strip_prefix('#'));
    comment.map(str::trim) == Some("SPDX-License-Identifier: MIT OR Apache-2.0")
}

/// The roles (names without `metrale-`) that a manifest depends on, dev-dependencies aside.
fn internal_dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut tables = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let mut roles = BTreeSet::new();
    for table in tables {
        for kind in ["dependencies", "build-dependencies"] {
            let Some(dependencies) = table.get(kind).and_then(toml::Value::as_table) else {
                continue;
            };
            for (key, value) in dependencies {
                let renamed = value.get("package").and_then(toml::Value::as_str);
                if let Some(role) = renamed.unwrap_or(key).strip_prefix("metrale-") {
                    roles.insert(role.to_owned());
                }
            }
        }
    }
    roles
}

#[test]
fn internal_dependencies_see_build_target_and_renamed_ones() -> Result<()> {
    let manifest = toml::from_str(
        r#"
        [dependencies]
        serde = "1"
        metrale-core.workspace = true
        other = { package = "metrale-cache", path = "x" }
        [build-dependencies]
        metrale-closure.workspace = true
        [target.'cfg(unix)'.dependencies]
        metrale-comm.workspace = true
        [dev-dependencies]
        metrale-server.workspace = true
        "#,
    )?;
    let roles: Vec<String> = internal_dependencies(&manifest).into_iter().collect();
    assert_eq!(roles, ["cache", "closure", "comm", "core"]);
    Ok(())
}

fn crate_folders() -> Result<Vec<String>> {
    let mut roles = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            roles.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(roles)
}

fn manifest(path: &Path) -> Result<toml::Table> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not TOML", path.display()))
}

/// Paths relative to the root: what git tracks, or (in an unpacked archive without `.git`) every file.
fn source_files() -> Result<Vec<PathBuf>> {
    if !root().join(".git").exists() {
        let mut files = Vec::new();
        walk(&root(), &mut files)?;
        return Ok(files);
    }
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .context("git is needed to list the tracked files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|path| root().join(path).is_file())
        .collect())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        if path.is_file() {
            files.push(path.strip_prefix(root())?.to_owned());
        } else if path.is_dir() && !matches!(name.as_deref(), Some("target" | "shared" | ".venv")) {
            walk(&path, files)?;
        }
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
