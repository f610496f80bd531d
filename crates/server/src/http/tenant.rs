// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose cached prefixes a request may hit. A hit is faster than a miss, so it tells that somebody sent the same text:
//! tenants must not share.
//!
//! A tenant is an API key, where the server has more than one; `cache_salt` divides further, by what its sender chooses.

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};

use super::app::HttpConfig;
use super::guard::given_key;

/// The tenant of a request: empty where all share.
pub(super) fn tenant(config: &HttpConfig, headers: &HeaderMap) -> Vec<u8> {
    match config.api_keys.len() {
        0 | 1 => Vec::new(),
        _ => given_key(headers).unwrap_or_default().to_vec(),
    }
}

/// The prefix cache's namespace of a tenant and a salt; 0 where there is neither.
pub(super) fn namespace(tenant: &[u8], salt: Option<&str>) -> u64 {
    if tenant.is_empty() && salt.is_none() {
        return 0;
    }
    let mut hash = Sha256::new();
    hash.update((tenant.len() as u64).to_le_bytes());
    hash.update(tenant);
    hash.update(salt.unwrap_or_default());
    let hash = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: &[&str], key: &str, salt: Option<&str>) -> u64 {
        let config = HttpConfig {
            api_keys: keys.iter().map(|k| (*k).to_owned()).collect(),
            ..HttpConfig::default()
        };
        let mut headers = HeaderMap::new();
        if let Ok(value) = format!("Bearer {key}").parse() {
            headers.insert("authorization", value);
        }
        namespace(&tenant(&config, &headers), salt)
    }

    /// SURVIVAL 46: no hit crosses a tenant, so no time does.
    #[test]
    fn survival_46_tenants_have_namespaces_of_their_own() {
        let all = [
            of(&["a"], "a", None),
            of(&["a", "b"], "a", None),
            of(&["a", "b"], "b", None),
            of(&["a", "b"], "a", Some("x")),
            of(&["a", "b"], "b", Some("x")),
            of(&["a"], "a", Some("x")),
            of(&["a"], "a", Some("y")),
        ];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(of(&[], "", None), 0);
        assert_eq!(of(&["a"], "a", None), 0, "one key: all are one tenant");
    }
}
