// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weight store: every tensor of a checkpoint by name, read by position.

use std::collections::HashMap;
use std::path::Path;

use metrale_core::Elem;

use crate::WeightsError;
use crate::file::StoreFile;

/// One tensor of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name as the checkpoint spells it.
    pub name: String,
    /// Element format on disk.
    pub elem: Elem,
    /// Dimensions, outermost first: a matrix is `[rows, cols]`, rows contiguous.
    pub shape: Vec<u64>,
    /// Index of its file in [`WeightStore::files`].
    pub file: usize,
    /// First byte of its data in that file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

impl StoredTensor {
    /// Number of elements.
    pub fn elems(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of one innermost row (a whole number of blocks), or of the whole tensor if it is a scalar.
    pub fn row_bytes(&self) -> u64 {
        let row = self.shape.last().copied().unwrap_or(1);
        // Row sizes were checked when the header was read.
        self.elem.bytes_for(row).unwrap_or(self.bytes)
    }
}

/// The open files of a checkpoint and its tensor table.
///
/// Reads are positioned (`pread`), so a store is shared freely between threads, and a file that shrinks is an error and
/// not a fault. Call [`WeightStore::finish`] after the last read: it holds every file against what it was when opened.
#[derive(Debug)]
pub struct WeightStore {
    files: Vec<StoreFile>,
    tensors: Vec<StoredTensor>,
    by_name: HashMap<String, usize>,
}

impl WeightStore {
    pub(crate) fn new(
        files: Vec<StoreFile>,
        tensors: Vec<StoredTensor>,
    ) -> Result<Self, WeightsError> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if let Some(other) = by_name.insert(tensor.name.clone(), index) {
                return Err(WeightsError::Duplicate {
                    tensor: tensor.name.clone(),
                    first: files[tensors[other].file].path().to_owned(),
                    second: files[tensor.file].path().to_owned(),
                });
            }
        }
        Ok(Self {
            files,
            tensors,
            by_name,
        })
    }

    /// All tensors, in order of file and offset.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// Paths of the files, in the order that [`StoredTensor::file`] counts.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(StoreFile::path)
    }

    /// The file that holds `tensor`, a tensor of this store.
    pub fn path_of(&self, tensor: &StoredTensor) -> &Path {
        self.files[tensor.file].path()
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Fills `out` with the bytes of `tensor` from its byte `offset` on.
    ///
    /// # Errors
    /// [`WeightsError::OutOfTensor`] if the range leaves the tensor (ours to prevent), [`WeightsError::Shrunk`] if the
    /// file has become shorter, [`WeightsError::Io`].
    pub fn read_at(
        &self,
        tensor: &StoredTensor,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), WeightsError> {
        let len = out.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > tensor.bytes) {
            return Err(WeightsError::OutOfTensor {
                tensor: tensor.name.clone(),
                bytes: tensor.bytes,
                offset,
                len,
            });
        }
        let file = &self.files[tensor.file];
        match file.read_at(tensor.offset + offset, out)? {
            true => Ok(()),
            false => Err(WeightsError::Shrunk {
                path: file.path().to_owned(),
                tensor: tensor.name.clone(),
            }),
        }
    }

    /// All bytes of `tensor`. For small ones: norms, biases, tests.
    ///
    /// # Errors
    /// As [`WeightStore::read_at`].
    pub fn read(&self, tensor: &StoredTensor) -> Result<Vec<u8>, WeightsError> {
        let mut out = vec![0; tensor.bytes as usize];
        self.read_at(tensor, 0, &mut out)?;
        Ok(out)
    }

    /// The first `len` bytes of a file, or all of it if it is shorter.
    pub(crate) fn head_of_file(&self, file: usize, len: u64) -> Result<Vec<u8>, WeightsError> {
        let file = &self.files[file];
        let mut out = vec![0; len.min(file.len()) as usize];
        match file.read_at(0, &mut out)? {
            true => Ok(out),
            false => file.check_unchanged().map(|()| out),
        }
    }

    /// Checks that no file has changed size or modification time since it was opened.
    ///
    /// # Errors
    /// [`WeightsError::Changed`], naming the file.
    pub fn finish(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(StoreFile::check_unchanged)
    }
}
