//! `key_storage`: whether the store sees keys, or keyed hashes of them.

use semel_core::key::KeyHasher;
use toml::Spanned;

use super::table::{Table, choice};
use super::{Environment, secrets};

/// How keys are stored.
pub(super) struct KeyStorage {
    /// Whether `key_storage = "hashed"`, even if its secret is invalid.
    pub(super) is_hashed: bool,
    pub(super) hasher: Option<KeyHasher>,
}

/// Reads `key_storage` and the secret that belongs to it.
pub(super) fn read(top: &mut Table<'_>, environment: &Environment) -> KeyStorage {
    let problems = top.problems;
    let chosen = top.parsed("key_storage", |text| {
        choice(text, &[("plain", false), ("hashed", true)])
    });
    let file = top.parsed("key_hash_file", |path| {
        let secret = secrets::from_file(path)?;
        hasher(&secret).map_err(|problem| format!("{path}: {problem}"))
    });
    let variable = top.parsed("key_hash_env", |name| {
        let secret = environment.require(name)?;
        hasher(&secret).map_err(|problem| format!("environment variable {name}: {problem}"))
    });
    let [in_file, in_variable] = ["key_hash_file", "key_hash_env"].map(|key| top.key_span(key));
    let is_hashed = chosen.as_ref().is_some_and(|chosen| *chosen.get_ref());
    match (&chosen, &in_file, &in_variable) {
        (_, Some(_), Some(span)) => {
            let message = "set `key_hash_file` or `key_hash_env`, not both";
            problems.at(span.clone(), message);
        }
        (Some(chosen), None, None) if is_hashed => problems.at(
            chosen.span(),
            "`key_storage = \"hashed\"` needs a secret: add `key_hash_file = \"key-hash.secret\"` or \
             `key_hash_env = \"SEMEL_KEY_HASH\"`",
        ),
        (_, Some(span), None) | (_, None, Some(span)) if !is_hashed => {
            let message = "this has no effect without `key_storage = \"hashed\"`";
            problems.at(span.clone(), message);
        }
        (_, _, _) => {}
    }
    KeyStorage {
        is_hashed,
        hasher: file
            .or(variable)
            .filter(|_| is_hashed)
            .map(Spanned::into_inner),
    }
}

fn hasher(secret: &str) -> Result<KeyHasher, String> {
    KeyHasher::new(secret.as_bytes()).map_err(|error| error.to_string())
}
