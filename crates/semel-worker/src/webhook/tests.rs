use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use semel_core::OperationId;

use super::*;
use crate::notice::{NoticeTarget, NoticeVerdict};

/// From the tests of the reference implementations of Standard Webhooks.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const SECONDS: i64 = 1_614_265_330;
const BODY: &[u8] = br#"{"test": 2432232314}"#;
const TAG: &str = "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

/// Signed elsewhere, over `1700000000.{"id":"evt_1"}` and over the body alone.
const STRIPE_SECRET: &str = "whsec_0123456789abcdef";
const STRIPE_TAG: &str = "dea1657bd5053cb0f8a75ebf0bd3d22e0cdeb79563b44db6b88864e522fb8bc4";
const PLAIN_SECRET: &str = "0123456789abcdef";
const PLAIN_TAG: &str = "058d37e5c6599b17f2260c5d771a650b4005c603b5b3f6e1134e79f85adacdea";
const PLAIN_BODY: &[u8] = br#"{"id":"evt_1"}"#;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn pointer(text: &str) -> Pointer {
    text.parse().unwrap()
}

fn rules() -> Rules {
    let on = |values: &[&str]| {
        Some(Match {
            pointer: pointer("/type"),
            equals: values.iter().map(|value| (*value).into()).collect(),
        })
    };
    Rules {
        completed: on(&["paid", "declined"]),
        not_executed: on(&["never_created"]),
        response_body: Some(pointer("/data/object")),
        statuses: vec![("declined".into(), 402)],
        status: 201,
        ..Rules::new(RecordSelector::Operation(pointer("/data/operation_id")))
    }
}

fn source(scheme: Scheme, secrets: &[&str]) -> Source {
    Source::new("psp", scheme, secrets.iter().copied(), rules()).unwrap()
}

fn hmac(timestamp: bool) -> Scheme {
    Scheme::Hmac {
        signature: HeaderName::from_static("x-signature"),
        timestamp: timestamp.then(|| HeaderName::from_static("x-time")),
        event_id: pointer("/id"),
    }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn standard(id: &str, seconds: &str, signature: &str) -> HeaderMap {
    headers(&[
        ("webhook-id", id),
        ("webhook-timestamp", seconds),
        ("webhook-signature", signature),
    ])
}

fn v1(tag: &str) -> String {
    format!("v1,{tag}")
}

fn check(source: &Source, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Option<Refused> {
    source.verify(headers, body, now).err()
}

#[test]
fn the_vector_of_standard_webhooks_is_verified() {
    let source = source(Scheme::Standard, &[SECRET]);
    let signed = standard(ID, &SECONDS.to_string(), &v1(TAG));
    let verified = source.verify(&signed, BODY, at(SECONDS)).unwrap();
    assert_eq!((verified.id, verified.body), (Some(ID), BODY));
    // The prefix is not part of the secret.
    let bare = self::source(Scheme::Standard, &[&SECRET["whsec_".len()..]]);
    assert_eq!(check(&bare, &signed, BODY, at(SECONDS)), None);
}

#[test]
fn every_part_is_signed() {
    let source = source(Scheme::Standard, &[SECRET]);
    let seconds = SECONDS.to_string();
    for (id, seconds, tag, body) in [
        ("msg_p5jXN8AQM9LWM0D4loKWxJeK", &*seconds, TAG, BODY),
        (ID, "1614265331", TAG, BODY),
        (ID, "01614265330", TAG, BODY),
        (ID, &seconds, TAG, &b"{\"test\": 2432232315}"[..]),
        (ID, &seconds, TAG, b"{\"test\": 2432232314} "),
        (ID, &seconds, TAG, b""),
        (ID, &seconds, &TAG.replace("g0hM", "g0hN"), BODY),
    ] {
        let refused = check(&source, &standard(id, seconds, &v1(tag)), body, at(SECONDS));
        assert_eq!(refused, Some(Refused::Signature), "{id} {seconds} {tag}");
    }
    let other = self::source(
        Scheme::Standard,
        &["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    );
    let signed = standard(ID, &seconds, &v1(TAG));
    assert_eq!(
        check(&other, &signed, BODY, at(SECONDS)),
        Some(Refused::Signature)
    );
}

#[test]
fn every_bit_of_a_body_is_signed() {
    let source = source(hmac(false), &[PLAIN_SECRET]);
    let signed = headers(&[("x-signature", PLAIN_TAG)]);
    assert_eq!(check(&source, &signed, PLAIN_BODY, at(0)), None);
    for bit in 0..PLAIN_BODY.len() * 8 {
        let mut body = PLAIN_BODY.to_vec();
        body[bit / 8] ^= 1 << (bit % 8);
        let refused = check(&source, &signed, &body, at(0));
        assert_eq!(refused, Some(Refused::Signature), "bit {bit}");
    }
}

#[test]
fn a_time_is_accepted_within_the_tolerance_exactly() {
    let source = source(Scheme::Standard, &[SECRET]);
    let signed = standard(ID, &SECONDS.to_string(), &v1(TAG));
    let micros = SECONDS * 1_000_000;
    let tolerance = 300 * 1_000_000;
    for (now, expected) in [
        (micros + tolerance, None),
        (micros + tolerance + 1, Some(Refused::Old)),
        (micros - tolerance, None),
        (micros - tolerance - 1, Some(Refused::Early)),
        (i64::MAX, Some(Refused::Old)),
        (i64::MIN, Some(Refused::Early)),
    ] {
        let now = Timestamp::from_micros(now);
        assert_eq!(check(&source, &signed, BODY, now), expected, "{now:?}");
    }
    let strict = source.tolerance(Duration::from_secs(1));
    assert_eq!(check(&strict, &signed, BODY, at(SECONDS + 1)), None);
    assert_eq!(
        check(&strict, &signed, BODY, at(SECONDS + 2)),
        Some(Refused::Old)
    );
}

#[test]
fn an_unsigned_time_gives_the_same_refusal() {
    let source = source(Scheme::Standard, &[SECRET]);
    let old = standard(ID, "1", &v1(TAG));
    assert_eq!(
        check(&source, &old, BODY, at(SECONDS)),
        Some(Refused::Signature)
    );
}

#[test]
fn any_secret_and_any_signature_may_match() {
    let others = ["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", SECRET];
    let wrong = STANDARD.encode([7; 32]);
    for secrets in [others, [others[1], others[0]]] {
        let source = source(Scheme::Standard, &secrets);
        for list in [
            v1(TAG),
            format!("v1,{wrong} v1,{TAG}"),
            format!("v1,{TAG} v1,{wrong}"),
            format!("v1a,whatever v1,{TAG} v2,x"),
        ] {
            let signed = standard(ID, &SECONDS.to_string(), &list);
            assert_eq!(check(&source, &signed, BODY, at(SECONDS)), None, "{list}");
        }
    }
}

#[test]
fn malformed_or_repeated_headers_are_refused() {
    let source = source(Scheme::Standard, &[SECRET]);
    let seconds = SECONDS.to_string();
    let many = vec![v1(TAG); MAX_SIGNATURES + 1].join(" ");
    for (id, seconds, list) in [
        (ID, &*seconds, ""),
        (ID, &seconds, "v1,"),
        (ID, &seconds, "v1"),
        (ID, &seconds, TAG),
        (ID, &seconds, &format!("v2,{TAG}")),
        (ID, &seconds, &format!("V1,{TAG}")),
        (ID, &seconds, &format!("v1,{}", TAG.trim_end_matches('='))),
        (ID, &seconds, &format!("v1,{TAG}  v1,{TAG}")),
        (ID, &seconds, &format!("v1,{TAG} v1,!!!!")),
        // Of the right beginning, and not 32 bytes.
        (ID, &seconds, &format!("v1,{}", &TAG[..40])),
        (ID, &seconds, &many),
        ("", &seconds, &v1(TAG)),
        (ID, "", &v1(TAG)),
        (ID, "+1614265330", &v1(TAG)),
        (ID, "-1", &v1(TAG)),
        (ID, "1614265330.0", &v1(TAG)),
        (ID, "9999999999999", &v1(TAG)),
    ] {
        let refused = check(&source, &standard(id, seconds, list), BODY, at(SECONDS));
        assert!(
            matches!(refused, Some(Refused::Malformed(..))),
            "{id:?} {seconds:?} {list:?}: {refused:?}"
        );
    }
    let whole = standard(ID, &seconds, &v1(TAG));
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut without = whole.clone();
        without.remove(name);
        let refused = check(&source, &without, BODY, at(SECONDS));
        assert!(matches!(refused, Some(Refused::Missing(_))), "{name}");
        let mut twice = whole.clone();
        twice.append(name, whole[name].clone());
        let refused = check(&source, &twice, BODY, at(SECONDS));
        assert!(matches!(refused, Some(Refused::Repeated(_))), "{name}");
        let mut bytes = whole.clone();
        bytes.insert(name, HeaderValue::from_bytes(b"v1,\xff").unwrap());
        let refused = check(&source, &bytes, BODY, at(SECONDS));
        assert!(matches!(refused, Some(Refused::Malformed(..))), "{name}");
    }
}

#[test]
fn stripe_signatures_are_verified() {
    let source = source(
        Scheme::Stripe,
        &["whsec_another-long-secret", STRIPE_SECRET],
    );
    let now = at(1_700_000_000);
    let one = |value: &str| headers(&[("stripe-signature", value)]);
    let good = format!("t=1700000000,v1={STRIPE_TAG}");
    for value in [
        good.clone(),
        format!("t=1700000000,v1={},v1={STRIPE_TAG}", "0".repeat(64)),
        format!("v0=old,v1={STRIPE_TAG},t=1700000000"),
        format!("t=1700000000,v1={}", STRIPE_TAG.to_uppercase()),
    ] {
        assert_eq!(
            check(&source, &one(&value), PLAIN_BODY, now),
            None,
            "{value}"
        );
    }
    for value in [
        String::new(),
        "t=1700000000".to_owned(),
        format!("v1={STRIPE_TAG}"),
        format!("t=1700000000,v0={STRIPE_TAG}"),
        format!("t=1700000000,v1={}", &STRIPE_TAG[..62]),
        format!("t=1700000000,v1={STRIPE_TAG}00"),
        format!("t=1700000000,v1=+{}", &STRIPE_TAG[..63]),
        format!("t=1,t=1700000000,v1={STRIPE_TAG}"),
        format!("t=1700000000,t=1700000000,v1={STRIPE_TAG}"),
        format!("t=1700000000, v1={STRIPE_TAG},x"),
    ] {
        let refused = check(&source, &one(&value), PLAIN_BODY, now);
        assert!(
            matches!(refused, Some(Refused::Malformed(..))),
            "{value:?}: {refused:?}"
        );
    }
    let moved = format!("t=1700000001,v1={STRIPE_TAG}");
    assert_eq!(
        check(&source, &one(&moved), PLAIN_BODY, now),
        Some(Refused::Signature)
    );
    assert_eq!(
        check(&source, &one(&good), PLAIN_BODY, at(1_700_000_301)),
        Some(Refused::Old)
    );
    let mut twice = one(&good);
    twice.append("stripe-signature", HeaderValue::from_str(&good).unwrap());
    assert!(matches!(
        check(&source, &twice, PLAIN_BODY, now),
        Some(Refused::Repeated(_))
    ));
}

#[test]
fn a_plain_hmac_with_and_without_a_time() {
    let plain = source(hmac(false), &[PLAIN_SECRET]);
    let raw: Vec<u8> = (0..32)
        .map(|at| u8::from_str_radix(&PLAIN_TAG[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let base64 = STANDARD.encode(raw);
    for value in [
        PLAIN_TAG.to_owned(),
        format!("sha256={PLAIN_TAG}"),
        base64.clone(),
        format!("sha256={base64}"),
    ] {
        let signed = headers(&[("x-signature", &value)]);
        assert_eq!(check(&plain, &signed, PLAIN_BODY, at(0)), None, "{value}");
    }
    for value in [
        "",
        "sha256=",
        "sha1=00",
        "sha256=sha256=00",
        &PLAIN_TAG[1..],
    ] {
        let signed = headers(&[("x-signature", value)]);
        let refused = check(&plain, &signed, PLAIN_BODY, at(0));
        assert!(matches!(refused, Some(Refused::Malformed(..))), "{value}");
    }
    // Signed like Stripe's, under names of its own.
    let timed = source(hmac(true), &[STRIPE_SECRET]);
    let signed = headers(&[("x-signature", STRIPE_TAG), ("x-time", "1700000000")]);
    assert_eq!(check(&timed, &signed, PLAIN_BODY, at(1_700_000_000)), None);
    assert_eq!(
        check(&timed, &signed, PLAIN_BODY, at(1_700_001_000)),
        Some(Refused::Old)
    );
    // Without its time it is not taken for one that has none.
    let untimed = headers(&[("x-signature", PLAIN_TAG)]);
    let timed = source(hmac(true), &[PLAIN_SECRET]);
    assert!(matches!(
        check(&timed, &untimed, PLAIN_BODY, at(0)),
        Some(Refused::Missing(_))
    ));
}

#[test]
fn weak_secrets_are_refused() {
    let new = |scheme: &Scheme, secrets: &[&str]| {
        Source::new("psp", scheme.clone(), secrets.iter().copied(), rules()).err()
    };
    let empty = Some(Error::Secret(SecretError::Empty));
    let short = |length| Some(Error::Secret(SecretError::Short(length)));
    for scheme in [Scheme::Standard, Scheme::Stripe, hmac(false)] {
        assert_eq!(new(&scheme, &[]), Some(Error::Secrets(0)));
        assert_eq!(new(&scheme, &[""]), empty);
        assert_eq!(new(&scheme, &[SECRET, ""]), empty, "one of two");
        for blank in [" ", "\n", &format!("{SECRET}\n"), &format!(" {SECRET}")] {
            let refused = Some(Error::Secret(SecretError::Blank));
            assert_eq!(new(&scheme, &[blank]), refused, "{blank:?}");
        }
        assert_eq!(
            new(&scheme, &[SECRET; MAX_SECRETS + 1]),
            Some(Error::Secrets(MAX_SECRETS + 1))
        );
        assert_eq!(new(&scheme, &[SECRET; MAX_SECRETS]), None);
    }
    assert_eq!(new(&Scheme::Standard, &["whsec_"]), empty);
    assert_eq!(new(&Scheme::Stripe, &["whsec_"]), empty);
    let fifteen = STANDARD.encode([1; 15]);
    assert_eq!(new(&Scheme::Standard, &[&fifteen]), short(15));
    assert_eq!(new(&Scheme::Stripe, &["whsec_123456789012345"]), short(15));
    assert_eq!(new(&hmac(false), &["123456789012345"]), short(15));
    let sixteen = STANDARD.encode([1; 16]);
    assert_eq!(new(&Scheme::Standard, &[&sixteen]), None);
    assert_eq!(
        new(&Scheme::Standard, &[sixteen.trim_end_matches('=')]),
        None
    );
    assert_eq!(
        new(&Scheme::Standard, &["not base64, but long enough"]),
        Some(Error::Secret(SecretError::Base64))
    );
}

#[test]
fn names_and_secrets_do_not_leak() {
    for name in ["", "a/b", "a b", "ä", &"x".repeat(256)] {
        let refused = Source::new(name, Scheme::Stripe, [STRIPE_SECRET], rules());
        assert_eq!(refused.err(), Some(Error::Name(name.to_owned())));
    }
    let shown = format!("{:?}", source(Scheme::Stripe, &[STRIPE_SECRET]));
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
}

/// What an event says that came by Standard Webhooks.
fn read_with(rules: Rules, body: &str) -> Result<Meaning, Unreadable> {
    let source = Source::new("psp", Scheme::Standard, [SECRET], rules).unwrap();
    let verified = Verified {
        id: Some("evt_1"),
        body: body.as_bytes(),
    };
    let reading = source.read(&verified)?;
    assert_eq!(&*reading.id, "evt_1");
    Ok(reading.meaning)
}

fn notice(meaning: Meaning) -> crate::notice::Notice {
    match meaning {
        Meaning::Notice(notice) => *notice,
        other @ (Meaning::Nothing | Meaning::Unusable(_)) => panic!("{other:?}"),
    }
}

const OPERATION: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn event(kind: &str) -> String {
    format!(
        r#"{{"type":"{kind}","data":{{"operation_id":"{OPERATION}","object":{{"amount": 9007199254740993, "b":[1.0]}}}}}}"#
    )
}

#[test]
fn an_event_is_read_as_a_notice() {
    let id: OperationId = OPERATION.parse().unwrap();
    for (kind, status) in [("paid", 201), ("declined", 402)] {
        let rules = Rules {
            schema_version: 3,
            ..rules()
        };
        let notice = notice(read_with(rules, &event(kind)).unwrap());
        assert_eq!(notice.target, NoticeTarget::Operation(id));
        assert_eq!(notice.evidence, event(kind));
        let NoticeVerdict::Completed(response) = notice.verdict else {
            panic!("{:?}", notice.verdict);
        };
        assert_eq!((response.status, response.schema_version), (status, 3));
        // The digits are those that were sent.
        let body = response.body.unwrap();
        assert_eq!(body, r#"{"amount": 9007199254740993, "b":[1.0]}"#);
        assert_eq!(
            response.headers,
            [("content-type".into(), "application/json".into())]
        );
    }
    let notice = notice(read_with(rules(), &event("never_created")).unwrap());
    assert_eq!(notice.verdict, NoticeVerdict::NotExecuted);
}

#[test]
fn an_event_that_matches_no_rule_means_nothing() {
    for body in [
        &*event("refunded"),
        &event("Paid"),
        "{}",
        "[]",
        "null",
        r#"{"type":1}"#,
        r#"{"type":["paid"]}"#,
        r#"{"Type":"paid"}"#,
    ] {
        assert_eq!(
            read_with(rules(), body).unwrap(),
            Meaning::Nothing,
            "{body}"
        );
    }
}

#[test]
fn an_incomplete_event_is_unusable() {
    let named = |operation: &str| {
        format!(r#"{{"type":"paid","data":{{"operation_id":{operation},"object":{{}}}}}}"#)
    };
    for body in [
        named("null"),
        named("7"),
        named("\"\""),
        named("\"pay_1\""),
        r#"{"type":"paid","data":{"object":{}}}"#.to_owned(),
        format!(r#"{{"type":"paid","data":{{"operation_id":"{OPERATION}"}}}}"#),
        format!(r#"{{"type":"paid","data":{{"operation_id":"{OPERATION}","object":null}}}}"#),
    ] {
        let meaning = read_with(rules(), &body).unwrap();
        assert!(matches!(meaning, Meaning::Unusable(_)), "{body}");
    }
    let torn = Rules {
        not_executed: Some(Match {
            pointer: pointer("/data/operation_id"),
            equals: vec![OPERATION.into()],
        }),
        ..rules()
    };
    let meaning = read_with(torn, &event("paid")).unwrap();
    assert!(matches!(meaning, Meaning::Unusable(_)), "{meaning:?}");
}

#[test]
fn without_response_body_no_body_is_stored() {
    let rules = Rules {
        response_body: None,
        ..rules()
    };
    let NoticeVerdict::Completed(response) =
        notice(read_with(rules, &event("paid")).unwrap()).verdict
    else {
        panic!("not completed");
    };
    assert_eq!((response.body, response.headers.len()), (None, 0));
}

#[test]
fn ambiguous_json_is_refused() {
    for body in [
        "",
        "{",
        "paid",
        "{} {}",
        "\u{feff}{}",
        r#"{"type":"paid","type":"refunded"}"#,
        r#"{"type":"refunded","\u0074ype":"paid"}"#,
        r#"{"deep":{"a":1,"a":1}}"#,
        &"[".repeat(200),
    ] {
        let refused = read_with(rules(), body);
        assert!(matches!(refused, Err(Unreadable::Json(_))), "{body}");
    }
}

#[test]
fn an_event_needs_an_id() {
    let read = |scheme: Scheme, id, body: &str| {
        let source = source(scheme, &[SECRET]);
        let body = body.as_bytes();
        source.read(&Verified { id, body }).map(|event| event.id)
    };
    let long = "x".repeat(256);
    for scheme in [Scheme::Stripe, hmac(false)] {
        let named = |id: &str| read(scheme.clone(), None, &format!("{{\"id\":{id}}}"));
        assert_eq!(named("\"evt_1\"").as_deref(), Ok("evt_1"));
        assert_eq!(named("42").as_deref(), Ok("42"));
        for id in [
            "null",
            "\"\"",
            "-1",
            "1.5",
            "1e3",
            "{}",
            &format!("{long:?}"),
        ] {
            assert_eq!(named(id), Err(Unreadable::Id), "{id}");
        }
        assert_eq!(read(scheme.clone(), None, "{}"), Err(Unreadable::Id));
    }
    assert_eq!(
        read(Scheme::Standard, Some(&long), "{}"),
        Err(Unreadable::Id)
    );
}

#[test]
fn records_are_selected_by_key_and_by_resource() {
    let by_key = |tenant| {
        Rules {
            response_body: None,
            ..rules()
        }
        .with_selector(RecordSelector::Key {
            key: pointer("/list/1/k~1y"),
            tenant,
            operations: vec!["create_payment".into()],
        })
    };
    let body = r#"{"type":"paid","list":[{},{"k/y":"abc"}],"account":7}"#;
    for (tenant, expected) in [
        (TenantSelector::At(pointer("/account")), "7"),
        (TenantSelector::Fixed("default".into()), "default"),
    ] {
        let NoticeTarget::Key {
            tenant,
            key,
            operations,
        } = notice(read_with(by_key(tenant), body).unwrap()).target
        else {
            panic!("not by key");
        };
        assert_eq!((&*tenant, key.as_str()), (expected, "abc"));
        assert_eq!(operations, ["create_payment".into()]);
    }
    for wrong in [
        r#"{"type":"paid","list":[{},{"k/y":""}],"account":7}"#,
        r#"{"type":"paid","list":[{},{"k/y":"é"}],"account":7}"#,
        r#"{"type":"paid","list":[{},{"k/y":"abc"}],"account":""}"#,
        r#"{"type":"paid","list":[{"k/y":"abc"}],"account":7}"#,
        r#"{"type":"paid","list":{"01":{"k/y":"abc"}},"account":7}"#,
    ] {
        let rules = by_key(TenantSelector::At(pointer("/account")));
        let meaning = read_with(rules, wrong).unwrap();
        assert!(matches!(meaning, Meaning::Unusable(_)), "{wrong}");
    }
    let by_resource = Rules {
        response_body: Some(pointer("")),
        ..rules()
    }
    .with_selector(RecordSelector::Resource(pointer("/list/0")));
    let found = notice(read_with(by_resource, r#"{"type":"paid","list":["pay_1"]}"#).unwrap());
    assert_eq!(found.target, NoticeTarget::Resource("pay_1".into()));
}

impl Rules {
    fn with_selector(self, selector: RecordSelector) -> Self {
        Self { selector, ..self }
    }
}

/// Google's vectors for HMAC-SHA256, altered tags among them.
#[test]
fn wycheproof_vectors_pass() {
    let root = std::env::var_os("SEMEL_VECTORS").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"),
        std::path::PathBuf::from,
    );
    let file = root.join("webhooks/testvectors_v1/hmac_sha256_test.json");
    let Ok(text) = std::fs::read(&file) else {
        println!("skipped: no vectors at {}", file.display());
        return;
    };
    let vectors: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let bytes = |value: &serde_json::Value| -> Vec<u8> {
        let text = value.as_str().unwrap();
        (0..text.len() / 2)
            .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
            .collect()
    };
    let (mut valid, mut invalid) = (0, 0);
    for group in vectors["testGroups"].as_array().unwrap() {
        if group["tagSize"] != 256 {
            continue;
        }
        for test in group["tests"].as_array().unwrap() {
            let secret = Secret::of(&bytes(&test["key"]));
            let tag = test["tag"].as_str().unwrap();
            let signed = headers(&[("x-signature", tag)]);
            let claim = Claim::read(&hmac(false), &signed).unwrap();
            let right = secret::signed(&[secret], &claim, &bytes(&test["msg"]));
            assert_eq!(right, test["result"] == "valid", "{}", test["tcId"]);
            *(if right { &mut valid } else { &mut invalid }) += 1;
        }
    }
    assert!(valid > 20 && invalid > 20, "{valid} {invalid}");
}
