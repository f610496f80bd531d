// SPDX-License-Identifier: MIT OR Apache-2.0
//! NVML, the library that tells of NVIDIA's boards.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// The library's name where only the driver is installed: without the headers' link.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A board cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// The library is not there, or does not start.
    #[error("NVML ({LIBRARY}) cannot be used: {0}")]
    Library(NvmlError),
    /// It does not know the board, or not what was asked.
    #[error("NVML, board {board}: {source}")]
    Board {
        /// Which.
        board: String,
        /// Its answer.
        source: NvmlError,
    },
}

/// A board, by its number in NVML's order (that of the bus) or by its UUID (`GPU-...`).
#[derive(Debug)]
pub struct Board {
    nvml: Nvml,
    name: String,
}

impl Board {
    /// Opens the library and looks for the board.
    ///
    /// # Errors
    /// [`BoardError`].
    pub fn open(name: &str) -> Result<Board, BoardError> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init();
        let board = Board {
            nvml: nvml.map_err(BoardError::Library)?,
            name: name.to_owned(),
        };
        board.joules()?;
        Ok(board)
    }

    /// Joules that it has used since the driver was loaded; the counter moves a few dozen times a second.
    ///
    /// # Errors
    /// [`BoardError::Board`]; boards before Volta do not count.
    pub fn joules(&self) -> Result<f64, BoardError> {
        let device = match self.name.parse::<u32>() {
            Ok(index) => self.nvml.device_by_index(index),
            Err(_) => self.nvml.device_by_uuid(self.name.as_str()),
        };
        let used = device.and_then(|d| d.total_energy_consumption());
        used.map(|mj| mj as f64 * 1e-3)
            .map_err(|source| BoardError::Board {
                board: self.name.clone(),
                source,
            })
    }
}
