//! Verifies JSON Web Tokens.

use std::fmt;

use jsonwebtoken::errors::ErrorKind;
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

/// Claims that a token must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Its `iss`.
    pub issuer: Option<String>,
    /// One of its `aud`.
    pub audience: Option<String>,
}

/// Verification keys, each for the algorithms of its type only. The algorithm in a token's header
/// must be one of these; it never selects how a key is used, because a public key used as an HMAC
/// secret would let anyone sign.
pub struct Keys(Vec<Verifier>);

/// The result of verifying a token.
#[derive(Debug)]
pub enum Verified {
    /// The token is valid and has these claims.
    Claims(Map<String, Value>),
    /// No key that is known signed the token; one that the issuer added later may have.
    UnknownKey,
    /// The token is invalid under every key.
    Invalid,
}

struct Verifier {
    kid: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

impl Keys {
    /// The public signing keys of a JWK Set. Encryption keys and keys of unknown types are ignored,
    /// as RFC 7517 requires.
    ///
    /// # Errors
    /// A message, if it is not a JWK Set, has no usable key, has a secret key, or has two keys with
    /// the same `kid`.
    pub fn from_jwks(text: &str, expected: &Expected) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_str(text).map_err(|error| format!("invalid JWK Set: {error}"))?;
        let mut keys: Vec<Verifier> = Vec::new();
        for jwk in &set.keys {
            let Some(algorithms) = algorithms(jwk)? else {
                continue;
            };
            let kid = jwk.common.key_id.clone();
            if keys.iter().any(|other| other.kid == kid) {
                return Err(match kid {
                    Some(kid) => format!("two keys have the `kid` {kid:?}"),
                    None => "two keys have no `kid`; only one key may omit it".to_owned(),
                });
            }
            let key = DecodingKey::from_jwk(jwk)
                .map_err(|error| format!("cannot use the key {kid:?}: {error}"))?;
            keys.push(Verifier {
                kid,
                key,
                validation: validation(algorithms, expected),
            });
        }
        if keys.is_empty() {
            return Err("the JWK Set has no key that can verify a signature".to_owned());
        }
        Ok(Self(keys))
    }

    /// A secret shared with the issuer. The caller ensures that it is not empty.
    pub fn from_secret(secret: &[u8], expected: &Expected) -> Self {
        Self(vec![Verifier {
            kid: None,
            key: DecodingKey::from_secret(secret),
            validation: validation(HMAC.to_vec(), expected),
        }])
    }

    /// Verifies a token.
    pub fn verify(&self, token: &str) -> Verified {
        let Ok(header) = decode_header(token) else {
            return Verified::Invalid;
        };
        // `crit` lists extensions that must be understood (RFC 7515, 4.1.11); we implement none.
        if header.crit.is_some() {
            return Verified::Invalid;
        }
        let Some(verifier) = self.verifier(header.kid.as_deref()) else {
            return Verified::UnknownKey;
        };
        // Without names, a key that was replaced is noticed by its signatures only.
        let is_named = header.kid.is_some() && verifier.kid.is_some();
        match decode(token, &verifier.key, &verifier.validation) {
            Ok(token) => Verified::Claims(token.claims),
            Err(error) if *error.kind() == ErrorKind::InvalidSignature && !is_named => {
                Verified::UnknownKey
            }
            Err(_) => Verified::Invalid,
        }
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

/// The algorithms for a key of this type; `None` if it is not a signing key.
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
                "the JWK Set contains a secret (`oct`) key; use `secret_env` for a shared secret"
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
        // Checked only if an audience is configured; then the claim is required.
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
