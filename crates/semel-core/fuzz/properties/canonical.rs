//! What holds for every body. Used by the fuzz target, and on its corpus by a test of
//! semel-core.

use semel_core::canonical::{guarded, pure};
use semel_core::fingerprint::{Options, Precision, Request, Rule, Rules};

/// The input is a body.
pub(crate) fn check(body: &[u8]) {
    let (pure_form, guarded_form) = (pure(body), guarded(body));
    if let Ok(canonical) = &pure_form {
        assert_eq!(
            pure(canonical).as_ref(),
            Ok(canonical),
            "a canonical form is its own"
        );
    }
    if let Ok(canonical) = &guarded_form {
        assert_eq!(pure_form.as_ref(), Ok(canonical), "the guard only refuses");
        assert_eq!(
            guarded(canonical).as_ref(),
            Ok(canonical),
            "and never its own output"
        );
    }
    if let Err(refused) = &pure_form {
        assert!(guarded_form.is_err());
        assert!(refused.offset() <= body.len());
    }
    fingerprints(body, guarded_form.ok());
}

fn fingerprints(body: &[u8], canonical: Option<Vec<u8>>) {
    let none = Rules::default();
    let (fingerprint, rule) = request("application/json", body).explain(&none);
    match canonical {
        Some(canonical) => {
            assert_eq!(rule, Rule::CanonicalJson);
            assert_eq!(
                request("application/json", &canonical).fingerprint(&none),
                fingerprint
            );
        }
        None => assert_ne!(rule, Rule::CanonicalJson),
    }
    let rules = rules();
    for content_type in [
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "text/plain",
    ] {
        let one = request(content_type, body).explain(&rules);
        assert_eq!(one, request(content_type, body).explain(&rules));
        let longer = [body, b"x"].concat();
        assert_ne!(one.0, request(content_type, &longer).fingerprint(&rules));
    }
}

fn request<'a>(content_type: &'a str, body: &'a [u8]) -> Request<'a> {
    Request::new("op", "POST", "/p")
        .content_type(content_type)
        .body(body)
}

fn rules() -> Rules {
    let options = Options {
        headers: Vec::new(),
        ignore: vec!["/i".into(), "/l/0".into()],
        defaults: vec![("/d".into(), "[1]".into()), ("/o/d".into(), "\"x\"".into())],
        decimals: vec!["/a".into(), "/o/a".into()],
        fields: Vec::new(),
        enums: vec!["/e".into()],
        timestamps: vec![("/t".into(), Precision::Second)],
    };
    Rules::new(&options).expect("these rules are valid")
}
