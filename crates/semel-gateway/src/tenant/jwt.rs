//! Tokens, and the keys that they are verified by.

use std::fmt;

use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

/// How far the clocks of issuer and gateway may differ, in seconds.
pub const LEEWAY_SECONDS: u64 = 60;

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

const HMAC: [Algorithm; 3] = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];

/// What a token has to say besides its signature.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Its `iss`.
    pub issuer: Option<String>,
    /// One of its `aud`.
    pub audience: Option<String>,
}

/// Keys that tokens are verified by, each for the algorithms of its type only. The algorithm
/// that a token names is compared with these and never chosen by it: a public key taken for an
/// HMAC secret is known to everybody.
pub struct Keys(Vec<Verifier>);

struct Verifier {
    kid: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

impl Keys {
    /// The public signing keys of a JWK Set. Keys for encryption, and of types that nobody here
    /// knows, are passed over as RFC 7517 asks.
    ///
    /// # Errors
    /// A message: it is no JWK Set, has no usable key, a secret one, or two of one name.
    pub fn from_jwks(text: &str, expected: &Expected) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_str(text).map_err(|error| format!("no JWK Set: {error}"))?;
        let mut keys: Vec<Verifier> = Vec::new();
        for jwk in &set.keys {
            let Some(algorithms) = algorithms(jwk)? else {
                continue;
            };
            let kid = jwk.common.key_id.clone();
            if keys.iter().any(|other| other.kid == kid) {
                return Err(match kid {
                    Some(kid) => format!("two keys have the `kid` {kid:?}"),
                    None => "two keys have no `kid` to tell them apart".to_owned(),
                });
            }
            let key = DecodingKey::from_jwk(jwk)
                .map_err(|error| format!("the key {kid:?} cannot be used: {error}"))?;
            keys.push(Verifier {
                kid,
                key,
                validation: validation(algorithms, expected),
            });
        }
        if keys.is_empty() {
            return Err("no key in it can verify a signature".to_owned());
        }
        Ok(Self(keys))
    }

    /// A secret that is shared with the issuer. The caller makes sure that it is not empty.
    pub fn from_secret(secret: &[u8], expected: &Expected) -> Self {
        Self(vec![Verifier {
            kid: None,
            key: DecodingKey::from_secret(secret),
            validation: validation(HMAC.to_vec(), expected),
        }])
    }

    /// The claims of a token, if all is well with it.
    pub fn verify(&self, token: &str) -> Option<Map<String, Value>> {
        let header = decode_header(token).ok()?;
        // An extension that must be understood (RFC 7515, 4.1.11), and none is.
        if header.crit.is_some() {
            return None;
        }
        let verifier = self.verifier(header.kid.as_deref())?;
        decode(token, &verifier.key, &verifier.validation)
            .ok()
            .map(|token| token.claims)
    }

    fn verifier(&self, kid: Option<&str>) -> Option<&Verifier> {
        match (self.0.as_slice(), kid) {
            ([only], None) => Some(only),
            ([only], Some(_)) if only.kid.is_none() => Some(only),
            (_, None) => None,
            (keys, Some(kid)) => keys.iter().find(|key| key.kid.as_deref() == Some(kid)),
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kids = self.0.iter().map(|verifier| &verifier.kid);
        f.debug_list().entries(kids).finish()
    }
}

/// What a key of this type can verify; `None` where it is not for signatures.
fn algorithms(jwk: &Jwk) -> Result<Option<Vec<Algorithm>>, String> {
    if matches!(&jwk.common.public_key_use, Some(usage) if *usage != PublicKeyUse::Signature) {
        return Ok(None);
    }
    let by_type: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &RSA,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            &[Algorithm::ES256]
        }
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => {
            &[Algorithm::ES384]
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            &[Algorithm::EdDSA]
        }
        AlgorithmParameters::OctetKey(_) => {
            return Err(
                "it holds a secret (`oct`) key; give a secret by `secret_env`, not in a file of \
                 public keys"
                    .to_owned(),
            );
        }
        AlgorithmParameters::EllipticCurve(_)
        | AlgorithmParameters::OctetKeyPair(_)
        | AlgorithmParameters::Other(_)
        | _ => return Ok(None),
    };
    let pinned = jwk.common.key_algorithm;
    let fitting: Vec<_> = by_type
        .iter()
        .copied()
        .filter(|algorithm| pinned.is_none_or(|pinned| pinned == KeyAlgorithm::from(*algorithm)))
        .collect();
    Ok((!fitting.is_empty()).then_some(fitting))
}

fn validation(algorithms: Vec<Algorithm>, expected: &Expected) -> Validation {
    let mut validation = Validation {
        algorithms,
        leeway: LEEWAY_SECONDS,
        validate_nbf: true,
        // Checked only where there is something to compare with; then it must be there.
        validate_aud: expected.audience.is_some(),
        ..Validation::default()
    };
    let mut required = vec!["exp"];
    if let Some(issuer) = &expected.issuer {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    if let Some(audience) = &expected.audience {
        validation.set_audience(&[audience]);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}
