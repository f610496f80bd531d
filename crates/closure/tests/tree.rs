// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees in a temporary folder: layers, shadows, closures.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use metrale_closure::{ClosureError, Tree};

/// A folder that goes away with the test.
struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

fn tree(files: &[(&str, &str)]) -> (Temp, Tree) {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let root = std::env::temp_dir().join(format!("metrale-closure-{}-{n}", std::process::id()));
    for (name, text) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let tree = Tree::new(&root);
    (Temp(root), tree)
}

const ROOT: (&str, &str) = (
    "a/HARDWARE.toml",
    "[hardware]\nname = \"a\"\nvendor = \"v\"\ntarget = \"cuda\"\narch = \"sm_1\"\n[circuits]\nserves = [\"*\"]\n",
);
const CHILD: (&str, &str) = (
    "b/HARDWARE.toml",
    "[hardware]\nname = \"b\"\nvendor = \"v\"\ntarget = \"cuda\"\narch = \"sm_2\"\ninherits = \"a\"\n",
);
const POINT: &str =
    "[[point]]\nid = \"f/p\"\nfile = \"k.cu\"\nentry = \"f_p\"\nblock = 32\ngrid = [\"rows\"]\n";
const K: (&str, &str) = ("a/common/k.cu", "#include \"h.cuh\"\n#include <math.h>\n");

#[test]
fn a_class_starts_from_the_common_layer_of_the_one_it_inherits() {
    let flags = format!("[compile]\nflags = [\"-x\"]\n{POINT}");
    let (_t, tree) = tree(&[
        ROOT,
        CHILD,
        K,
        ("a/common/h.cuh", "int h;\n"),
        ("a/common/KERNEL.toml", &flags),
        ("b/common/KERNEL.toml", "[compile]\nflags = [\"-y\"]\n"),
    ]);
    let b = tree.resolve("b", None).unwrap();
    assert_eq!(b.layers, ["a/common", "b/common"]);
    assert_eq!(
        (b.arch.as_str(), b.flags.as_slice()),
        ("sm_2", ["-x".to_owned(), "-y".to_owned()].as_slice())
    );
    assert_eq!(b.sources(), ["k.cu"]);
    assert_eq!(
        b.closure("k.cu").unwrap().names().collect::<Vec<_>>(),
        ["h.cuh", "k.cu"]
    );
    assert_eq!(tree.classes().unwrap().len(), 2);
}

#[test]
fn like_gives_a_family_the_points_of_another() {
    let like = "[[like]]\nfamily = \"g\"\nof = \"f\"\nwithout = [\"y\"]\nneeds.z = \"rows * 4\"\n";
    let points = format!("{POINT}needs.x = \"rows\"\nneeds.y = \"rows\"\n{like}");
    let resolve = |kernel: &str| {
        let files = [
            ROOT,
            K,
            ("a/common/h.cuh", ""),
            ("a/common/KERNEL.toml", kernel),
        ];
        let (_t, tree) = tree(&files);
        tree.resolve("a", None)
    };
    let all = resolve(&points).unwrap().points;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["f/p", "g/p"]);
    let (of, got) = (&all["f/p"].point, &all["g/p"].point);
    assert_eq!((got.entry.as_str(), of.entry.as_str()), ("g_p", "f_p"));
    assert_eq!((got.block, &got.grid), (of.block, &of.grid));
    assert_eq!(got.needs.keys().collect::<Vec<_>>(), ["x", "z"]);
    assert_eq!(of.needs.keys().collect::<Vec<_>>(), ["x", "y"]);

    let left_out = resolve(&format!("{points}except = [\"p\"]\n"));
    assert_eq!(left_out.unwrap().points.len(), 1);
    for (kernel, words) in [
        (format!("{points}except = [\"q\"]\n"), "no point f/q"),
        (points.replace("f_p", "fp"), "does not begin with f_"),
        (
            format!("{points}{}", POINT.replace("f/p", "g/p")),
            "g/p is declared twice",
        ),
    ] {
        let error = resolve(&kernel).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn the_hash_follows_contents_flags_and_toolchain_but_not_the_place() {
    let files = [
        ROOT,
        K,
        ("a/common/h.cuh", "int h;\n"),
        ("a/common/KERNEL.toml", POINT),
    ];
    let hash = |files: &[(&str, &str)], arch: &str, flags: &[String], tool: &str| {
        let (_t, tree) = tree(files);
        tree.resolve("a", None)
            .unwrap()
            .closure("k.cu")
            .unwrap()
            .hash(arch, flags, tool)
    };
    let base = hash(&files, "sm_1", &[], "13");
    assert_eq!(
        base,
        hash(&files, "sm_1", &[], "13"),
        "another folder, the same hash"
    );
    let mut header = files;
    header[2].1 = "int h2;\n";
    let mut unrelated = files.to_vec();
    unrelated.push(("a/common/other.cuh", "x"));
    assert_eq!(base, hash(&unrelated, "sm_1", &[], "13"));
    let others = [
        hash(&header, "sm_1", &[], "13"),
        hash(&files, "sm_2", &[], "13"),
        hash(&files, "sm_1", &["-O3".into()], "13"),
        hash(&files, "sm_1", &[], "14"),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(&base, other, "case {i}");
    }
}

#[test]
fn a_leaf_shadows_a_header_of_common_and_takes_other_leaves_only_where_asked() {
    let (_t, tree) = tree(&[
        ROOT,
        K,
        ("a/common/h.cuh", "int h;\n"),
        ("a/common/KERNEL.toml", POINT),
        (
            "a/m/q/KERNEL.toml",
            "[sources]\nuse = [\"a/n/q\"]\n[shadow]\nfiles = [\"h.cuh\"]\n",
        ),
        ("a/m/q/h.cuh", "int mine;\n"),
        ("a/n/q/KERNEL.toml", ""),
        ("a/n/q/extra.cuh", ""),
    ]);
    assert_eq!(
        tree.leaves("a").unwrap(),
        [("m".into(), "q".into()), ("n".into(), "q".into())]
    );
    let leaf = tree.resolve("a", Some(("m", "q"))).unwrap();
    assert_eq!(leaf.layers, ["a/common", "a/n/q", "a/m/q"]);
    let files: Vec<(&str, &Path)> = leaf.files().collect();
    assert!(files.iter().any(|(n, _)| *n == "extra.cuh"));
    assert!(
        files
            .iter()
            .any(|(n, p)| *n == "h.cuh" && p.ends_with("a/m/q/h.cuh"))
    );
    let base = tree.resolve("a", None).unwrap();
    let hash = |r: &metrale_closure::Resolved| r.closure("k.cu").unwrap().hash("", &[], "");
    assert_ne!(
        hash(&leaf),
        hash(&base),
        "the source of common sees the leaf's header"
    );
}

#[test]
fn undeclared_and_vacuous_shadows_are_errors() {
    let common = [
        ROOT,
        K,
        ("a/common/h.cuh", ""),
        ("a/common/KERNEL.toml", POINT),
    ];
    let error = |more: &[(&str, &str)]| {
        let (_t, tree) = tree(&[common.as_slice(), more].concat());
        tree.resolve("a", Some(("m", "q"))).unwrap_err()
    };
    let e = error(&[("a/m/q/KERNEL.toml", ""), ("a/m/q/h.cuh", "")]);
    assert!(
        matches!(&e, ClosureError::UndeclaredShadow { kind: "file", name, below, .. }
        if name == "h.cuh" && below == "a/common"),
        "{e}"
    );
    let e = error(&[("a/m/q/KERNEL.toml", POINT)]);
    assert!(
        matches!(&e, ClosureError::UndeclaredShadow { kind: "point", name, .. } if name == "f/p"),
        "{e}"
    );
    let e = error(&[("a/m/q/KERNEL.toml", "[shadow]\nfiles = [\"h.cuh\"]\n")]);
    assert!(
        matches!(
            &e,
            ClosureError::VacuousShadow {
                why: "it does not bring it",
                ..
            }
        ),
        "{e}"
    );
    let e = error(&[
        ("a/m/q/KERNEL.toml", "[shadow]\nfiles = [\"new.cuh\"]\n"),
        ("a/m/q/new.cuh", ""),
    ]);
    assert!(
        matches!(
            &e,
            ClosureError::VacuousShadow {
                why: "no earlier layer has it",
                ..
            }
        ),
        "{e}"
    );
}

#[test]
fn what_is_missing_is_named() {
    let (_t, t1) = tree(&[ROOT, ("a/common/KERNEL.toml", POINT)]);
    let e = t1.resolve("a", None).unwrap_err();
    assert!(
        matches!(&e, ClosureError::MissingSource { point, file, .. } if point == "f/p" && file == "k.cu"),
        "{e}"
    );
    let (_t, t2) = tree(&[ROOT, K, ("a/common/KERNEL.toml", POINT)]);
    let e = t2.resolve("a", None).unwrap().closure("k.cu").unwrap_err();
    assert!(
        matches!(&e, ClosureError::MissingInclude { line: 1, name, .. } if name == "h.cuh"),
        "{e}"
    );
    let looped = (
        "a/HARDWARE.toml",
        "[hardware]\nname = \"a\"\nvendor = \"v\"\ntarget = \"cuda\"\ninherits = \"b\"\n",
    );
    let (_t, t3) = tree(&[looped, CHILD]);
    let e = t3.resolve("b", None).unwrap_err();
    assert_eq!(
        e.to_string(),
        "the class b inherits from itself: b -> a -> b"
    );
    let (_t, t4) = tree(&[(
        "a/HARDWARE.toml",
        "[hardware]\nname = \"z\"\nvendor = \"v\"\ntarget = \"cuda\"\n",
    )]);
    assert!(
        t4.resolve("a", None)
            .unwrap_err()
            .to_string()
            .contains("is not the folder's name")
    );
}

/// Each with the file that is at fault and words that say what is wrong.
#[test]
fn manifests_that_are_none_are_typed_errors() {
    let hardware = |text: &str| {
        let (_t, tree) = tree(&[("a/HARDWARE.toml", text)]);
        tree.resolve("a", None).unwrap_err()
    };
    let kernel = |text: &str| {
        let (_t, tree) = tree(&[ROOT, K, ("a/common/KERNEL.toml", text)]);
        tree.resolve("a", None).unwrap_err()
    };
    let named = "name = \"a\"\nvendor = \"v\"\ntarget = \"cuda\"\n";
    let cases = [
        (hardware(""), "a/HARDWARE.toml", "missing field `hardware`"),
        (hardware("[hardware"), "a/HARDWARE.toml", "TOML parse error"),
        (
            hardware("[hardware]\nname = \"a\"\nvendor = \"v\"\n"),
            "a/HARDWARE.toml",
            "missing field `target`",
        ),
        (
            hardware(&format!("[hardware]\n{named}arhc = \"sm_1\"\n")),
            "a/HARDWARE.toml",
            "unknown field `arhc`",
        ),
        (
            hardware(&format!("[hardware]\n{named}capabilities = [[9]]\n")),
            "a/HARDWARE.toml",
            "capabilities",
        ),
        (
            kernel("[compile]\nflag = [\"-O3\"]\n"),
            "a/common/KERNEL.toml",
            "unknown field `flag`",
        ),
        (
            kernel("[shadows]\nfiles = []\n"),
            "a/common/KERNEL.toml",
            "unknown field `shadows`",
        ),
        (
            kernel(&POINT.replace("grid", "gird")),
            "a/common/KERNEL.toml",
            "unknown field `gird`",
        ),
        (
            kernel(&POINT.replace("block = 32\n", "")),
            "a/common/KERNEL.toml",
            "missing field `block`",
        ),
        (
            kernel(&POINT.replace("32", "\"many\"")),
            "a/common/KERNEL.toml",
            "block",
        ),
        (
            kernel(&format!("{POINT}{POINT}")),
            "a/common/KERNEL.toml",
            "f/p is declared twice",
        ),
        (
            kernel(&format!("[sources]\nuse = [\"b/common\"]\n{POINT}")),
            "a/common/KERNEL.toml",
            "in a leaf",
        ),
    ];
    for (error, file, words) in cases {
        let ClosureError::Manifest { path, message } = &error else {
            panic!("{words}: {error}");
        };
        assert!(path.ends_with(file), "{error}");
        assert!(message.contains(words), "{words}: {error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn a_class_that_is_not_there_is_named_by_its_file() {
    let (_t, tree) = tree(&[CHILD]);
    for class in ["b", "c"] {
        let error = tree.resolve(class, None).unwrap_err();
        let ClosureError::Io { path, .. } = &error else {
            panic!("{error}");
        };
        let missing = if class == "b" { "a" } else { "c" };
        assert!(
            path.ends_with(format!("{missing}/HARDWARE.toml")),
            "{error}"
        );
    }
}
