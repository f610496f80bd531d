// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store over GGUF: one file, or the parts of a split one.

use std::path::{Path, PathBuf};

use metrale_config::gguf::{GgufHeader, GgufLimits, GgufTensor};

use crate::file::StoreFile;
use crate::store::StoredTensor;
use crate::{WeightStore, WeightsError};

/// Opens a GGUF file, and its other parts if it is the first of a split one. The header is the first part's, which
/// carries all metadata.
pub(crate) fn open(path: &Path) -> Result<(GgufHeader, WeightStore), WeightsError> {
    let (file, header) = open_part(path)?;
    let parts = key(path, &header, "split.count")?.unwrap_or(1).max(1);
    let mut tensors: Vec<_> = header.tensors().iter().map(|t| stored(t, 0)).collect();
    let mut files = vec![file];
    if parts > 1 {
        for (index, part) in part_paths(path, &header, parts)?.iter().enumerate().skip(1) {
            let (file, part_header) = open_part(part)?;
            let number = key(part, &part_header, "split.no")?;
            if number != Some(index as u64) {
                return Err(split(
                    part,
                    format!("it should be part {index}, it says {number:?}"),
                ));
            }
            tensors.extend(part_header.tensors().iter().map(|t| stored(t, files.len())));
            files.push(file);
        }
        let total = key(path, &header, "split.tensors.count")?;
        if total.is_some_and(|n| n != tensors.len() as u64) {
            let why = format!(
                "the parts hold {} tensors together, the first announces {}; they are of different files",
                tensors.len(),
                total.unwrap_or_default()
            );
            return Err(split(path, why));
        }
    }
    Ok((header, WeightStore::new(files, tensors)?))
}

fn open_part(path: &Path) -> Result<(StoreFile, GgufHeader), WeightsError> {
    let file = StoreFile::open(path)?;
    let header =
        GgufHeader::read(file.reader(), file.len(), &GgufLimits::default()).map_err(|source| {
            WeightsError::Gguf {
                path: path.to_owned(),
                source,
            }
        })?;
    Ok((file, header))
}

/// The paths of all parts, from the name of the first: `NAME-00001-of-00003.gguf`.
fn part_paths(path: &Path, header: &GgufHeader, parts: u64) -> Result<Vec<PathBuf>, WeightsError> {
    if key(path, header, "split.no")?.unwrap_or(0) != 0 {
        return Err(split(
            path,
            "it is a later part of a split file; open the first".to_owned(),
        ));
    }
    let suffix = format!("-00001-of-{parts:05}.gguf");
    let name = path.file_name().and_then(|n| n.to_str());
    let Some(stem) = name.and_then(|n| n.strip_suffix(&suffix)) else {
        let why = format!(
            "it is the first of {parts} parts, but its name does not end in {suffix}, \
             so the others cannot be found; give the files back their names"
        );
        return Err(split(path, why));
    };
    // `split.count` is a u16 in the format; more parts than that are a damaged key.
    if parts > u64::from(u16::MAX) {
        return Err(split(path, format!("split.count is {parts}")));
    }
    let part = |n| path.with_file_name(format!("{stem}-{n:05}-of-{parts:05}.gguf"));
    Ok((1..=parts).map(part).collect())
}

fn key(path: &Path, header: &GgufHeader, key: &str) -> Result<Option<u64>, WeightsError> {
    header
        .optional_u64(key)
        .map_err(|source| WeightsError::Gguf {
            path: path.to_owned(),
            source,
        })
}

fn split(path: &Path, why: String) -> WeightsError {
    WeightsError::GgufSplit {
        path: path.to_owned(),
        why,
    }
}

fn stored(t: &GgufTensor, file: usize) -> StoredTensor {
    StoredTensor {
        name: t.name.clone(),
        elem: t.elem,
        shape: t.shape.clone(),
        file,
        offset: t.offset,
        bytes: t.bytes,
    }
}
