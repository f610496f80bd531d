// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernels report about a bad step block. They cannot return an error, and a trap would lose the context: a kernel
//! that meets a value it cannot use writes a record into page-locked memory and goes on harmlessly (`step.cuh`).

use crate::error::DeviceFault;

/// Words of a record: a code, then three values.
pub(super) const RECORD_WORDS: usize = 4;

/// The fault of a record; `None` if nothing was reported. The codes are those of `step.cuh`.
pub(super) fn read(record: [u32; RECORD_WORDS]) -> Option<DeviceFault> {
    let [code, a, b, c] = record;
    let what = match code {
        0 => return None,
        1 => format!("row {a} asks for token {b}, and the vocabulary ends at {c}"),
        2 => format!("position {b} of slot {a} lies past its block table of {c} blocks"),
        3 => format!("logits row {a} names row {b}, and the step has {c}"),
        _ => format!("a kernel reported fault {code} ({a}, {b}, {c})"),
    };
    Some(DeviceFault::rejected(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes stand in the kernels' header too.
    #[test]
    fn codes_are_those_of_the_kernels() {
        let header = include_str!("../../../../kernels/gb10/common/step.cuh");
        assert!(header.contains("FAULT_TOKEN = 1, FAULT_POSITION = 2, FAULT_LOGITS_ROW = 3"));
        assert_eq!(read([0, 1, 2, 3]), None);
        let text = read([2, 4, 80, 5]).unwrap().what;
        assert_eq!(
            text,
            "position 80 of slot 4 lies past its block table of 5 blocks"
        );
        assert!(!read([1, 0, 0, 0]).unwrap().sticky);
    }
}
