// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configurations of well-known models, so that a machine can be measured without their weights.

/// A `config.json` that met brings, reduced to the facts of the architecture. The files lie in `bench/configs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its name on the command line.
    pub name: &'static str,
    /// The file.
    pub json: &'static str,
}

macro_rules! configs {
    ($($name:literal),*) => {
        [$(Config {
            name: $name,
            json: include_str!(concat!("../../../bench/configs/", $name, "/config.json")),
        }),*]
    };
}

/// All of them.
pub static CONFIGS: [Config; 4] =
    configs!("qwen3-8b", "qwen3-0.6b", "llama-3.1-8b", "smollm2-135m");

/// The configuration of that name.
#[must_use]
pub fn config(name: &str) -> Option<&'static Config> {
    CONFIGS.iter().find(|c| c.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_is_json_with_an_architecture() {
        for c in &CONFIGS {
            let json: serde_json::Value = serde_json::from_str(c.json).unwrap_or_default();
            let heads = json["num_attention_heads"].as_u64().unwrap_or(0);
            let kv = json["num_key_value_heads"].as_u64().unwrap_or(0);
            assert!(kv > 0 && heads.is_multiple_of(kv), "{}", c.name);
            assert!(json["model_type"].is_string(), "{}", c.name);
        }
        assert_eq!(config("qwen3-8b").map(|c| c.name), Some("qwen3-8b"));
        assert_eq!(config("qwen3"), None);
    }
}
