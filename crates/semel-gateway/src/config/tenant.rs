//! `[tenant]`: who is calling.

use std::str::FromStr;
use std::sync::Arc;

use http::HeaderName;
use toml::Spanned;

use super::problem::Origin;
use super::table::Table;
use super::{Environment, read_file};
use crate::tenant::jwt::{Expected, Keys};

/// Where the name of the tenant comes from.
#[derive(Clone, Debug)]
pub enum TenantFrom {
    /// The credential itself, hashed: `Authorization`, else `X-Api-Key`, else nobody.
    Authorization,
    /// A header that a trusted proxy sets.
    Header(HeaderName),
    /// A claim of a verified token.
    Jwt {
        /// Which claim.
        claim: Box<str>,
        /// What tokens are verified by.
        keys: Arc<Keys>,
    },
    /// There is one tenant.
    None,
}

impl TenantFrom {
    /// What an operator should know at start, if anything.
    pub fn warning(&self) -> Option<&'static str> {
        match self {
            Self::Authorization => Some(
                "tenants are told apart by a hash of their credential: one that changes between \
                 two attempts is another tenant, and the retry executes again. Where credentials \
                 are renewed, set `[tenant] from` to \"jwt:sub\" or \"header:X-Account-Id\"",
            ),
            Self::Header(_) | Self::Jwt { .. } | Self::None => None,
        }
    }
}

/// The setting before the keys are read.
enum From {
    Authorization,
    Header(HeaderName),
    Jwt(Box<str>),
    None,
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "none" => Ok(Self::None),
            Some(("header", name)) => {
                let name = super::header_name(name)?;
                // The name of a tenant is stored and shown.
                if [
                    "authorization",
                    "proxy-authorization",
                    "cookie",
                    "x-api-key",
                ]
                .contains(&name.as_str())
                {
                    return Err(format!(
                        "`{name}` is a secret and cannot be a tenant's name; \
                         write \"authorization\", which hashes it"
                    ));
                }
                Ok(Self::Header(name))
            }
            Some(("jwt", claim)) if !claim.is_empty() => Ok(Self::Jwt(claim.into())),
            _ => Err(format!(
                "{text:?} is no source of tenants; write \"authorization\", \
                 \"header:X-Account-Id\", \"jwt:sub\" or \"none\""
            )),
        }
    }
}

/// Reads `[tenant]`, with the keys it names.
pub(super) fn read(table: Option<Table<'_>>, environment: &Environment) -> TenantFrom {
    let Some(mut table) = table else {
        return TenantFrom::Authorization;
    };
    let from = table.parsed("from", From::from_str);
    let jwks_file = table.text("jwks_file");
    let secret_env = table.text("secret_env");
    let issuer = table.parsed("issuer", filled);
    let audience = table.parsed("audience", filled);
    let problems = table.problems;
    let jwt = [
        jwks_file.as_ref().map(Spanned::span),
        secret_env.as_ref().map(Spanned::span),
        issuer.as_ref().map(Spanned::span),
        audience.as_ref().map(Spanned::span),
    ];
    // Where `from` itself is wrong, what belongs to it cannot be judged.
    let unreadable = from.is_none() && table.key_span("from").is_some();
    table.finish();

    let (span, claim) = match from.map(|from| (from.span(), from.into_inner())) {
        Some((span, From::Jwt(claim))) => (span, claim),
        other => {
            for span in jwt.into_iter().flatten().filter(|_| !unreadable) {
                problems.at(
                    span,
                    "this is for `from = \"jwt:…\"` only, and has no effect here",
                );
            }
            return match other {
                Some((_, From::Header(name))) => TenantFrom::Header(name),
                Some((_, From::None)) => TenantFrom::None,
                Some((_, From::Authorization | From::Jwt(_))) | None => TenantFrom::Authorization,
            };
        }
    };
    let expected = Expected {
        issuer: issuer.map(Spanned::into_inner),
        audience: audience.map(Spanned::into_inner),
    };
    let (span, keys) = match (jwks_file, secret_env) {
        (Some(file), None) => (file.span(), jwks(file.get_ref(), &expected)),
        (None, Some(name)) => (name.span(), secret(name.get_ref(), environment, &expected)),
        (Some(_), Some(name)) => {
            let message = "tokens are verified by `jwks_file` or by `secret_env`; keep one of them";
            (name.span(), Err(message.to_owned()))
        }
        (None, None) => {
            let message = "tokens cannot be verified without keys; \
                           add `jwks_file = \"jwks.json\"` or `secret_env = \"JWT_SECRET\"`";
            (span, Err(message.to_owned()))
        }
    };
    match keys {
        Ok(keys) => TenantFrom::Jwt {
            claim,
            keys: Arc::new(keys),
        },
        Err(problem) => {
            problems.from(Origin::File(span), problem);
            TenantFrom::None
        }
    }
}

fn jwks(path: &str, expected: &Expected) -> Result<Keys, String> {
    let text = read_file(path.as_ref())?;
    Keys::from_jwks(&text, expected).map_err(|problem| format!("{path}: {problem}"))
}

fn secret(name: &str, environment: &Environment, expected: &Expected) -> Result<Keys, String> {
    match environment.value(name)? {
        Some(secret) if !secret.is_empty() => Ok(Keys::from_secret(secret.as_bytes(), expected)),
        Some(_) => Err(format!(
            "the variable {name} is empty: anybody could sign with it"
        )),
        None => Err(format!("the environment has no variable {name}")),
    }
}

fn filled(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("this is empty; take it out if it is not to be checked");
    }
    Ok(text.to_owned())
}
