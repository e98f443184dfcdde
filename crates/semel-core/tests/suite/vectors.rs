//! Public test vectors. They are not part of this repository: the tests read them from
//! `SEMEL_VECTORS`, or from a directory beside the workspace, and are skipped if there is none.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use semel_core::Fingerprint;
use semel_core::canonical::{Reason, guarded, pure};
use semel_core::fingerprint::{Request, Rules};
use semel_core::key::{Dialect, Key, MAX_LENGTH, Syntax};
use serde_json::Value;

fn vectors(suite: &str) -> Option<PathBuf> {
    let root = std::env::var_os("SEMEL_VECTORS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"),
        PathBuf::from,
    );
    let suite = root.join(suite);
    if suite.is_dir() {
        return Some(suite);
    }
    println!("skipped: no vectors at {}", suite.display());
    None
}

/// File names and contents, in order.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

fn fingerprint(body: &[u8]) -> Fingerprint {
    Request::new("op", "POST", "/p")
        .content_type("application/json")
        .body(body)
        .fingerprint(&Rules::default())
}

#[test]
fn rfc_8785_vectors_have_the_expected_canonical_form() {
    let Some(suite) = vectors("jcs/testdata") else {
        return;
    };
    let outputs = files(&suite.join("output"));
    let hex = files(&suite.join("outhex"));
    let inputs = files(&suite.join("input"));
    assert_eq!(inputs.len(), 6);
    for (name, input) in inputs {
        let canonical = pure(&input).unwrap();
        assert_eq!(canonical, outputs[&name], "{name}");
        assert_eq!(pure(&canonical).unwrap(), canonical, "{name}");
        let text = String::from_utf8(hex[&name.replace(".json", ".txt")].clone()).unwrap();
        let bytes: Vec<u8> = text
            .split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        assert_eq!(canonical, bytes, "{name}");
    }
}

#[test]
fn json_parsing_vectors_are_accepted_or_refused_as_named() {
    let Some(suite) = vectors("json-test-suite/test_parsing") else {
        return;
    };
    let bodies = files(&suite);
    assert_eq!(bodies.len(), 318);
    let (mut accepted, mut refused) = (0, 0);
    for (name, body) in bodies {
        assert_eq!(fingerprint(&body), fingerprint(&body), "{name}");
        let canonical = pure(&body);
        match (name.split('_').next().unwrap(), &canonical) {
            ("y", Ok(_)) => accepted += 1,
            // Valid JSON, but not I-JSON.
            ("y", Err(reason)) => {
                assert!(
                    matches!(reason.reason(), Reason::DuplicateName(_)),
                    "{name}: {reason}"
                );
                assert!(name.contains("duplicated_key"), "{name}");
            }
            ("n", Err(_)) => refused += 1,
            ("n", Ok(_)) => panic!("{name} is accepted"),
            ("i", _) => {}
            (kind, _) => panic!("{name}: unknown prefix {kind:?}"),
        }
    }
    assert!(accepted > 90, "{accepted}");
    assert!(refused > 180, "{refused}");
}

#[test]
fn different_json_transformation_vectors_have_different_fingerprints() {
    let Some(suite) = vectors("json-test-suite/test_transform") else {
        return;
    };
    let bodies = files(&suite);
    assert_eq!(bodies.len(), 22);
    // The two objects with the same members in another order are equal.
    let (nfc, nfd) = ("object_key_nfc_nfd.json", "object_key_nfd_nfc.json");
    assert_eq!(fingerprint(&bodies[nfc]), fingerprint(&bodies[nfd]));
    let mut seen = BTreeMap::new();
    for (name, body) in bodies.iter().filter(|(name, _)| *name != nfd) {
        if let Some(other) = seen.insert(*fingerprint(body).digest(), name) {
            panic!("{name} collides with {other}");
        }
    }
    for (name, plain) in [("number_1.0.json", "[1]"), ("number_1e6.json", "[1000000]")] {
        assert_eq!(
            fingerprint(&bodies[name]),
            fingerprint(plain.as_bytes()),
            "{name}"
        );
    }
    for (name, rounded) in [
        ("number_1.000000000000000005.json", "[1]"),
        ("number_1e-999.json", "[0]"),
        ("number_9223372036854775807.json", "[9223372036854776000]"),
        ("number_-9223372036854775809.json", "[-9223372036854776000]"),
        ("number_10000000000000000999.json", "[10000000000000000000]"),
        ("object_same_key_different_values.json", r#"{"a":2}"#),
        ("object_same_key_different_values.json", r#"{"a":1}"#),
        ("object_same_key_same_value.json", r#"{"a":1}"#),
    ] {
        assert!(guarded(&bodies[name]).is_err(), "{name}");
        assert_ne!(
            fingerprint(&bodies[name]),
            fingerprint(rounded.as_bytes()),
            "{name}"
        );
    }
}

#[derive(Default, Debug)]
struct Counts {
    strings: usize,
    others: usize,
    failures: usize,
    optional: usize,
}

#[test]
fn structured_field_item_vectors_parse_as_expected() {
    let Some(suite) = vectors("structured-fields") else {
        return;
    };
    let mut counts = Counts::default();
    for (file, text) in files(&suite) {
        if Path::new(&file)
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let cases: Vec<Value> = serde_json::from_slice(&text).unwrap();
            let items = cases.iter().filter(|case| case["header_type"] == "item");
            items.for_each(|case| check_item(case, &mut counts));
        }
    }
    let Counts {
        strings,
        others,
        failures,
        optional,
    } = counts;
    println!("{counts:?}");
    assert!(
        strings > 80 && others > 300 && failures > 300 && optional > 0,
        "{counts:?}"
    );
}

fn check_item(case: &Value, counts: &mut Counts) {
    let lines: Vec<&str> = case["raw"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    let strict = Syntax::new(Dialect::Ietf { lenient: false });
    let parsed = Key::parse(&strict, lines.iter().map(|line| line.as_bytes()));
    if case["must_fail"] == true {
        counts.failures += 1;
        assert!(parsed.is_err(), "{case}");
        return;
    }
    let expected = case["expected"][0].as_str();
    match (parsed, expected) {
        (Ok(Some(key)), Some(expected)) => assert_eq!(key.as_str(), expected, "{case}"),
        (Ok(key), _) => panic!("{key:?} from {case}"),
        (Err(_), None) => {}
        (Err(refused), Some(expected)) => {
            let outside = expected.trim().is_empty() || expected.len() > MAX_LENGTH;
            assert!(outside || case["can_fail"] == true, "{refused}: {case}");
        }
    }
    match (case["can_fail"] == true, expected) {
        (true, _) => counts.optional += 1,
        (false, Some(_)) => counts.strings += 1,
        (false, None) => counts.others += 1,
    }
}
