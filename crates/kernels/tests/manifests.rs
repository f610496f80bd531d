// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a point may not say: each error of the build names the layer, the point, the field and what is wrong with it.
#![allow(clippy::unwrap_used)]

// Parts of the build script, which uses more of them.
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../build"]
mod build {
    pub(crate) mod compile;
    pub(crate) mod emit;
    pub(crate) mod families;
    pub(crate) mod toolchain;
}
#[allow(dead_code)]
#[path = "../build_target.rs"]
mod build_target;

use std::sync::atomic::{AtomicU32, Ordering};

use build::{emit, families};
use metrale_closure::Tree;
use metrale_kernels::formula;

type Result<T> = std::result::Result<T, String>;

const FAMILIES: &str = "[f]\nargs = [\"x r\", \"y w\", \"u32 n\", \"step\"]\n";
const POINT: &str = "[[point]]\nid = \"f/p\"\nfile = \"k.cu\"\nentry = \"f_p\"\nblock = 32\ngrid = [\"tiles(n, 4)\"]\n\
                     needs.x = \"n\"\nneeds.y = \"n * 4\"\n";
const MAP: &str =
    "[[point.maps]]\nbuffer = \"x\"\nelem = \"bf16\"\ndims = [\"n\"]\ntile = [\"64\"]\n";

/// What the build says to families and a point of a class.
fn built(families: &str, kernel: &str) -> Result<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let root = std::env::temp_dir().join(format!("met-manifests-{}-{n}", std::process::id()));
    std::fs::create_dir_all(root.join("a/common")).unwrap();
    let hardware = "[hardware]\nname = \"a\"\nvendor = \"v\"\ntarget = \"cuda\"\narch = \"sm_1\"\n";
    for (file, text) in [
        ("FAMILIES.toml", families),
        ("a/HARDWARE.toml", hardware),
        ("a/common/k.cu", ""),
        ("a/common/KERNEL.toml", kernel),
    ] {
        std::fs::write(root.join(file), text).unwrap();
    }
    let said = families::read(&root.join("FAMILIES.toml")).and_then(|families| {
        let target = Tree::new(&root).resolve("a", None);
        emit::points(&target.map_err(|e| e.to_string())?, &families, &[])
    });
    std::fs::remove_dir_all(&root).unwrap();
    said
}

#[test]
fn a_point_that_can_be_launched_is_one_line_of_the_registry() {
    let line = built(FAMILIES, &format!("{POINT}{MAP}")).unwrap();
    assert!(line.starts_with("Point { id: \"f/p\""), "{line}");
    assert!(line.contains("maps: &[Map { arg: 0, "), "{line}");
    assert!(line.contains("elem: Elem::BF16"), "{line}");
    assert_eq!(line.lines().count(), 1);
}

#[test]
fn a_point_that_cannot_be_launched_is_named_with_its_field() {
    let point = |from: &str, to: &str| {
        assert!(POINT.contains(from), "{from}");
        POINT.replace(from, to)
    };
    let map = |from: &str, to: &str| {
        assert!(MAP.contains(from), "{from}");
        format!("{POINT}{}", MAP.replace(from, to))
    };
    let cases = [
        (point("f/p", "p"), "an id is `family/point`"),
        (point("f/p", "g/p"), "FAMILIES.toml has no such family"),
        (point("32", "0"), "32 to 1024 threads"),
        (point("32", "48"), "in whole warps"),
        (point("32", "2048"), "32 to 1024 threads"),
        (point("[\"tiles(n, 4)\"]", "[]"), "one to three dimensions"),
        (point("tiles(n, 4)", "tiles(n)"), "grid: "),
        (point("tiles(n, 4)", "m"), "grid: "),
        (point("needs.x = \"n\"\n", ""), "needs.x is missing"),
        (point("needs.x = \"n\"", "needs.x = \"n +\""), "needs.x: "),
        (
            format!("{POINT}needs.z = \"1\"\n"),
            "no buffer of the family",
        ),
        (format!("{POINT}shared = \"k\"\n"), "shared: "),
        (format!("{POINT}pdl = \"rows(\"\n"), "pdl: "),
        (
            format!("{POINT}cluster = [\"1\", \"1\", \"1\", \"1\"]\n"),
            "cluster: at most three",
        ),
        (map("\"x\"", "\"n\""), "the 1. (n): buffer: no buffer"),
        (map("bf16", "q4_0"), "elem: `q4_0` cannot be mapped"),
        (map("[\"n\"]", "[]"), "dims: one to five"),
        (map("[\"n\"]", "[\"n\", \"n\"]"), "strides: one for each"),
        (map("[\"64\"]", "[]"), "tile: one for each dimension"),
        (
            format!("{POINT}{MAP}swizzle = 16\n"),
            "swizzle: 0, 32, 64 or 128",
        ),
    ];
    for (kernel, words) in cases {
        let error = built(FAMILIES, &kernel).unwrap_err();
        assert!(error.starts_with("a/common/KERNEL.toml, point "), "{error}");
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn families_that_do_not_read_are_named_by_their_file() {
    for (families, words) in [
        ("[f]\nargs = [\"x read\"]\n", "f: `x read` is no argument"),
        ("[f]\n", "missing field `args`"),
        ("f = 1\n", "FAMILIES.toml"),
    ] {
        let error = built(families, POINT).unwrap_err();
        assert!(error.contains("FAMILIES.toml: "), "{error}");
        assert!(error.contains(words), "{words}: {error}");
    }
}
