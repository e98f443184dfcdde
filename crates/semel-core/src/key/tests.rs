use super::*;

const LENIENT: Syntax = Syntax::new(Dialect::Ietf { lenient: true });
const STRICT: Syntax = Syntax::new(Dialect::Ietf { lenient: false });
const STRIPE: Syntax = Syntax::new(Dialect::Stripe);

fn read(syntax: Syntax, line: &str) -> Result<String, Error> {
    let key = Key::parse(&syntax, [line.as_bytes()])?;
    Ok(key.unwrap().as_str().to_owned())
}

#[test]
fn quoting_makes_one_key() {
    for key in [
        "abc",
        "8e03978e-40d5-43dd-bc93-6894a57f9324",
        "123",
        "-1.5",
        "*a/b:c",
        "YWJj==",
        "a=b",
    ] {
        assert_eq!(read(LENIENT, key).unwrap(), key);
        assert_eq!(read(LENIENT, &format!("\"{key}\"")).unwrap(), key);
        assert_eq!(read(STRICT, &format!("\"{key}\"")).unwrap(), key);
        assert!(
            matches!(read(STRICT, key), Err(Error::NotAString { .. })),
            "{key}"
        );
    }
}

#[test]
fn what_may_be_read_in_two_ways_needs_quotes() {
    for value in [
        "a,b",
        "a, b",
        "a b",
        "a;b",
        "a;b=1",
        "a\"b",
        "abc\"",
        "a\\b",
        ":YWJj:",
        "?1",
        "?0",
        "@1659578233",
        "%\"x\"",
        "%x",
        "(a b)",
        "()",
        ",",
    ] {
        let refused = read(LENIENT, value).unwrap_err();
        assert!(
            matches!(refused, Error::NeedsQuotes { .. }),
            "{value}: {refused}"
        );
    }
}

#[test]
fn a_quoted_value_is_only_ever_a_structured_field() {
    for value in [
        "\"a",
        "\"a\"b",
        "\"a\\b\"",
        "\"a\", \"b\"",
        "\"a\" \"b\"",
        "\"",
        "\"a\";",
        "\"a\";A=1",
    ] {
        for syntax in [LENIENT, STRICT] {
            let refused = read(syntax, value).unwrap_err();
            assert!(
                matches!(refused, Error::Malformed { .. }),
                "{value}: {refused}"
            );
        }
    }
    for (value, key) in [
        ("\"a,b\"", "a,b"),
        ("\"a b\"", "a b"),
        ("\" a\"", " a"),
        ("\"a\\\"b\\\\c\"", "a\"b\\c"),
        ("\"a\";v=1;w", "a"),
        (" \t\"a\"\t ", "a"),
    ] {
        assert_eq!(read(LENIENT, value).as_deref(), Ok(key));
        assert_eq!(read(STRICT, value).as_deref(), Ok(key));
    }
}

#[test]
fn stripe_takes_the_value_as_it_is() {
    assert_eq!(read(STRIPE, "\"abc\"").unwrap(), "\"abc\"");
    assert_eq!(read(STRIPE, "  a b;c\\d  ").unwrap(), "a b;c\\d");
    assert_eq!(read(STRIPE, "a,b"), Err(Error::Comma));
}

#[test]
fn refused_in_every_dialect() {
    for syntax in [LENIENT, STRICT, STRIPE] {
        assert_eq!(Key::parse(&syntax, []), Ok(None));
        assert_eq!(
            Key::parse(&syntax, [&b"\"a\""[..], b"\"a\""]),
            Err(Error::Repeated)
        );
        assert_eq!(
            Key::parse(&syntax, [&b""[..], b"\"a\""]),
            Err(Error::Repeated)
        );
        assert_eq!(read(syntax, ""), Err(Error::Empty));
        assert_eq!(read(syntax, " \t "), Err(Error::Empty));
        assert_eq!(
            read(syntax, "\"\u{e9}\""),
            Err(Error::NonAscii { position: 1 })
        );
        assert_eq!(
            read(syntax, "\"a\tb\""),
            Err(Error::ControlCharacter { position: 2 })
        );
        assert_eq!(
            read(syntax, "\"a\u{7f}\""),
            Err(Error::ControlCharacter { position: 2 })
        );
        assert_eq!(
            read(syntax, "\"a\nb\""),
            Err(Error::ControlCharacter { position: 2 })
        );
        let longest = format!("\"{}\"", "k".repeat(253));
        assert!(read(syntax, &longest).is_ok());
        let over = format!("\"{}\"", "k".repeat(256));
        assert!(matches!(read(syntax, &over), Err(Error::TooLong { .. })));
    }
    for syntax in [LENIENT, STRICT] {
        assert_eq!(read(syntax, "\"\""), Err(Error::Empty));
        assert_eq!(read(syntax, "\"   \""), Err(Error::Blank));
        assert!(read(syntax, &format!("\"{}\"", "k".repeat(255))).is_ok());
    }
    assert!(read(LENIENT, &"k".repeat(255)).is_ok());
    assert_eq!(
        read(LENIENT, &"k".repeat(256)),
        Err(Error::TooLong { length: 256 })
    );
}

#[test]
fn the_length_is_that_of_the_parsed_key() {
    let syntax = LENIENT.with_min_length(3).unwrap();
    assert_eq!(
        read(syntax, "\"ab\""),
        Err(Error::TooShort {
            length: 2,
            min_length: 3
        })
    );
    assert!(read(syntax, "abc").is_ok());
    let escaped = format!("\"{}\"", "\\\\".repeat(255));
    assert_eq!(read(LENIENT, &escaped).unwrap().len(), 255);
    for impossible in [0, 256] {
        assert_eq!(
            LENIENT.with_min_length(impossible),
            Err(Error::MinLength {
                min_length: impossible
            })
        );
    }
}

#[test]
fn a_key_is_case_sensitive_and_never_printed() {
    assert_ne!(Key::new("abc").unwrap(), Key::new("ABC").unwrap());
    let key = Key::new("a secret").unwrap();
    assert!(!format!("{key:?}").contains("secret"));
    assert_eq!(key.short_hash().len(), 8);
    assert_eq!(Key::new(""), Err(Error::Empty));
    assert_eq!(Key::new("\u{e9}"), Err(Error::NonAscii { position: 0 }));
}

#[test]
fn a_route_may_ask_for_a_format() {
    let read = |format, key: &str| {
        let syntax = Syntax::new(Dialect::Ietf { lenient: true }).with_format(format);
        Key::parse(&syntax, [key.as_bytes()]).map(|_| ())
    };
    let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    for (key, is_uuid, is_token) in [
        (uuid, true, true),
        (&*uuid.to_uppercase(), true, true),
        (&*format!("\"{uuid}\""), true, true),
        (&*uuid.replace('-', ""), false, true),
        (&*format!("urn:uuid:{uuid}"), false, false),
        (&*format!("{{{uuid}}}"), false, false),
        ("8e03978e-40d5-43dd-bc93-6894a57f932g", false, true),
        ("abcdefghijklmno", false, false),
        ("abcdefghijklmnop", false, true),
        ("a.b_c~d-E9012345", false, true),
        ("abcdefghijklmno/", false, false),
        ("1234567890123456", false, false),
        ("123456789012345x", false, true),
    ] {
        for (format, accepted) in [
            (Format::Any, true),
            (Format::Uuid, is_uuid),
            (Format::Token, is_token),
        ] {
            let refused = read(format, key) == Err(Error::Format { format });
            assert_eq!(refused, !accepted, "{key} as {format:?}");
            assert_eq!(read(format, key).is_ok(), accepted, "{key} as {format:?}");
        }
    }
    for format in [Format::Uuid, Format::Token] {
        let message = read(format, "secret").unwrap_err().to_string();
        assert!(message.contains("UUID") && !message.contains("secret"));
    }
}
