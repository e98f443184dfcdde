use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::*;

fn json(body: &str) -> Fingerprint {
    typed("application/json", body)
}

fn typed(content_type: &str, body: &str) -> Fingerprint {
    Request::new("op", "POST", "/p")
        .content_type(content_type)
        .body(body)
        .fingerprint(&Rules::default())
}

fn rule(content_type: &str, body: &str) -> Rule {
    Request::new("op", "POST", "/p")
        .content_type(content_type)
        .body(body)
        .explain(&Rules::default())
        .1
}

/// As if by the default rules, so that only what is hashed counts.
fn ruled(options: &Options, body: &str) -> Fingerprint {
    let rules = Rules::new(options).unwrap();
    let fingerprint = Request::new("op", "POST", "/p")
        .content_type("application/json")
        .body(body)
        .fingerprint(&rules);
    assert_eq!(fingerprint.rules(), rules.id());
    fingerprint.under(RulesId::DEFAULT)
}

fn all_differ(fingerprints: &[Fingerprint]) {
    for (at, one) in fingerprints.iter().enumerate() {
        assert!(!fingerprints[..at].contains(one), "number {at} collides");
    }
}

#[test]
fn version_1_never_changes() {
    let fingerprint = Request::new("create_payment", "POST", "/payments")
        .query("a=b")
        .content_type("application/json; charset=utf-8")
        .header("API-Version", "3")
        .body(r#"{"amount":100.0}"#)
        .fingerprint(&Rules::default());
    assert_eq!(
        fingerprint.to_string(),
        "1:64b7c12608c027fa8cea913644c4e86bda024d6b26a894f67fe5891ebbde7f6f"
    );
}

#[test]
fn every_field_counts() {
    let base = || {
        Request::new("op", "POST", "/p")
            .content_type("application/json")
            .body("1")
    };
    let of = |request: Request<'_>| request.fingerprint(&Rules::default());
    all_differ(&[
        of(base()),
        of(Request::new("op2", "POST", "/p")
            .content_type("application/json")
            .body("1")),
        of(Request::new("op", "PATCH", "/p")
            .content_type("application/json")
            .body("1")),
        of(Request::new("op", "POST", "/p2")
            .content_type("application/json")
            .body("1")),
        of(Request::new("opP", "OST", "/p")
            .content_type("application/json")
            .body("1")),
        of(Request::new("op", "POST", "/p").body("1")),
        of(base().query("")),
        of(base().query("a")),
        of(base().content_type("application/json;charset=utf-8")),
        of(base().content_type("application/json;charset=latin1")),
        of(base().content_type("application/x+json")),
        of(base().content_type("text/plain")),
        of(base().content_type("nonsense")),
        of(base().content_type("")),
        of(base().header("x", "")),
        of(base().header("x", "a")),
        of(base().header("x", "a").header("x", "b")),
        of(base().header("x", "b").header("x", "a")),
        of(base().header("x", "ab")),
        of(base().header("xa", "b")),
        of(base().header("x", "a").header("y", "b")),
        of(base().body("")),
        of(base().body("{}")),
        of(base().body("null")),
        of(base().body("2")),
        of(base().undecoded("zip")),
        of(base().undecoded("zap")),
        of(base().body("").undecoded("zip")),
    ]);
}

#[test]
fn a_field_cannot_pretend_to_be_two() {
    // What a frame without lengths would put between method and path.
    let head = "\u{4}\0\0\0\0\0\0\0\0";
    let (method, path) = (format!("b{head}c"), format!("c{head}d"));
    let of = |request: Request<'_>| request.fingerprint(&Rules::default());
    assert_ne!(
        of(Request::new("a", &method, "d")),
        of(Request::new("a", "b", &path))
    );
}

#[test]
fn what_does_not_matter() {
    let base = || Request::new("op", "POST", "/p").body("[1]");
    let of = |request: Request<'_>| request.fingerprint(&Rules::default());
    let one = of(base()
        .content_type("application/json;charset=utf-8")
        .header("a", "1")
        .header("b", "2"));
    for content_type in [
        "Application/JSON; Charset=\"UTF-8\"",
        "application/json ; v=1 ; charset=utf-8;",
        " application/json;;charset=UTF-8;x=\"a;b\" ",
    ] {
        let other = base()
            .content_type(content_type)
            .header("B", "2")
            .header("A", "1");
        assert_eq!(
            of(other.header("Authorization", "Bearer x")),
            one,
            "{content_type}"
        );
    }
}

#[test]
fn a_doubtful_content_type_means_raw() {
    for content_type in [
        "application/json;charset=utf-8;charset=utf-16",
        "application/json, application/json",
        "application/json;charset=\"utf\\-8\"",
        "application/json;charset",
        "application/json;charset=utf-16",
        "application",
        "",
    ] {
        assert!(
            matches!(rule(content_type, "[1]"), Rule::Raw { .. }),
            "{content_type}"
        );
        assert_ne!(typed(content_type, "[1]"), typed(content_type, "[ 1]"));
    }
}

#[test]
fn where_canonical_json_would_lose_something_bytes_count() {
    for (one, other) in [
        ("9007199254740993", "9007199254740992"),
        ("[1.000000000000000005]", "[1]"),
        ("1e-999", "0"),
        ("-0", "0"),
        ("{\"a\":1,\"a\":2}", "{\"a\":2}"),
        ("{\"a\":1,\"a\":2}", "{\"a\":1}"),
        ("[\"\\ud800\"]", "[\"\u{fffd}\"]"),
        ("\u{feff}{}", "{}"),
        ("[1,]", "[1]"),
        ("{\"\u{e9}\":1}", "{\"e\u{301}\":1}"),
    ] {
        assert_ne!(json(one), json(other), "{one} {other}");
        assert_eq!(json(one), json(one));
    }
    assert_eq!(
        rule("application/json", r#"{"x":1,  "a":1,"a":2}"#).to_string(),
        "raw bytes: duplicate member name \"a\" at byte 15"
    );
    // A body that looks like the canonical form of a refused one is still another rule's.
    assert_eq!(
        json("{\"b\":1.0,\"a\":[]}"),
        json(" {\"a\" : [ ] , \"b\":1}")
    );
    assert_eq!(json("\"a\""), json(r#""\u0061""#));
}

#[test]
fn forms() {
    let form = |body| typed("application/x-www-form-urlencoded", body);
    assert_eq!(form("a=1+2&b=%7e"), form("a=1%202&b=~"));
    assert_eq!(form("a=%c3%A9"), form("a=\u{e9}"));
    assert_eq!(form("a=b=c"), form("a=b%3Dc"));
    all_differ(&[
        form("a=1"),
        form("a=1&a=1"),
        form("a=1&b=2"),
        form("b=2&a=1"),
        form("a"),
        form("a="),
        form("=a"),
        form("a=1&"),
        form("a=1&&"),
        form("a=1%26b=2"),
        form("a=%"),
        form("a=%2"),
        form("a=%zz"),
        form("a=1;b=2"),
        form("a=1%3bb=2"),
        form(""),
        form("="),
        form("a=1 "),
    ]);
    for raw in ["a=1&", "&", "a=%", "a=%+1", "a=1;b=2"] {
        assert!(
            matches!(
                rule("application/x-www-form-urlencoded", raw),
                Rule::Raw { .. }
            ),
            "{raw}"
        );
    }
    assert_eq!(
        rule("application/x-www-form-urlencoded", "a&b=1"),
        Rule::Form { pairs: 2 }
    );
}

fn multipart(boundary: &str, parts: &[(&str, &str)]) -> (Fingerprint, Rule) {
    let part = |(head, bytes): &(&str, &str)| format!("--{boundary}\r\n{head}\r\n\r\n{bytes}\r\n");
    let body = parts.iter().map(part).collect::<String>() + &format!("--{boundary}--\r\n");
    let content_type = format!("multipart/form-data; boundary={boundary}");
    let request = Request::new("op", "POST", "/p")
        .content_type(&content_type)
        .body(&body);
    request.explain(&Rules::default())
}

#[test]
fn multipart_forms() {
    let name = "Content-Disposition: form-data; name=\"a\"";
    let file = "Content-Disposition: form-data; name=\"a\"; filename=\"f\"";
    let kind = "content-disposition: form-data; name=a\r\nContent-Type: text/plain";
    let (one, rule) = multipart("xx", &[(name, "1"), (file, "2\r\n")]);
    assert_eq!(rule, Rule::Multipart { parts: 2 });
    assert_eq!(one, multipart("other", &[(name, "1"), (file, "2\r\n")]).0);
    all_differ(&[
        one,
        multipart("xx", &[(file, "2\r\n"), (name, "1")]).0,
        multipart("xx", &[(name, "1"), (file, "2")]).0,
        multipart("xx", &[(name, "1"), (name, "2\r\n")]).0,
        multipart("xx", &[(name, "1"), (kind, "2\r\n")]).0,
        multipart("xx", &[(name, "1")]).0,
        multipart("xx", &[]).0,
    ]);
    for odd in [
        "Content-Disposition: form-data",
        "Content-Disposition: form-data; name=\"a\\\"\"",
        "Content-Disposition: form-data; name=a; name=b",
        "Content-Disposition: form-data; name=a; filename*=utf-8''x",
        "Content-Disposition: attachment; name=a",
        "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64",
        "X: y",
    ] {
        let (one, rule) = multipart("xx", &[(odd, "1")]);
        assert!(matches!(rule, Rule::Raw { .. }), "{odd}: {rule}");
        assert_ne!(one, multipart("yy", &[(odd, "1")]).0);
    }
    let hidden = multipart("xx", &[(name, "1\n--xx\nmore")]).1;
    assert!(matches!(hidden, Rule::Raw { .. }), "{hidden}");
    let many: Vec<_> = std::iter::repeat_n((name, "1"), multipart::MAX_PARTS + 1).collect();
    assert!(matches!(multipart("xx", &many).1, Rule::Raw { .. }));
    assert_eq!(
        multipart("xx", &many[1..]).1,
        Rule::Multipart {
            parts: multipart::MAX_PARTS
        }
    );
    for broken in [
        "",
        "--xx",
        "--xx\r\n",
        "--xx--x",
        "--xx\r\n\r\n",
        "x--xx--",
        "--xx--\r\n\r\n",
    ] {
        let content_type = "multipart/form-data; boundary=xx";
        assert!(
            !matches!(self::rule(content_type, broken), Rule::Multipart { .. }),
            "{broken}"
        );
    }
    assert!(matches!(
        self::rule("multipart/form-data", "--xx--"),
        Rule::Raw { .. }
    ));
}

#[test]
fn ignored_values_may_be_anything_or_absent() {
    let options = Options {
        ignore: vec!["/m/t".into(), "/l/1".into()],
        ..Options::default()
    };
    let one = ruled(&options, r#"{"m":{"t":1,"x":2},"l":[1,2,3]}"#);
    assert_eq!(
        one,
        ruled(
            &options,
            r#"{"m":{"t":{"deep":[9007199254740993]},"x":2},"l":[1,[],3]}"#
        )
    );
    assert_eq!(one, ruled(&options, r#"{"m":{"x":2},"l":[1,"",3]}"#));
    assert_ne!(one, ruled(&options, r#"{"m":{"x":3},"l":[1,2,3]}"#));
    assert_ne!(one, ruled(&options, r#"{"m":{"x":2},"l":[1,3]}"#));
    assert_ne!(one, ruled(&options, r#"{"m":{"x":2},"l":[1,2,4]}"#));
    // An ignored name does not hide a duplicate.
    assert_ne!(
        ruled(&options, r#"{"m":{"t":1,"t":2}}"#),
        ruled(&options, r#"{"m":{}}"#)
    );
}

#[test]
fn defaults_fill_in_what_is_absent() {
    let defaults = [
        ("/channel", "\"web\""),
        ("/o/b", "2"),
        ("/o/a", "[1.0]"),
        ("/\u{e000}~1~0", "{}"),
    ];
    let options = Options {
        defaults: defaults
            .iter()
            .map(|(at, json)| ((*at).into(), (*json).into()))
            .collect(),
        ..Options::default()
    };
    let full = "{\"z\":1,\"channel\":\"web\",\"o\":{\"a\":[1],\"b\":2,\"c\":3},\"\u{e000}/~\":{}}";
    for body in [
        r#"{"z":1,"o":{"c":3}}"#,
        r#"{"z":1,"o":{"c":3,"b":2.0},"channel":"web"}"#,
        full,
    ] {
        assert_eq!(ruled(&options, body), json(full), "{body}");
    }
    assert_ne!(
        ruled(&options, r#"{"z":1,"o":{"c":3},"channel":null}"#),
        json(full)
    );
    // Without the object around it, nothing is put in.
    assert_eq!(ruled(&options, "[]"), json("[]"));
    assert_eq!(
        ruled(&options, r#"{"o":7}"#),
        json("{\"o\":7,\"channel\":\"web\",\"\u{e000}/~\":{}}")
    );
}

#[test]
fn decimals_compare_by_value() {
    let options = Options {
        decimals: vec!["/a".into()],
        ..Options::default()
    };
    let of = |value: &str| ruled(&options, &format!("{{\"a\":{value}}}"));
    assert_eq!(of("\"10.0\""), of("\"10.00\""));
    assert_eq!(of("\"10.0\""), of("\"10\""));
    assert_eq!(of("\"1\\u0030.00\""), of("\"10\""));
    assert_eq!(of("-0.50"), of("-5e-1"));
    let exact = "123456789012345678901234567890.12";
    assert_eq!(of(exact), of("123456789012345678901234567890.120"));
    assert_eq!(of(exact), of("12345678901234567890123456789012e-2"));
    assert_eq!(of("1e400"), of("10e399"));
    all_differ(&[
        of("10"),
        of("\"10\""),
        of("\"10.01\""),
        of("\"-10\""),
        of("\"1e1\""),
        of("\"+10\""),
        of("\"010\""),
        of("\"10.\""),
        of("\"10.0 \""),
        of("\"\""),
        of("\"-\""),
        of("\".5\""),
        of("\"0.5\""),
        of("\"-0\""),
        of("\"0\""),
        of("\"-0.0\""),
        of("0"),
        of("-0"),
        of("null"),
        of("[\"10.0\"]"),
        of(exact),
        of("123456789012345678901234567890.13"),
        of("9007199254740993"),
        of("9007199254740992"),
        of("1e400"),
        of("1e401"),
        of("1e99999999999999999998"),
        of("1e99999999999999999999"),
        of("1e-999"),
    ]);
    let both = Options {
        defaults: vec![
            ("/a".into(), "\"10.00\"".into()),
            ("/b".into(), "{\"c\":\"1.0\"}".into()),
        ],
        decimals: vec!["/a".into(), "/b/c".into()],
        ..Options::default()
    };
    assert_eq!(
        ruled(&both, "{}"),
        ruled(&both, r#"{"b":{"c":"1.00"},"a":"10"}"#)
    );
}

#[test]
fn only_listed_fields_count() {
    let options = Options {
        fields: ["/amount", "/to/iban", "/lines/1/sku"]
            .map(Into::into)
            .to_vec(),
        ..Options::default()
    };
    let of = |body: &str| ruled(&options, body);
    let one = of(r#"{"amount":1,"to":{"iban":"DE1"},"lines":[{"sku":1},{"sku":2}]}"#);
    for equal in [
        r#"{"amount":1,"to":{"iban":"DE1","bic":"X"},"lines":[{"sku":1},{"sku":2}],"trace":7}"#,
        r#"{"amount":1.0,"to":{"iban":"DE1"},"lines":[7,{"sku":2,"n":9007199254740993},[]]}"#,
    ] {
        assert_eq!(of(equal), one, "{equal}");
    }
    all_differ(&[
        one,
        of(r#"{"amount":2,"to":{"iban":"DE1"},"lines":[{"sku":1},{"sku":2}]}"#),
        of(r#"{"amount":1,"to":{"iban":"DE2"},"lines":[{"sku":1},{"sku":2}]}"#),
        of(r#"{"amount":1,"to":{"iban":"DE1"},"lines":[{"sku":1},{"sku":3}]}"#),
        of(r#"{"amount":1,"to":{"iban":"DE1"},"lines":[{"sku":2}]}"#),
        of(r#"{"amount":1,"to":{"iban":null},"lines":[{"sku":1},{"sku":2}]}"#),
        // What stands on the way to a field counts.
        of(r#"{"amount":1,"to":{},"lines":[0,{"sku":2}]}"#),
        of(r#"{"amount":1,"to":"DE1","lines":[0,{"sku":2}]}"#),
        of(r#"{"amount":1,"to":"DE2","lines":[0,{"sku":2}]}"#),
        of(r#"{"amount":1,"lines":[0,{"sku":2}]}"#),
        of("{}"),
        of("[]"),
        of("7"),
    ]);
    // Inside of a field everything counts, and a duplicate still makes the bytes count.
    assert_ne!(
        of(r#"{"amount":{"a":1}}"#),
        of(r#"{"amount":{"a":1,"b":2}}"#)
    );
    assert_ne!(of(r#"{"x":1,"x":2}"#), of(r#"{"x":1,"x":3}"#));
    let with_rules = Options {
        decimals: vec!["/amount".into()],
        defaults: vec![("/to/iban".into(), "\"DE1\"".into())],
        ..options.clone()
    };
    assert_eq!(
        ruled(&with_rules, r#"{"amount":"1.0","to":{"bic":"X"}}"#),
        ruled(
            &with_rules,
            r#"{"amount":"1.00","to":{"iban":"DE1"},"trace":7}"#
        )
    );
}

#[test]
fn enums_compare_without_case() {
    let options = Options {
        enums: vec!["/currency".into()],
        ..Options::default()
    };
    let of = |value: &str| ruled(&options, &format!("{{\"currency\":{value}}}"));
    assert_eq!(of("\"EUR\""), of("\"eur\""));
    assert_eq!(of("\"EUR\""), of("\"\\u0045uR\""));
    all_differ(&[
        of("\"EUR\""),
        of("\"EUR \""),
        of("\"USD\""),
        of("\"\u{c9}UR\""),
        of("\"\u{e9}UR\""),
        of("[\"EUR\"]"),
        of("[\"eur\"]"),
        of("1"),
        of("null"),
    ]);
    // No other string is affected.
    assert_ne!(
        ruled(&options, r#"{"a":"X"}"#),
        ruled(&options, r#"{"a":"x"}"#)
    );
}

#[test]
fn timestamps_compare_as_instants() {
    let options = |precision| Options {
        timestamps: vec![("/due".into(), precision)],
        ..Options::default()
    };
    let of = |precision, value: &str| ruled(&options(precision), &format!("{{\"due\":{value}}}"));
    let (second, milli) = (Precision::Second, Precision::Millisecond);
    let due = "\"2026-11-18T02:03:04Z\"";
    for equal in [
        "\"2026-11-18T03:03:04+01:00\"",
        "\"2026-11-18T02:03:04.000Z\"",
        "\"2026-11-18T02:03:04.9Z\"",
        "\"2026-11-18\\u005402:03:04Z\"",
    ] {
        assert_eq!(of(second, due), of(second, equal), "{equal}");
    }
    assert_ne!(of(milli, due), of(milli, "\"2026-11-18T02:03:04.9Z\""));
    let instant = timestamp::parse(due.trim_matches('"').as_bytes(), second).unwrap();
    all_differ(&[
        of(second, due),
        of(second, "\"2026-11-18T02:03:05Z\""),
        // Not timestamps: they stay as they are.
        of(second, "\"2026-11-18 02:03:04Z\""),
        of(second, "\"2026-11-18\""),
        of(second, "\"2016-12-31T23:59:60Z\""),
        of(second, &format!("\"@{instant}\"")),
        of(second, &instant.to_string()),
        of(second, "null"),
    ]);
}

#[test]
fn contradicting_options_are_named() {
    let base = Options {
        fields: vec!["/a".into()],
        ..Options::default()
    };
    let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    for (options, expected) in [
        (
            Options {
                ignore: vec!["/a/b".into()],
                ..base.clone()
            },
            "`ignore` with \"/a/b\" contradicts",
        ),
        (
            Options {
                enums: vec!["/b".into()],
                ..base.clone()
            },
            "\"/b\" has no effect",
        ),
        (
            Options {
                defaults: vec![("/b".into(), "1".into())],
                ..base.clone()
            },
            "\"/b\" has no effect",
        ),
        (
            Options {
                fields: strings(&["/a", "/a/b"]),
                ..Options::default()
            },
            "overlap",
        ),
        (
            Options {
                fields: strings(&[""]),
                ..Options::default()
            },
            "whole body",
        ),
        (
            Options {
                enums: strings(&["/a"]),
                timestamps: vec![("/a".into(), Precision::Second)],
                ..Options::default()
            },
            "overlap",
        ),
        (
            Options {
                timestamps: (0..=MAX_RULES)
                    .map(|at| (format!("/{at}"), Precision::Second))
                    .collect(),
                ..Options::default()
            },
            "too many rules",
        ),
    ] {
        let error = Rules::new(&options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let nested = Options {
        enums: strings(&["/a", "/a", "/a/b"]),
        ..base
    };
    assert!(Rules::new(&nested).is_ok());
}

#[test]
fn broken_options_are_named() {
    let pointers = |pointer: &str| Options {
        ignore: vec![pointer.into()],
        ..Options::default()
    };
    for pointer in ["", "a", "/a/-", "/a~", "/a~2"] {
        let refused = Rules::new(&pointers(pointer)).unwrap_err();
        assert!(
            matches!(&refused, Error::Pointer { pointer: named, .. } if named == pointer),
            "{refused}"
        );
    }
    let many = Options {
        ignore: (0..=MAX_RULES).map(|at| format!("/{at}")).collect(),
        ..Options::default()
    };
    assert_eq!(Rules::new(&many), Err(Error::TooLarge));
    for (ignore, default) in [("/a", "/a"), ("/a", "/a/b"), ("/a/b", "/a")] {
        let options = Options {
            ignore: vec![ignore.into()],
            defaults: vec![(default.into(), "1".into())],
            ..Options::default()
        };
        assert!(matches!(Rules::new(&options), Err(Error::Overlap { .. })));
    }
    for json in ["", "web", "9007199254740993", "{\"a\":1,\"a\":1}"] {
        let options = Options {
            defaults: vec![("/a".into(), json.into())],
            ..Options::default()
        };
        assert!(
            matches!(Rules::new(&options), Err(Error::Default { .. })),
            "{json}"
        );
    }
    for header in ["", "a b", "Authorization", "cookie"] {
        let options = Options {
            headers: vec![header.into()],
            ..Options::default()
        };
        assert!(
            matches!(Rules::new(&options), Err(Error::Header { .. })),
            "{header}"
        );
    }
    let options = Options {
        headers: vec!["X-B".into(), "x-a".into(), "x-b".into()],
        ..Options::default()
    };
    assert_eq!(Rules::new(&options).unwrap().headers(), ["x-a", "x-b"]);
}

#[test]
fn the_text_of_a_fingerprint() {
    let fingerprint = json("1");
    assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
    let hex = "ab".repeat(32);
    assert!(format!("1:{hex}").parse::<Fingerprint>().is_ok());
    for wrong in [
        hex.clone(),
        format!("01:{hex}"),
        format!("+1:{hex}"),
        format!("1:{hex}00"),
        "1:".into(),
        format!("65536:{hex}"),
        format!("1:{}", hex.to_uppercase()),
        format!("1:{}", &hex[1..]),
    ] {
        assert_eq!(wrong.parse::<Fingerprint>(), Err(Error::Syntax), "{wrong}");
    }
}

#[test]
fn a_record_is_compared_with_its_version() {
    let at = |version, byte| Fingerprint::from_parts(version, [byte; 32]);
    let all = Fingerprints::from(at(2, 2))
        .with_older(at(1, 1))
        .with_older(at(3, 3))
        .with_older(at(1, 4));
    assert_eq!(all.newest(), at(3, 3));
    assert_eq!(
        all.iter().collect::<Vec<_>>(),
        [at(3, 3), at(2, 2), at(1, 4)]
    );
    assert!(all.matches(at(2, 2)) && all.matches(at(1, 4)));
    assert!(!all.matches(at(1, 1)) && !all.matches(at(4, 4)) && !all.matches(at(2, 3)));
}

#[test]
fn a_record_is_compared_under_its_rules() {
    let under = |rules, byte| Fingerprint::from_parts(1, [byte; 32]).under(RulesId(rules));
    let current = Fingerprints::from(under(500, 1));
    assert!(current.lacks_rules_of(under(600, 1)));
    assert!(!current.matches(under(600, 1)));
    assert!(!current.lacks_rules_of(under(500, 2)));
    // A version that this build does not compute has no rules that would help.
    let future = Fingerprint::from_parts(2, [1; 32]).under(RulesId(600));
    assert!(!current.lacks_rules_of(future));
    let both = current.with_older(under(600, 3));
    assert_eq!(both.newest(), under(500, 1));
    assert!(both.matches(under(600, 3)) && !both.matches(under(600, 1)));
    assert!(!both.lacks_rules_of(under(600, 1)));
}

#[test]
fn rules_have_one_id_however_they_are_written() {
    let options = Options {
        headers: vec!["API-Version".into(), "accept".into()],
        ignore: vec!["/b".into(), "/a".into()],
        defaults: vec![("/y".into(), "1.0".into()), ("/x".into(), "{}".into())],
        decimals: vec!["/amount".into()],
        ..Options::default()
    };
    let rules = Rules::new(&options).unwrap();
    let reordered = Options {
        headers: vec!["Accept".into(), "api-version".into(), "accept".into()],
        ignore: vec!["/a".into(), "/b".into()],
        defaults: vec![("/x".into(), " { }".into()), ("/y".into(), "1".into())],
        ..options.clone()
    };
    assert_eq!(Rules::new(&reordered).unwrap().id(), rules.id());
    assert_eq!(Rules::default().id(), RulesId::DEFAULT);
    let others = [
        Options {
            headers: vec!["accept".into()],
            ..options.clone()
        },
        Options {
            ignore: vec!["/a".into()],
            ..options.clone()
        },
        Options {
            defaults: Vec::new(),
            ..options.clone()
        },
        Options {
            decimals: Vec::new(),
            ..options
        },
    ];
    for other in others {
        assert_ne!(Rules::new(&other).unwrap().id(), rules.id(), "{other:?}");
    }
}

#[test]
fn rules_are_read_back_as_they_were_stored() {
    let options = Options {
        headers: vec!["API-Version".into()],
        ignore: vec!["/metadata/trace_id".into()],
        defaults: vec![("/channel".into(), "\"web\"".into())],
        decimals: vec!["/amount".into()],
        fields: Vec::new(),
        enums: vec!["/currency".into()],
        timestamps: vec![("/due".into(), Precision::Second)],
    };
    let rules = Rules::new(&options).unwrap();
    let text = rules.to_text();
    assert_eq!(
        text,
        r#"{"headers":["api-version"],"ignore":["/metadata/trace_id"],"defaults":[["/channel","\"web\""]],"decimals":["/amount"],"enums":["/currency"],"timestamps":[["/due","second"]]}"#
    );
    let read = Rules::from_text(&text).unwrap();
    assert_eq!((read.id(), &read), (rules.id(), &rules));
    // A rule of a newer version cannot be left out: its fingerprints would be wrong.
    let newer = r#"{"ignore":["/a"],"rounds":["/b"]}"#;
    assert!(matches!(Rules::from_text(newer), Err(Error::Stored(_))));
}

#[derive(Serialize)]
enum Shape {
    Unit,
    Newtype(u8),
    Tuple(u8, u8),
    Struct { b: u8, a: u8 },
}

fn text<T: Serialize + ?Sized>(command: &T) -> String {
    String::from_utf8(command::write(command).unwrap()).unwrap()
}

#[test]
fn commands_are_written_without_loss() {
    #[derive(Serialize)]
    struct Named {
        z: Option<u8>,
        a: (char, bool),
        list: Vec<Shape>,
        map: HashMap<i64, f64>,
    }
    let named = Named {
        z: None,
        a: ('"', true),
        list: vec![
            Shape::Unit,
            Shape::Newtype(1),
            Shape::Tuple(1, 2),
            Shape::Struct { b: 1, a: 2 },
        ],
        map: HashMap::from([(10, 0.5), (9, -1e300), (-1, 3.0)]),
    };
    assert_eq!(
        text(&named),
        r#"{"a":["\"",true],"list":["Unit",{"Newtype":1},{"Tuple":[1,2]},{"Struct":{"a":2,"b":1}}],"#
            .to_owned()
            + r#""map":{"-1":3,"10":0.5,"9":-1e+300},"z":null}"#
    );
    assert_eq!(
        text(&(u64::MAX, i128::MIN, u128::MAX)),
        format!("[{},{},{}]", u64::MAX, i128::MIN, u128::MAX)
    );
    assert_eq!(text(&BTreeMap::<u8, u8>::new()), "{}");
    assert_eq!(text(&[(); 0]), "[]");
    assert_eq!(text(&Some(Some(()))), "!!null");
    assert_ne!(text(&Some(None::<u8>)), text(&None::<Option<u8>>));
    assert_ne!(
        text(&123_456_789_012_345_680_000_f64),
        text(&123_456_789_012_345_680_000_u128)
    );
    assert_ne!(text(&-0.0), text(&0.0));
}

#[test]
fn commands_that_cannot_be_told_apart_are_refused() {
    #[derive(Serialize)]
    struct Twice {
        a: u8,
        #[serde(flatten)]
        more: BTreeMap<String, u8>,
    }
    #[derive(Serialize)]
    struct Deep(Option<Box<Deep>>);

    for float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(Fingerprint::of(&[float]), Err(Error::NonFinite));
    }
    assert_eq!(Fingerprint::of(&f32::NAN), Err(Error::NonFinite));
    let twice = Twice {
        a: 1,
        more: BTreeMap::from([("a".into(), 2)]),
    };
    assert_eq!(
        Fingerprint::of(&twice),
        Err(Error::DuplicateName("a".into()))
    );
    assert_eq!(
        Fingerprint::of(&BTreeMap::from([([1, 2], 1)])),
        Err(Error::NameType("tuple"))
    );
    let deep = (0..1000).fold(Deep(None), |inner, _| Deep(Some(Box::new(inner))));
    assert_eq!(Fingerprint::of(&deep), Err(Error::TooDeep));
}

#[test]
fn domains_do_not_mix() {
    let command = || BTreeMap::from([("a", 1)]);
    all_differ(&[
        Fingerprint::of(&command()).unwrap(),
        Fingerprint::of_operation("", &command()).unwrap(),
        Fingerprint::of_operation("op", &command()).unwrap(),
        json("{\"a\":1}"),
    ]);
}

#[test]
fn path_and_authority_count_by_the_rules() {
    let with = |hosts: &Hosts, path: &str, host: &str| {
        let host = host.as_bytes();
        let scheme = Some("https");
        let rules = Rules::default().with_hosts(hosts);
        let request = Request::new("op", "POST", path);
        let request = match host {
            [] => request,
            host => request.authority(Authority { scheme, host }),
        };
        request.fingerprint(&rules)
    };
    let each = Hosts::default();
    let one = with(&each, "/a", "api.example");
    assert_eq!(with(&each, "/%61", "API.example.:443"), one);
    assert_eq!(with(&each, "/x/../a", "api.example"), one);
    all_differ(&[
        one,
        with(&each, "/A", "api.example"),
        with(&each, "/a/", "api.example"),
        with(&each, "//a", "api.example"),
        with(&each, "/a", "api2.example"),
        with(&each, "/a", ""),
    ]);
    let same = Hosts::equivalent([["api.example", "api2.example"]]).unwrap();
    let grouped = with(&same, "/a", "api2.example");
    assert_eq!(grouped, with(&same, "/a", "api.example"));
    assert_ne!(grouped, with(&same, "/a", "api3.example"));
    let any = Hosts::any();
    assert_eq!(with(&any, "/a", "api.example"), with(&any, "/a", ""));
    assert_ne!(with(&any, "/a", ""), with(&any, "/a/", ""));
    // As records of the first versions were made: the path as it was sent, and no authority.
    let old = |request: Request<'_>| request.fingerprint(&Rules::default());
    let request = || Request::new("op", "POST", "/a");
    let host = Authority {
        scheme: None,
        host: b"api.example",
    };
    assert_eq!(old(request().authority(host)), old(request()));
    assert_ne!(old(Request::new("op", "POST", "/%61")), old(request()));
}

#[test]
fn rules_with_hosts_are_read_back_and_have_an_id_of_their_own() {
    let options = Options {
        ignore: vec!["/a".into()],
        ..Options::default()
    };
    let plain = Rules::new(&options).unwrap();
    let named = Hosts::equivalent([["a", "b"]]).unwrap();
    let mut ids = vec![
        RulesId::DEFAULT,
        RulesId::COMMAND,
        RulesId::WITH_HOST,
        plain.id(),
    ];
    for base in [Rules::default(), plain] {
        for hosts in [Hosts::default(), Hosts::any(), named.clone()] {
            let rules = base.with_hosts(&hosts);
            for rules in [rules.clone(), rules.for_command()] {
                if rules.id() != RulesId::WITH_HOST {
                    let read = Rules::from_text(&rules.to_text()).unwrap();
                    assert_eq!((&read, read.id()), (&rules, rules.id()));
                    assert_eq!(Rules::well_known(rules.id()), None);
                    ids.push(rules.id());
                }
            }
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), count), (15, 15));
    for id in [RulesId::DEFAULT, RulesId::COMMAND, RulesId::WITH_HOST] {
        assert_eq!(Rules::well_known(id).unwrap().id(), id);
    }
    let newer = r#"{"hosts":[],"options":{},"scheme":true}"#;
    assert!(matches!(Rules::from_text(newer), Err(Error::Stored(_))));
}
