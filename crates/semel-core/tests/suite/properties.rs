//! Properties of canonical JSON and of fingerprints, over random values.

use proptest::collection::vec;
use proptest::prelude::*;
use semel_core::canonical::{guarded, pure};
use semel_core::fingerprint::{Request, Rules};
use semel_core::{Fingerprint, Key};
use serde_json::{Map, Number, Value};

fn fingerprint(body: &[u8]) -> Fingerprint {
    Request::new("op", "POST", "/p")
        .content_type("application/json")
        .body(body)
        .fingerprint(&Rules::default())
}

/// Numbers that a double can represent: the reference library supports no others.
fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-1_000_000_i64..1_000_000).prop_map(Value::from),
        (-(1_i64 << 53)..(1_i64 << 53)).prop_map(Value::from),
        any::<f64>()
            .prop_filter("finite, and not -0", |float| float.is_finite()
                && (*float != 0.0 || float.is_sign_positive()))
            .prop_map(|float| Number::from_f64(float).map_or(Value::Null, Value::Number)),
        (-99_999_i32..99_999, 0_i32..9).prop_map(|(digits, places)| {
            let text = format!("{digits}e-{places}");
            Value::from(text.parse::<f64>().unwrap() + 0.0)
        }),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{0,3}",
        "[\\PC\\x00-\\x1f\"\\\\]{0,6}",
        "[\u{e000}-\u{ffff}\u{10000}-\u{10010}z]{0,3}"
    ]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((text(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes the same value with reversed members, other whitespace and escapes.
fn respell(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            out.push_str("{ ");
            for (at, (name, value)) in members.iter().rev().enumerate() {
                out.push_str(if at == 0 { "" } else { " ,\r\n" });
                respell(&Value::from(name.as_str()), out);
                out.push_str("\t:");
                respell(value, out);
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                out.push_str(if at == 0 { "\n" } else { " , " });
                respell(element, out);
            }
            out.push_str(" ]");
        }
        Value::String(text) => {
            out.push('"');
            out.extend(text.encode_utf16().map(|unit| format!("\\u{unit:04X}")));
            out.push('"');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
    }
}

fn count_leaves(value: &Value) -> usize {
    match value {
        Value::Array(elements) if !elements.is_empty() => elements.iter().map(count_leaves).sum(),
        Value::Object(members) if !members.is_empty() => members.values().map(count_leaves).sum(),
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => 1,
    }
}

/// Changes the leaf with index `at`; empty arrays and objects count as leaves, too.
fn change_leaf(value: &mut Value, at: &mut usize) -> bool {
    match value {
        Value::Array(elements) if !elements.is_empty() => {
            elements.iter_mut().any(|element| change_leaf(element, at))
        }
        Value::Object(members) if !members.is_empty() => {
            members.values_mut().any(|member| change_leaf(member, at))
        }
        leaf if *at == 0 => {
            *leaf = match leaf {
                Value::Null => Value::Bool(false),
                Value::Bool(flag) => Value::Bool(!*flag),
                Value::Number(number) => Value::from(number.to_string()),
                Value::String(text) => Value::from(format!("{text} ")),
                Value::Array(_) => Value::Object(Map::new()),
                Value::Object(_) => Value::Null,
            };
            true
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => {
            *at -= 1;
            false
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn canonical_form_equals_that_of_the_reference_library(value in json()) {
        let body = serde_json::to_vec(&value).unwrap();
        let canonical = pure(&body).unwrap();
        prop_assert_eq!(&canonical, &serde_json_canonicalizer::to_vec(&value).unwrap());
        prop_assert_eq!(&pure(&canonical).unwrap(), &canonical);
        prop_assert_eq!(&guarded(&body).unwrap(), &canonical);
    }

    #[test]
    fn equal_json_in_another_spelling_has_the_same_fingerprint(value in json()) {
        let mut other = String::new();
        respell(&value, &mut other);
        let body = serde_json::to_vec(&value).unwrap();
        prop_assert_eq!(fingerprint(&body), fingerprint(other.as_bytes()));
    }

    #[test]
    fn changing_any_leaf_changes_the_fingerprint(
        value in json(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut changed = value.clone();
        let mut leaf = at.index(count_leaves(&value));
        prop_assert!(change_leaf(&mut changed, &mut leaf));
        let of = |value: &Value| fingerprint(&serde_json::to_vec(value).unwrap());
        prop_assert_ne!(of(&value), of(&changed));
    }

    /// Two numbers have the same canonical form exactly if their values are equal. This compares
    /// the values as integers, scaled to the smallest exponent.
    #[test]
    fn numbers_have_equal_canonical_forms_only_if_equal_values(
        one in (-999_i128..999, 0_u32..28, 0_u32..4),
        other in (-999_i128..999, 0_u32..28, 0_u32..4),
        near in any::<bool>(),
        offset in -2_i128..=2,
    ) {
        let scaled = |(digits, zeros, _): (i128, u32, u32)| digits * 10_i128.pow(zeros);
        let first = scaled(one);
        let second = if near { first + offset } else { scaled(other) };
        let spell = |value: i128, (_, _, places): (i128, u32, u32)| {
            format!("{value}{}e-{places}", "0".repeat(places as usize))
        };
        let (a, b) = (guarded(spell(first, one).as_bytes()), guarded(spell(second, other).as_bytes()));
        if let (Ok(a), Ok(b)) = (&a, &b) {
            prop_assert_eq!(a == b, first == second);
        }
        if first.abs() <= 1 << 53 && first != 0 {
            prop_assert!(a.is_ok());
        }
    }

    #[test]
    fn canonical_form_of_any_double_round_trips(float in any::<f64>()) {
        prop_assume!(float.is_finite() && float != 0.0);
        let printed = serde_json_canonicalizer::to_vec(&float).unwrap();
        prop_assert_eq!(&guarded(&printed).unwrap(), &printed);
        // Rust's output is as short, but breaks ties differently.
        prop_assert_eq!(&pure(format!("{float:e}").as_bytes()).unwrap(), &printed);
        let back: f64 = std::str::from_utf8(&printed).unwrap().parse().unwrap();
        prop_assert_eq!(back.to_bits(), float.to_bits());
        // Its exact decimal expansion is rounded back to it.
        let exact = format!("{float:.1100}");
        prop_assert_eq!(&pure(exact.as_bytes()).unwrap(), &printed);
    }

    #[test]
    fn arbitrary_bodies_get_a_stable_fingerprint(
        body in vec(any::<u8>(), 0..64),
        near in "[\\[\\]{}:,\"\\\\0-9eE.+a-z -]{0,24}",
        content_type in "(application/json|multipart/form-data; boundary=b|application/x-www-form-urlencoded|[ -~]{0,20})",
    ) {
        for body in [&body[..], near.as_bytes()] {
            let request = Request::new("op", "POST", "/p").content_type(&content_type).body(body);
            prop_assert_eq!(request.fingerprint(&Rules::default()), request.fingerprint(&Rules::default()));
            let _ = (pure(body), guarded(body), Key::new(near.as_str()));
        }
    }
}
