use http::Request;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::json;

use super::jwt::{Expected, Keys};
use super::*;

fn of(from: &TenantFrom, headers: &[(&str, &str)]) -> Option<String> {
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    match resolver(from)(&parts) {
        Tenant::Known(name) => Some(name.into()),
        Tenant::Unresolved => None,
        other @ (Tenant::Unavailable { .. } | Tenant::Pending(_)) => panic!("{other:?}"),
    }
}

#[test]
fn different_credentials_are_different_tenants_and_are_hashed() {
    let from = TenantFrom::Authorization { rotating: false };
    let of = |headers: &[(&str, &str)]| of(&from, headers);
    let a = of(&[("authorization", "Bearer a")]).unwrap();
    assert_eq!(a.len(), 34);
    assert_eq!(
        of(&[("Authorization", "Bearer a"), ("X-Api-Key", "k")]),
        Some(a.clone())
    );
    let others = [
        of(&[("authorization", "Bearer b")]).unwrap(),
        of(&[("x-api-key", "Bearer a")]).unwrap(),
        of(&[]).unwrap(),
    ];
    assert!(!others.contains(&a));
    assert_eq!(others[2], tenant::ANONYMOUS);
    for refused in [
        &[("authorization", "a"), ("authorization", "a")][..],
        &[("x-api-key", "a"), ("x-api-key", "a")],
        &[("authorization", "")],
        &[("authorization", ""), ("x-api-key", "a")],
    ] {
        assert_eq!(of(refused), None, "{refused:?}");
    }
}

#[test]
fn a_header_is_there_once_and_has_a_name() {
    let from = TenantFrom::Header(HeaderName::from_static("x-account-id"));
    assert_eq!(of(&from, &[("X-Account-Id", "acme")]).unwrap(), "acme");
    let long = "a".repeat(MAX_TENANT_BYTES + 1);
    for refused in [
        &[][..],
        &[("x-account-id", "")],
        &[("x-account-id", " ")],
        &[("x-account-id", "ä")],
        &[("x-account-id", &long)],
        &[("x-account-id", "acme"), ("x-account-id", "acme")],
        &[("authorization", "acme")],
    ] {
        assert_eq!(of(&from, refused), None, "{refused:?}");
    }
    assert_eq!(of(&TenantFrom::None, &[]).unwrap(), tenant::ONLY_ONE);
}

/// An issuer with an Ed25519 key of its own.
pub(super) struct Issuer {
    key: EncodingKey,
    public: Vec<u8>,
}

impl Issuer {
    pub(super) fn new() -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        Self {
            key: EncodingKey::from_ed_der(&pair.serialize_der()),
            public: pair.public_key_raw().to_vec(),
        }
    }

    pub(super) fn jwk(&self, kid: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "use": "sig", "x": base64(&self.public)})
    }

    pub(super) fn sign(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = kid.map(str::to_owned);
        encode(&header, claims, &self.key).unwrap()
    }
}

/// Of URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(DIGITS[(word >> (18 - 6 * digit) & 63) as usize].into());
        }
    }
    text
}

pub(super) fn claims(sub: impl Into<Value>) -> Value {
    json!({"sub": sub.into(), "exp": get_current_timestamp() + 600})
}

fn jwt(keys: Keys) -> TenantFrom {
    TenantFrom::Jwt {
        claim: "sub".into(),
        keys: KeySource::Fixed(Arc::new(keys)),
    }
}

fn bearing(from: &TenantFrom, token: &str) -> Option<String> {
    of(from, &[("authorization", &format!("Bearer {token}"))])
}

#[test]
fn keys_are_chosen_by_their_name() {
    let [one, two, other] = [Issuer::new(), Issuer::new(), Issuer::new()];
    let unknown = json!({"kty": "new", "kid": "three"});
    let encryption = json!({"kty": "OKP", "crv": "Ed25519", "use": "enc", "x": "AAAA"});
    let set = json!({"keys": [unknown, encryption, one.jwk("one"), two.jwk("two")]}).to_string();
    let from = jwt(Keys::from_jwks(&set, &Expected::default()).unwrap());
    let acme = claims("acme");
    for (token, tenant) in [
        (one.sign(Some("one"), &acme), Some("acme")),
        (two.sign(Some("two"), &acme), Some("acme")),
        (two.sign(Some("two"), &claims(7)), Some("7")),
        (one.sign(Some("two"), &acme), None),
        (one.sign(Some("three"), &acme), None),
        (one.sign(None, &acme), None),
        (other.sign(Some("one"), &acme), None),
    ] {
        assert_eq!(bearing(&from, &token).as_deref(), tenant);
    }
    let only = json!({"keys": [one.jwk("one")]}).to_string();
    let from = jwt(Keys::from_jwks(&only, &Expected::default()).unwrap());
    assert_eq!(
        bearing(&from, &one.sign(None, &acme)).as_deref(),
        Some("acme")
    );
    assert_eq!(bearing(&from, &one.sign(Some("two"), &acme)), None);
}

#[test]
fn the_algorithm_is_that_of_the_key() {
    let issuer = Issuer::new();
    let jwk = issuer.jwk("one");
    let set = json!({"keys": [jwk]}).to_string();
    let from = jwt(Keys::from_jwks(&set, &Expected::default()).unwrap());
    let acme = claims("acme");
    assert!(bearing(&from, &issuer.sign(Some("one"), &acme)).is_some());
    // The public key taken for a secret, in every form in which it is known.
    let x = jwk["x"].as_str().unwrap().as_bytes();
    for secret in [&issuer.public[..], x, set.as_bytes(), b""] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            header.kid = Some("one".to_owned());
            let forged = encode(&header, &acme, &EncodingKey::from_secret(secret)).unwrap();
            assert_eq!(bearing(&from, &forged), None);
        }
    }
    // No signature at all.
    for alg in ["none", "None", "NONE", ""] {
        let header = base64(json!({"alg": alg, "kid": "one"}).to_string().as_bytes());
        let body = base64(acme.to_string().as_bytes());
        for signature in ["", "AAAA"] {
            assert_eq!(
                bearing(&from, &format!("{header}.{body}.{signature}")),
                None
            );
        }
    }
    // Another body under a good signature.
    let good = issuer.sign(Some("one"), &acme);
    let [header, _, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("{good}")
    };
    let body = base64(claims("other").to_string().as_bytes());
    assert_eq!(
        bearing(&from, &format!("{header}.{body}.{signature}")),
        None
    );
    // An extension that must be understood.
    let mut header = Header::new(Algorithm::EdDSA);
    header.crit = Some(vec!["exp2".to_owned()]);
    let critical = encode(&header, &acme, &issuer.key).unwrap();
    assert_eq!(bearing(&from, &critical), None);
}

#[test]
fn a_secret_verifies_and_claims_are_checked() {
    let now = get_current_timestamp();
    let expected = Expected {
        issuer: Some("https://issuer".into()),
        audience: Some("payments".into()),
    };
    let strict = jwt(Keys::from_secret(b"secret", &expected));
    let plain = jwt(Keys::from_secret(b"secret", &Expected::default()));
    let full =
        json!({"sub": "acme", "exp": now + 600, "iss": "https://issuer", "aud": ["x", "payments"]});
    let but = |name: &str, value: Value| {
        let mut claims = full.clone();
        claims[name] = value;
        claims
    };
    let without = |name: &str| {
        let mut claims = full.clone();
        claims.as_object_mut().unwrap().remove(name);
        claims
    };
    for (claims, by_strict, by_plain) in [
        (full.clone(), true, true),
        (but("exp", json!(now - 3600)), false, false),
        (but("exp", json!(now - 30)), true, true), // within the leeway
        (but("exp", json!("tomorrow")), false, false),
        (without("exp"), false, false),
        (but("nbf", json!(now + 3600)), false, false),
        (but("iss", json!("https://other")), false, true),
        (without("iss"), false, true),
        (but("aud", json!("other")), false, true),
        (without("aud"), false, true),
        (without("sub"), false, false),
        (but("sub", json!("")), false, false),
        (but("sub", json!(null)), false, false),
        (but("sub", json!(1.5)), false, false),
        (but("sub", json!(["acme"])), false, false),
        (but("sub", json!("a".repeat(256))), false, false),
        (but("sub", json!("a\0b")), false, false),
    ] {
        let key = EncodingKey::from_secret(b"secret");
        let token = encode(&Header::default(), &claims, &key).unwrap();
        assert_eq!(bearing(&strict, &token).is_some(), by_strict, "{claims}");
        assert_eq!(bearing(&plain, &token).is_some(), by_plain, "{claims}");
    }
    let forged = encode(
        &Header::default(),
        &full,
        &EncodingKey::from_secret(b"other"),
    )
    .unwrap();
    assert_eq!(bearing(&plain, &forged), None);
    let good = encode(
        &Header::default(),
        &full,
        &EncodingKey::from_secret(b"secret"),
    )
    .unwrap();
    let bearer = format!("bearer {good}");
    assert!(of(&plain, &[("authorization", &bearer)]).is_some());
    for refused in [
        &[][..],
        &[("authorization", &*good)],
        &[("authorization", "Basic YTpi")],
        &[("authorization", &bearer), ("authorization", &bearer)],
        &[("x-api-key", &bearer)],
    ] {
        assert_eq!(of(&plain, refused), None);
    }
}

#[test]
fn a_jwt_that_expires_needs_its_own_rule() {
    let token = Issuer::new().sign(Some("one"), &claims("acme"));
    let refused = TenantFrom::Authorization { rotating: false };
    assert_eq!(bearing(&refused, &token), None);
    let accepted = TenantFrom::Authorization { rotating: true };
    assert!(bearing(&accepted, &token).is_some());
}

#[test]
fn invalid_jwk_sets_are_refused() {
    let one = Issuer::new();
    for (set, part) in [
        ("[]".to_owned(), "invalid JWK Set"),
        (json!({"keys": []}).to_string(), "no key that can verify"),
        (
            json!({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}).to_string(),
            "secret",
        ),
        (
            json!({"keys": [one.jwk("a"), one.jwk("a")]}).to_string(),
            "two keys",
        ),
    ] {
        let problem = Keys::from_jwks(&set, &Expected::default()).unwrap_err();
        assert!(problem.contains(part), "{problem}");
    }
}
