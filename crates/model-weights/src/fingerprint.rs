// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checkpoint's part of the numerics digest.

use crate::{WeightStore, WeightsError};

/// Bytes of each tensor that are hashed.
const HEAD: u64 = 64 << 10;
/// Names the scheme, so that a later one cannot collide with it.
const CONTEXT: &str = "metrale checkpoint fingerprint 1";

/// Hashes the configuration, the tensor table in order of name, and the head of each tensor. Files and offsets are left
/// out: the same tensors in other shards are the same checkpoint.
pub(crate) fn fingerprint(
    config: &[u8],
    store: Option<&WeightStore>,
) -> Result<[u8; 32], WeightsError> {
    let mut hash = blake3::Hasher::new_derive_key(CONTEXT);
    field(&mut hash, config);
    let Some(store) = store else {
        return Ok(*hash.finalize().as_bytes());
    };
    let mut tensors: Vec<_> = store.tensors().iter().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    number(&mut hash, tensors.len() as u64);
    let mut head = Vec::new();
    for tensor in tensors {
        field(&mut hash, tensor.name.as_bytes());
        field(&mut hash, tensor.elem.name().as_bytes());
        number(&mut hash, tensor.shape.len() as u64);
        tensor.shape.iter().for_each(|&d| number(&mut hash, d));
        head.resize(tensor.bytes.min(HEAD) as usize, 0);
        store.read_at(tensor, 0, &mut head)?;
        field(&mut hash, &head);
    }
    Ok(*hash.finalize().as_bytes())
}

/// Length first, so that neighbouring fields cannot run into each other.
fn field(hash: &mut blake3::Hasher, bytes: &[u8]) {
    number(hash, bytes.len() as u64);
    hash.update(bytes);
}

fn number(hash: &mut blake3::Hasher, n: u64) {
    hash.update(&n.to_le_bytes());
}
