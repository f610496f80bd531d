// SPDX-License-Identifier: MIT OR Apache-2.0
//! config.json and generation_config.json: any bytes give a configuration or a typed error.

use metrale_config::hf::{HfFiles, from_hf};
use metrale_config::json::JsonLimits;

/// Reads `data` as config.json, and, up to its first NUL and after it, as that and generation_config.json.
pub fn run(data: &[u8]) {
    let (config, generation) = match data.iter().position(|b| *b == 0) {
        Some(at) => (&data[..at], Some(&data[at + 1..])),
        None => (data, None),
    };
    let files = HfFiles {
        config,
        generation_config: generation,
        tokenizer_config: generation,
        ..HfFiles::default()
    };
    match from_hf(&files, &JsonLimits::default()) {
        Ok(config) => {
            assert!(
                config.flat.contains_key("model_type")
                    || config.flat.contains_key("text_config.model_type")
            );
            let mut eos = config.eos.clone();
            eos.sort_unstable();
            eos.dedup();
            assert_eq!(eos.len(), config.eos.len());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}
