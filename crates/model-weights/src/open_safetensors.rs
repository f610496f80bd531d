// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store over safetensors: one file, or shards under an index.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use metrale_config::json::{self, JsonLimits};
use serde_json::Value;

use crate::file::{StoreFile, read_small};
use crate::paths::Folder;
use crate::safetensors::{self, HeaderTensor, PREFIX, SafetensorsError};
use crate::store::StoredTensor;
use crate::{WeightStore, WeightsError};

/// The index of a sharded checkpoint.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The one file of an unsharded checkpoint.
const SINGLE: &str = "model.safetensors";

/// Opens the safetensors of a checkpoint folder; `None` if it has none.
pub(crate) fn open_folder(folder: &Folder) -> Result<Option<WeightStore>, WeightsError> {
    if let Some(index) = folder.find(INDEX)? {
        return open_index(folder, &index).map(Some);
    }
    if let Some(single) = folder.find(SINGLE)? {
        return open_single(&single).map(Some);
    }
    let names = folder.names_ending(".safetensors")?;
    match names.as_slice() {
        [] => Ok(None),
        [one] => match folder.find(one)? {
            Some(path) => open_single(&path).map(Some),
            None => Ok(None),
        },
        [first, ..] => Err(WeightsError::Unrecognised {
            path: folder.path().to_owned(),
            why: format!(
                "it holds {} safetensors files ({first} first) but no {INDEX} to say which tensor \
                 is where; fetch the index too",
                names.len()
            ),
        }),
    }
}

/// Opens one safetensors file.
pub(crate) fn open_single(path: &Path) -> Result<WeightStore, WeightsError> {
    let file = StoreFile::open(path)?;
    let tensors = read_header(&file)?
        .into_iter()
        .map(|t| stored(t, 0))
        .collect();
    WeightStore::new(vec![file], tensors)
}

fn open_index(folder: &Folder, index: &Path) -> Result<WeightStore, WeightsError> {
    let shards = read_index(index)?;
    let mut files = Vec::with_capacity(shards.len());
    let mut tensors = Vec::new();
    for (shard, names) in shards {
        let Some(path) = folder.find(&shard)? else {
            return Err(WeightsError::MissingShard {
                path: folder.path().join(shard),
                tensors: names.len(),
                example: names.first().cloned().unwrap_or_default(),
            });
        };
        let file = StoreFile::open(&path)?;
        let number = files.len();
        tensors.extend(select(&path, read_header(&file)?, &names, number)?);
        files.push(file);
    }
    WeightStore::new(files, tensors)
}

/// The tensors of a shard that the index places there. The index decides: the same name in another shard is passed over.
fn select(
    path: &Path,
    header: Vec<HeaderTensor>,
    names: &[String],
    file: usize,
) -> Result<Vec<StoredTensor>, WeightsError> {
    let mut found: HashMap<&str, bool> = names.iter().map(|n| (n.as_str(), false)).collect();
    let mut out = Vec::with_capacity(names.len());
    for tensor in header {
        if let Some(seen) = found.get_mut(tensor.name.as_str()) {
            *seen = true;
            out.push(stored(tensor, file));
        }
    }
    match names.iter().find(|n| found.get(n.as_str()) == Some(&false)) {
        None => Ok(out),
        Some(name) => Err(WeightsError::NotInShard {
            path: path.to_owned(),
            tensor: name.clone(),
        }),
    }
}

/// Shard name to the names of its tensors, both sorted.
fn read_index(path: &Path) -> Result<BTreeMap<String, Vec<String>>, WeightsError> {
    let limits = JsonLimits::default();
    let bytes = read_small(path, limits.bytes as u64)?;
    let document = json::parse(&bytes, &limits).map_err(|source| WeightsError::IndexJson {
        path: path.to_owned(),
        source,
    })?;
    let refuse = |why: String| WeightsError::Index {
        path: PathBuf::from(path),
        why,
    };
    let Some(Value::Object(map)) = document.get("weight_map") else {
        return Err(refuse(
            "it has no object `weight_map` from tensor to shard".to_owned(),
        ));
    };
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in map {
        let Some(shard) = shard.as_str() else {
            return Err(refuse(format!(
                "the shard of tensor `{tensor}` is no string"
            )));
        };
        shards
            .entry(shard.to_owned())
            .or_default()
            .push(tensor.clone());
    }
    for names in shards.values_mut() {
        names.sort();
    }
    Ok(shards)
}

fn read_header(file: &StoreFile) -> Result<Vec<HeaderTensor>, WeightsError> {
    let refuse = |source| WeightsError::Safetensors {
        path: file.path().to_owned(),
        source,
    };
    let short = || {
        refuse(SafetensorsError::TooShort {
            file_len: file.len(),
        })
    };
    let mut prefix = [0; PREFIX as usize];
    if file.len() < PREFIX || !file.read_at(0, &mut prefix)? {
        return Err(short());
    }
    let len = safetensors::header_len(prefix, file.len()).map_err(refuse)?;
    let mut json = vec![0; len as usize];
    if !file.read_at(PREFIX, &mut json)? {
        return Err(short());
    }
    safetensors::parse_header(&json, file.len()).map_err(refuse)
}

fn stored(t: HeaderTensor, file: usize) -> StoredTensor {
    let HeaderTensor {
        name,
        elem,
        shape,
        offset,
        bytes,
    } = t;
    StoredTensor {
        name,
        elem,
        shape,
        file,
        offset,
        bytes,
    }
}
