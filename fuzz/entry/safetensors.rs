// SPDX-License-Identifier: MIT OR Apache-2.0
//! safetensors header: any bytes give tensors that tile the data, or a typed error.

use metrale_model_weights::safetensors::read_header;

/// Reads `data` as a whole file.
pub fn run(data: &[u8]) {
    let tensors = match read_header(data, data.len() as u64) {
        Ok(tensors) => tensors,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    let mut end = None;
    for tensor in &tensors {
        let elems = tensor.shape.iter().product();
        assert_eq!(tensor.elem.bytes_for(elems), Some(tensor.bytes));
        assert!(end.is_none_or(|end| end == tensor.offset));
        end = Some(tensor.offset + tensor.bytes);
    }
    assert!(end.is_none_or(|end| end == data.len() as u64));
}
