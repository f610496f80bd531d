// SPDX-License-Identifier: MIT OR Apache-2.0
//! Class `cpu`: the manifests and `host-kernels` say the same.

use std::collections::{BTreeMap, BTreeSet};

use metrale_circuit::ArgSig;
use metrale_core::{ArgDecl, Elem};

use crate::common::library;

#[test]
fn the_manifest_lists_the_points_that_there_are() {
    let listed: BTreeSet<String> = library()
        .points("cpu")
        .map(|(id, _)| id.as_str().to_owned())
        .collect();
    let built: BTreeSet<String> = metrale_host_kernels::points()
        .map(|p| p.id.to_owned())
        .collect();
    assert_eq!(listed, built);
}

#[test]
fn argument_lists_are_those_of_the_families() {
    for point in metrale_host_kernels::points() {
        let (family, _) = point.id.split_once('/').unwrap();
        let wanted = library().kernel_args(family).unwrap();
        let have: Vec<ArgSig> = point
            .args
            .iter()
            .map(|a| match a {
                ArgDecl::Buf { name, access } => ArgSig::Buf {
                    name: (*name).to_owned(),
                    access: *access,
                },
                ArgDecl::U32(name) => ArgSig::U32((*name).to_owned()),
                ArgDecl::F32(name) => ArgSig::F32((*name).to_owned()),
                ArgDecl::Step => ArgSig::Step,
            })
            .collect();
        assert_eq!(have, wanted, "{}", point.id);
    }
}

#[test]
fn packed_sizes_are_those_of_the_layout() {
    let mut packed = BTreeMap::new();
    for format in Elem::all() {
        for (n, k) in [
            (1, 256),
            (8, 256),
            (9, 512),
            (49152, 576),
            (960, 4096),
            (7, 31),
            (320, 64),
        ] {
            let have = library().packed_bytes("cpu", format, n, k);
            assert_eq!(
                have,
                metrale_host_kernels::packed_bytes(format, n, k),
                "{format} [{n}, {k}]"
            );
            *packed.entry(format).or_insert(0) += u32::from(have.is_some());
        }
    }
    assert_eq!(packed.values().filter(|n| **n > 0).count(), 18);
}
