//! The page's Content-Security-Policy: allows nothing but the page's own styles, and the scripts
//! whose hashes it lists.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Returns the policy that allows these scripts, given as the browser sees them.
pub fn policy_for(scripts: &[&str]) -> String {
    let hashes: Vec<String> = scripts
        .iter()
        .filter(|s| !s.is_empty())
        .map(|s| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(s))))
        .collect();
    let scripts = if hashes.is_empty() {
        "'none'".to_owned()
    } else {
        hashes.join(" ")
    };
    format!(
        "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; \
         base-uri 'none'; form-action 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_allows_only_what_it_names() {
        let policy = policy_for(&["a", ""]);
        assert!(
            policy.starts_with("default-src 'none'; script-src 'sha256-ypeB"),
            "{policy}"
        );
        assert!(!policy.contains("script-src 'unsafe"), "{policy}");
        assert!(policy_for(&[]).contains("script-src 'none'"));
    }
}
