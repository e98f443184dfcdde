//! `key_storage` and the secret that belongs to it.

use semel_core::Key;

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn load_hashed(text: &str) -> Result<Config, Report> {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    let variables = [("HASH", SECRET), ("SHORT", "guessable")];
    load_with(text, flags, &variables)
}

#[test]
fn the_secret_comes_from_a_file_or_a_variable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let from_file = format!("key_hash_file = {:?}", path.to_str().unwrap());
    let expected = KeyHasher::new(SECRET.as_bytes()).unwrap();
    for secret in [&*from_file, "key_hash_env = \"HASH\""] {
        let config = load_hashed(&format!("key_storage = \"hashed\"\n{secret}")).unwrap();
        let key = Key::new("k").unwrap();
        assert_eq!(config.key_hasher.unwrap().hash(&key), expected.hash(&key));
    }
    for plain in ["", "key_storage = \"plain\""] {
        assert_eq!(load_hashed(plain).unwrap().key_hasher, None);
    }
}

#[test]
fn keys_that_are_hashed_cannot_be_sent_or_looked_up() {
    const HASHED: &str = "key_storage = \"hashed\"\nkey_hash_env = \"HASH\"\n";
    let poll = "[tenant]\nfrom = \"none\"\n[[route]]\nmatch = \"POST /a\"\noperation = \"a\"\n\
                [route.reconcile]\ncompleted = 200\npoll = \"GET /a/{key}\"";
    let webhook = "[tenant]\nfrom = \"none\"\n[[route]]\nmatch = \"POST /a\"\noperation = \"a\"\n\
                   [[webhook]]\nsource = \"psp\"\nscheme = \"standard\"\nsecret_env = \"HOOK\"\n\
                   key = \"/key\"\ncompleted = { pointer = \"/type\", equals = [\"paid\"] }";
    for (text, part) in [
        (poll, "no key that a poll could contain"),
        (webhook, "use `operation_id` or `resource_id`"),
    ] {
        let flags = Flags {
            upstream: Some("http://app".parse().unwrap()),
            ..Flags::default()
        };
        let hook = ("HOOK", "whsec_MDEyMzQ1Njc4OWFiY2RlZg==");
        let load = |text: &str| load_with(text, flags.clone(), &[("HASH", SECRET), hook]);
        load(text).unwrap();
        let report = load(&format!("{HASHED}{text}")).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        assert!(report.to_string().contains(part), "{report}");
    }
}

#[test]
fn a_missing_or_short_secret_is_refused_without_showing_it() {
    for (text, expected) in [
        (
            "key_storage = \"hashed\"",
            "semel.toml:1:15: `key_storage = \"hashed\"` needs a secret",
        ),
        (
            "key_storage = \"hashed\"\nkey_hash_env = \"SHORT\"",
            "semel.toml:2:16: environment variable SHORT: the secret has 9 bytes",
        ),
        (
            "key_storage = \"hashed\"\nkey_hash_env = \"NONE\"",
            "semel.toml:2:16: environment variable NONE is not set",
        ),
        (
            "key_storage = \"hashed\"\nkey_hash_file = \"/nowhere\"",
            "semel.toml:2:17: cannot read /nowhere",
        ),
        (
            "key_storage = \"hash\"",
            "semel.toml:1:15: invalid value \"hash\"",
        ),
        (
            "key_hash_env = \"HASH\"",
            "semel.toml:1:1: this has no effect without `key_storage = \"hashed\"`",
        ),
        (
            "key_storage = \"plain\"\nkey_hash_env = \"HASH\"",
            "semel.toml:2:1: this has no effect",
        ),
    ] {
        let report = load_hashed(text).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        let report = report.to_string();
        assert!(report.starts_with(expected), "{report}");
        assert!(!report.contains("guessable") && !report.contains(SECRET));
    }
}
