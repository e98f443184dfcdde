use super::*;

fn both(body: &str) -> (Result<String, Reason>, Result<String, Reason>) {
    let text = |bytes: Result<Vec<u8>, NotIJson>| {
        bytes
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .map_err(|refused| refused.reason)
    };
    (text(pure(body.as_bytes())), text(guarded(body.as_bytes())))
}

#[test]
fn numbers_that_survive_a_double() {
    for (body, printed) in [
        ("0", "0"),
        ("1.0", "1"),
        ("1e2", "100"),
        ("-1.50", "-1.5"),
        ("0.1", "0.1"),
        ("0.10E1", "1"),
        ("1e23", "1e+23"),
        ("1E21", "1e+21"),
        ("100000000000000000000", "100000000000000000000"),
        ("9007199254740992", "9007199254740992"),
        ("999999999999999", "999999999999999"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("0.00000012", "1.2e-7"),
        ("0e999999999999999999999", "0"),
        ("0.0", "0"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
    ] {
        assert_eq!(
            both(body),
            (Ok(printed.to_owned()), Ok(printed.to_owned())),
            "{body}"
        );
    }
}

#[test]
fn numbers_that_a_double_changes_are_refused_by_the_guard_only() {
    for (body, printed) in [
        ("9007199254740993", "9007199254740992"),
        ("1.000000000000000005", "1"),
        ("10000000000000000999", "10000000000000000000"),
        ("0.1000000000000000055511151231257827", "0.1"),
        ("9223372036854775807", "9223372036854776000"),
        ("1e-999", "0"),
        ("-1e-999", "0"),
        ("1e-99999999999999999999999", "0"),
    ] {
        let (pure, guarded) = both(body);
        assert_eq!(pure.as_deref(), Ok(printed), "{body}");
        assert!(
            matches!(guarded, Err(Reason::Lossy(_))),
            "{body}: {guarded:?}"
        );
    }
    for body in ["-0", "-0.0", "-0e5", "-0.000E-9"] {
        assert_eq!(
            both(body),
            (Ok("0".to_owned()), Err(Reason::NegativeZero)),
            "{body}"
        );
    }
}

#[test]
fn numbers_beyond_a_double_are_refused() {
    for body in ["1e400", "-1e400", "1e99999999999999999999", "1.8e308"] {
        let (pure, guarded) = both(body);
        assert!(
            matches!(pure, Err(Reason::OutOfRange(_))),
            "{body}: {pure:?}"
        );
        assert_eq!(pure, guarded, "{body}");
    }
}

#[test]
fn long_numbers_are_exact() {
    let zeros = "0".repeat(700_000);
    // One, written with an exponent that parsers of doubles stop counting at.
    assert_eq!(
        both(&format!("0.{zeros}1e700001")),
        (Ok("1".into()), Ok("1".into()))
    );
    assert_eq!(
        both(&format!("1.{zeros}")),
        (Ok("1".into()), Ok("1".into()))
    );
    assert_eq!(both(&format!("1.{zeros}1")).0, Ok("1".into()));
    assert!(both(&format!("1.{zeros}1")).1.is_err());
    // Halfway between two doubles, and a hair above: the last digit decides.
    let tie = "9007199254740993";
    assert_eq!(
        both(&format!("{tie}.{zeros}")).0,
        Ok("9007199254740992".into())
    );
    assert_eq!(
        both(&format!("{tie}.{zeros}1")).0,
        Ok("9007199254740994".into())
    );
}

#[test]
fn names_sort_by_utf16_code_units() {
    let body =
        "{\"\u{ffee}\":1,\"\u{1f600}\":2,\"\u{e000}\":3,\"z\":4,\"\u{d7ff}\":5,\"\":6,\"za\":7}";
    let sorted =
        "{\"\":6,\"z\":4,\"za\":7,\"\u{d7ff}\":5,\"\u{1f600}\":2,\"\u{e000}\":3,\"\u{ffee}\":1}";
    assert_eq!(both(body).0.as_deref(), Ok(sorted));
}

#[test]
fn strings_are_escaped_one_way() {
    let body = r#"["\u0041\/\u00e9\ud83d\ude00","\u0000\b\t\n\f\r\u001f\"\\","\u007f\ufffe"]"#;
    let printed =
        "[\"A/\u{e9}\u{1f600}\",\"\\u0000\\b\\t\\n\\f\\r\\u001f\\\"\\\\\",\"\u{7f}\u{fffe}\"]";
    assert_eq!(both(body).1.as_deref(), Ok(printed));
}

#[test]
fn a_refusal_says_what_and_where() {
    let deep = "[".repeat(129);
    for (body, message) in [
        (&b""[..], "unexpected end of the body at byte 0"),
        (b"\xEF\xBB\xBF{}", "byte order mark at byte 0"),
        (b"[\"ab\xFF\"]", "invalid UTF-8 at byte 4"),
        (b"[\"\\n\xFF\"]", "invalid UTF-8 at byte 4"),
        (b"[1,]", "found ] instead of a value at byte 3"),
        (b"[01]", "found 1 instead of `,` or `]` at byte 2"),
        (b"[1.]", "found ] instead of a digit at byte 3"),
        (b"{} x", "found x instead of the end of the body at byte 3"),
        (b"{\"a\":1,}", "found } instead of a member name at byte 7"),
        (b"nul", "unexpected end of the body at byte 3"),
        (
            b"\"a\nb\"",
            "unescaped control character 0x0a in a string at byte 2",
        ),
        (b"\"\\x\"", "invalid escape in a string at byte 1"),
        (b"\"\\u00g0\"", "invalid escape in a string at byte 1"),
        (b"\"\\ud800\"", "lone surrogate at byte 1"),
        (b"\"\\ud800\\u0041\"", "lone surrogate at byte 1"),
        (b"\"\\udc00\"", "lone surrogate at byte 1"),
        (deep.as_bytes(), "nesting deeper than 128 at byte 128"),
        (
            b"{\"a\":1,\"\\u0061\":2}",
            "duplicate member name \"a\" at byte 7",
        ),
        (
            b"{\"x\":{\"b\":1,\"a\":2,\"b\":3}}",
            "duplicate member name \"b\" at byte 18",
        ),
        (
            b"[1e400]",
            "number 1e400 beyond the range of a double at byte 1",
        ),
    ] {
        assert_eq!(pure(body).unwrap_err().to_string(), message);
        assert_eq!(guarded(body).unwrap_err().to_string(), message);
    }
}

#[test]
fn depth_is_counted_not_felt() {
    let at_limit = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    assert!(guarded(at_limit.as_bytes()).is_ok());
    let hostile = vec![b'['; 100_000_000];
    assert_eq!(guarded(&hostile).unwrap_err().offset(), MAX_DEPTH);
}
