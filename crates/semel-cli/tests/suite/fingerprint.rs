//! `semel fingerprint`, run as a process.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn semel(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .arg("fingerprint")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn fine(args: &[&str], input: &str) -> String {
    let output = semel(args, input.as_bytes());
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn prints_version_and_hex() {
    let printed = fine(&[], r#"{"b":1.0,"a":2}"#);
    assert_eq!(printed, fine(&[], r#"{ "a": 2, "b": 1 }"#));
    let (version, hex) = printed.strip_suffix('\n').unwrap().split_once(':').unwrap();
    assert_eq!(version, "1");
    assert!(hex.len() == 64 && hex.bytes().all(|byte| b"0123456789abcdef".contains(&byte)));
    for other in ["{}", "null", "", "9007199254740993"] {
        assert_ne!(printed, fine(&[], other));
    }
}

#[test]
fn reads_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("body.json");
    std::fs::write(&path, "[1]").unwrap();
    assert_eq!(fine(&[path.to_str().unwrap()], ""), fine(&[], "[1]"));
    let missing = directory.path().join("missing.json");
    for unreadable in [missing.as_path(), directory.path()] {
        let output = semel(&[unreadable.to_str().unwrap()], b"");
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let reason = String::from_utf8(output.stderr).unwrap();
        assert!(reason.contains(unreadable.to_str().unwrap()), "{reason}");
    }
}

#[test]
fn canonical_prints_only_the_canonical_bytes() {
    assert_eq!(
        fine(&["--canonical"], "{ \"b\":9007199254740993, \"a\":-0 }\n"),
        r#"{"a":0,"b":9007199254740992}"#
    );
    for (input, reason) in [
        (
            &br#"{"a":1,"a":2}"#[..],
            "duplicate member name \"a\" at byte 7",
        ),
        (b"\xff", "at byte 0"),
        (b"", "unexpected end of the body at byte 0"),
        (b"[1e400]", "beyond the range of a double"),
    ] {
        let output = semel(&["--canonical"], input);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn explains_in_plain_words() {
    for (args, input, words) in [
        (&["--explain"][..], "{}", "canonical JSON (RFC 8785)"),
        (
            &["--explain"],
            r#"{"a":1,"a":2}"#,
            "raw bytes: duplicate member name \"a\" at byte 7",
        ),
        (
            &["--explain"],
            "[9007199254740993]",
            "raw bytes: number 9007199254740993",
        ),
        (&["--explain"], "", "empty body"),
        (
            &["--explain", "--content-type", "text/plain"],
            "x",
            "raw bytes: its media type",
        ),
        (
            &[
                "--explain",
                "--content-type",
                "application/x-www-form-urlencoded",
            ],
            "a=1&b=2",
            "2 decoded pairs",
        ),
    ] {
        let printed = fine(args, input);
        let without: Vec<_> = args
            .iter()
            .copied()
            .filter(|arg| *arg != "--explain")
            .collect();
        let explanation = printed.strip_prefix(&fine(&without, input)).unwrap();
        assert!(explanation.contains(words), "{explanation}");
    }
}

#[test]
fn reproduces_a_request() {
    let whole = [
        "--operation",
        "create_payment",
        "--method",
        "POST",
        "--path",
        "/payments",
        "--query",
        "a=b",
        "--content-type",
        "application/json; charset=utf-8",
        "--header",
        "API-Version: 3",
    ];
    // The same value is pinned in semel-core.
    assert_eq!(
        fine(&whole, r#"{"amount":100.0}"#),
        "1:64b7c12608c027fa8cea913644c4e86bda024d6b26a894f67fe5891ebbde7f6f\n"
    );
    let rules = [
        "--ignore",
        "/t",
        "--default",
        "/channel=\"web\"",
        "--decimal",
        "/amount",
    ];
    assert_eq!(
        fine(&rules, r#"{"t":1,"amount":"10.0"}"#),
        fine(&rules, r#"{"channel":"web","amount":"10.00"}"#)
    );
    let rules = [
        "--field",
        "/a",
        "--field",
        "/b",
        "--enum",
        "/a",
        "--timestamp",
        "/b=second",
    ];
    assert_eq!(
        fine(&rules, r#"{"a":"EUR","b":"2026-01-01T00:00:00Z","c":1}"#),
        fine(&rules, r#"{"a":"eur","b":"2026-01-01T01:00:00.5+01:00"}"#)
    );
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &["--no-such-option"][..],
        &["--header", "nonsense"],
        &["--header", "Authorization: x"],
        &["--ignore", "trace"],
        &["--default", "/channel=web"],
        &["--timestamp", "/due_at=day"],
        &["--field", "/a", "--enum", "/b"],
        &["--canonical", "--field", "/a"],
        &["--canonical", "--explain"],
        &["one", "two"],
    ] {
        let output = semel(args, b"{}");
        assert_eq!(output.status.code(), Some(2), "{args:?} {output:?}");
        assert!(output.stdout.is_empty());
        assert!(!output.stderr.is_empty());
    }
}
