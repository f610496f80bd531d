// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a GPU's board uses, from NVML where it can be loaded.

use metrale_gpu_sys::nvml::Board;

/// The energy counter of one board.
#[derive(Debug)]
pub struct EnergyMeter(Board);

impl EnergyMeter {
    /// The meter of the board that a process sees as CUDA device `ordinal`, given its `CUDA_VISIBLE_DEVICES` if that is
    /// set. Boards are taken in the order of the bus.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn open(ordinal: u32, visible: Option<&str>) -> Result<EnergyMeter, String> {
        let board = board(ordinal, visible).ok_or_else(|| {
            format!("CUDA_VISIBLE_DEVICES names no device {ordinal}, so its board is not known")
        })?;
        Board::open(&board)
            .map(EnergyMeter)
            .map_err(|e| e.to_string())
    }

    /// Joules used since some moment before.
    ///
    /// # Errors
    /// Why they are not known, in words.
    pub fn joules(&self) -> Result<f64, String> {
        self.0.joules().map_err(|e| e.to_string())
    }
}

/// NVML's name of a device: its number or UUID.
fn board(ordinal: u32, visible: Option<&str>) -> Option<String> {
    let Some(list) = visible else {
        return Some(ordinal.to_string());
    };
    let name = list.split(',').nth(ordinal as usize)?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_the_board_that_the_process_sees_under_its_number() {
        assert_eq!(board(1, None).as_deref(), Some("1"));
        assert_eq!(board(1, Some("3, GPU-abc")).as_deref(), Some("GPU-abc"));
        assert_eq!(board(0, Some("3")).as_deref(), Some("3"));
        assert_eq!(board(1, Some("3")), None);
        assert_eq!(board(0, Some("")), None);
    }
}
