//! What holds for every header value. Used by the fuzz target, and on its corpus by a test of
//! semel-core.

use semel_core::key::{Dialect, Error, Key, MAX_LENGTH, Syntax};

const LENIENT: Syntax = Syntax::new(Dialect::Ietf { lenient: true });
const STRICT: Syntax = Syntax::new(Dialect::Ietf { lenient: false });
const STRIPE: Syntax = Syntax::new(Dialect::Stripe);

/// The input is one header line.
pub(crate) fn check(line: &[u8]) {
    let read = |syntax: &Syntax, line: &[u8]| Key::parse(syntax, [line]);
    let (lenient, strict, stripe) = (
        read(&LENIENT, line),
        read(&STRICT, line),
        read(&STRIPE, line),
    );
    for key in [&lenient, &strict, &stripe].into_iter().flatten() {
        let key = key.as_ref().expect("one line is never no key");
        valid(key);
    }
    if strict.is_ok() || line.trim_ascii().starts_with(b"\"") {
        assert_eq!(lenient, strict, "a quoted value means one thing");
    }
    if let Ok(Some(key)) = &lenient {
        // Quoting is the only spelling that is always understood, and it changes nothing.
        let requoted = quote(key.as_str());
        assert_eq!(
            read(&STRICT, requoted.as_bytes()).as_ref(),
            Ok(&Some(key.clone()))
        );
        assert_eq!(
            read(&LENIENT, requoted.as_bytes()).as_ref(),
            Ok(&Some(key.clone()))
        );
        // And a client that quotes naively what was accepted unquoted has the same key.
        if strict.is_err() {
            let naive = format!("\"{}\"", key.as_str());
            assert_eq!(
                read(&STRICT, naive.as_bytes()).as_ref(),
                Ok(&Some(key.clone()))
            );
        }
    }
    for syntax in [LENIENT, STRICT, STRIPE] {
        assert_eq!(Key::parse(&syntax, [line, line]), Err(Error::Repeated));
    }
}

fn valid(key: &Key) {
    let text = key.as_str();
    assert!((1..=MAX_LENGTH).contains(&text.len()));
    assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    assert!(!text.trim().is_empty());
    assert_eq!(Key::new(text).as_ref(), Ok(key));
    assert!(format!("{key:?}").len() == "Key(#12345678)".len());
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
