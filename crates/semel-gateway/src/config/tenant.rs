//! `[tenant]`: how the tenant of a request is found.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::uri::{Authority, Scheme};
use http::{HeaderName, Uri};
use toml::Spanned;

use super::problem::{Origin, Problems};
use super::table::Table;
use super::{Environment, read_file};
use crate::tenant::KeySource;
use crate::tenant::jwks::RemoteKeys;
use crate::tenant::jwt::{Expected, Keys};

/// The choices, for an operator who made none.
const CHOICES: &str = "\
authorization   callers have credentials that do not change, such as API keys; their hash is the tenant
jwt:sub         callers have JSON Web Tokens; a claim of the verified token is the tenant
header:NAME     a trusted proxy in front sets this header, and clients cannot
none            there is only one caller, or all callers may read each other's responses";

/// Where the name of the tenant comes from.
#[derive(Clone, Debug)]
pub enum TenantFrom {
    /// A hash of the credential: `Authorization`, else `X-Api-Key`, else `anonymous`.
    Authorization {
        /// Whether credentials that expire are accepted, although a renewed one is another tenant.
        rotating: bool,
    },
    /// A header that a trusted proxy sets.
    Header(HeaderName),
    /// A claim of a verified token.
    Jwt {
        /// The claim.
        claim: Arc<str>,
        /// The verification keys.
        keys: KeySource,
    },
    /// There is only one tenant.
    None,
}

impl TenantFrom {
    /// Fetches the keys of an issuer, so that the first request does not wait for them. Needs a
    /// runtime.
    pub(crate) fn prefetch(&self) {
        if let Some(keys) = self.remote_keys() {
            let keys = Arc::clone(keys);
            // A failure is logged, and the next request fetches again.
            drop(tokio::spawn(async move { keys.fetch().await }));
        }
    }

    /// Takes over the keys that the running configuration fetched from the same URL: a reload
    /// while the issuer does not answer must not lose them.
    pub(crate) fn keep_fetched_keys(&mut self, running: &Self) {
        if let (
            Self::Jwt {
                keys: KeySource::Remote(keys),
                ..
            },
            Some(fetched),
        ) = (self, running.remote_keys())
            && keys.is_same_source(fetched)
        {
            *keys = Arc::clone(fetched);
        }
    }

    fn remote_keys(&self) -> Option<&Arc<RemoteKeys>> {
        match self {
            Self::Jwt {
                keys: KeySource::Remote(keys),
                ..
            } => Some(keys),
            Self::Jwt { .. } | Self::Authorization { .. } | Self::Header(_) | Self::None => None,
        }
    }
}

/// The tenant rule, as `--tenant`, `SEMEL_TENANT` and `[tenant] from` name it, without its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantRule {
    /// A hash of the credential.
    Authorization,
    /// A header that a trusted proxy sets.
    Header(HeaderName),
    /// A claim of a verified token.
    Jwt(Box<str>),
    /// There is only one tenant.
    None,
}

impl FromStr for TenantRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "none" => Ok(Self::None),
            Some(("header", name)) => {
                let name = super::header_name(name)?;
                // The tenant is stored and shown in clear text.
                if [
                    "authorization",
                    "proxy-authorization",
                    "cookie",
                    "x-api-key",
                ]
                .contains(&name.as_str())
                {
                    return Err(format!(
                        "`{name}` is a secret and cannot name a tenant: \
                         write \"authorization\", which hashes it"
                    ));
                }
                Ok(Self::Header(name))
            }
            Some(("jwt", claim)) if !claim.is_empty() => Ok(Self::Jwt(claim.into())),
            _ => Err(format!(
                "invalid tenant rule {text:?}: write \"authorization\", \
                 \"header:X-Account-Id\", \"jwt:sub\" or \"none\""
            )),
        }
    }
}

/// The URL of a JWK Set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrl {
    uri: Uri,
    authority: Authority,
}

impl JwksUrl {
    /// Whether it uses TLS.
    pub fn is_secure(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// Host and port.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// What is requested from the host.
    pub fn path_and_query(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }
}

impl FromStr for JwksUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |problem: &str| {
            format!(
                "invalid `jwks_url`: {problem}; \
                 write \"https://issuer.example/.well-known/jwks.json\""
            )
        };
        let uri: Uri = text.parse().map_err(|_| invalid("it is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("remove the user name: it would not be sent"));
        }
        let host = authority.host().trim_matches(['[', ']']);
        let is_local = host == "localhost"
            || host
                .parse()
                .is_ok_and(|address: IpAddr| address.is_loopback());
        match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => {}
            Some(scheme) if *scheme == Scheme::HTTP && is_local => {}
            _ => {
                return Err(invalid(
                    "use https: over plain http, anyone on the way could replace the keys and sign \
                     tokens",
                ));
            }
        }
        let authority = authority.clone();
        Ok(Self { uri, authority })
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

/// Reads `[tenant]`, with the keys it names. `given` is the rule of a flag or variable, which
/// overrides the file's. `None` if there is no rule, or if it is invalid, which is reported.
pub(super) fn read(
    table: Option<Table<'_>>,
    given: Option<(TenantRule, Origin)>,
    environment: &Environment,
    problems: &Problems,
) -> Option<TenantFrom> {
    let Some(mut table) = table else {
        let (rule, origin) = given?;
        return JwtSettings::default().apply(rule, origin, false, environment, problems);
    };
    let in_file = table.parsed("from", TenantRule::from_str);
    let jwt = JwtSettings {
        jwks_file: table.text("jwks_file").as_ref().map(to_owned),
        jwks_url: table.parsed("jwks_url", JwksUrl::from_str),
        secret_env: table.text("secret_env").as_ref().map(to_owned),
        issuer: table.parsed("issuer", non_empty),
        audience: table.parsed("audience", non_empty),
    };
    let rotating = table.boolean("rotating");
    let keys_invalid = jwt.jwks_url.is_none() && table.key_span("jwks_url").is_some();
    table.finish();

    let from_file = given.is_none();
    let (rule, origin) = given.or_else(|| {
        in_file.map(|rule| {
            let origin = Origin::File(rule.span());
            (rule.into_inner(), origin)
        })
    })?;
    // A flag overrides the rule of the file; the settings that belong to that rule stay there.
    if from_file {
        if !matches!(rule, TenantRule::Jwt(_)) {
            for span in jwt.spans() {
                problems.at(
                    span,
                    "this applies to `from = \"jwt:…\"` only, and has no effect here",
                );
            }
        }
        if let (Some(rotating), false) = (&rotating, rule == TenantRule::Authorization) {
            problems.at(
                rotating.span(),
                "`rotating` applies to `from = \"authorization\"` only, and has no effect here",
            );
        }
    }
    if keys_invalid {
        return None;
    }
    let rotating = rotating.is_some_and(Spanned::into_inner);
    jwt.apply(rule, origin, rotating, environment, problems)
}

/// Reports that no rule is set.
pub(super) fn report_missing(problems: &Problems) {
    let message = "no tenant rule: a key belongs to its caller, so the gateway must know who is \
                   calling; set --tenant RULE, SEMEL_TENANT or `from` in [tenant]";
    problems.add(problems.problem(Origin::Default, message).help(CHOICES));
}

fn to_owned(text: &Spanned<&str>) -> Spanned<String> {
    Spanned::new(text.span(), (*text.get_ref()).to_owned())
}

/// How tokens are verified.
#[derive(Default)]
struct JwtSettings {
    jwks_file: Option<Spanned<String>>,
    jwks_url: Option<Spanned<JwksUrl>>,
    secret_env: Option<Spanned<String>>,
    issuer: Option<Spanned<String>>,
    audience: Option<Spanned<String>>,
}

impl JwtSettings {
    fn spans(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        [
            self.jwks_file.as_ref().map(Spanned::span),
            self.jwks_url.as_ref().map(Spanned::span),
            self.secret_env.as_ref().map(Spanned::span),
            self.issuer.as_ref().map(Spanned::span),
            self.audience.as_ref().map(Spanned::span),
        ]
        .into_iter()
        .flatten()
    }

    /// The rule with its keys.
    fn apply(
        self,
        rule: TenantRule,
        origin: Origin,
        rotating: bool,
        environment: &Environment,
        problems: &Problems,
    ) -> Option<TenantFrom> {
        let claim = match rule {
            TenantRule::Authorization => return Some(TenantFrom::Authorization { rotating }),
            TenantRule::Header(name) => return Some(TenantFrom::Header(name)),
            TenantRule::None => return Some(TenantFrom::None),
            TenantRule::Jwt(claim) => claim.into(),
        };
        let expected = Expected {
            issuer: self.issuer.map(Spanned::into_inner),
            audience: self.audience.map(Spanned::into_inner),
        };
        let fixed = |keys: Result<Keys, String>| keys.map(|keys| KeySource::Fixed(Arc::new(keys)));
        let (origin, keys) = match (self.jwks_file, self.jwks_url, self.secret_env) {
            (Some(file), None, None) => (
                Origin::File(file.span()),
                fixed(jwks(file.get_ref(), &expected)),
            ),
            (None, Some(url), None) => (
                Origin::File(url.span()),
                RemoteKeys::new(url.into_inner(), expected)
                    .map(|keys| KeySource::Remote(Arc::new(keys))),
            ),
            (None, None, Some(name)) => (
                Origin::File(name.span()),
                fixed(secret(name.get_ref(), environment, &expected)),
            ),
            (None, None, None) => {
                let message = "there are no keys to verify tokens with: add \
                               `jwks_url = \"https://issuer.example/.well-known/jwks.json\"`, \
                               `jwks_file = \"jwks.json\"` or `secret_env = \"JWT_SECRET\"` to [tenant]";
                (origin, Err(message.to_owned()))
            }
            (file, url, name) => {
                let spans = [
                    file.map(|file| file.span()),
                    url.map(|url| url.span()),
                    name.map(|name| name.span()),
                ];
                let last = spans.into_iter().flatten().max_by_key(|span| span.start);
                let message = "set one of `jwks_url`, `jwks_file` and `secret_env`";
                (last.map_or(origin, Origin::File), Err(message.to_owned()))
            }
        };
        match keys {
            Ok(keys) => Some(TenantFrom::Jwt { claim, keys }),
            Err(problem) => {
                problems.report(origin, problem);
                None
            }
        }
    }
}

fn jwks(path: &str, expected: &Expected) -> Result<Keys, String> {
    let text = read_file(path.as_ref())?;
    Keys::from_jwks(&text, expected).map_err(|problem| format!("{path}: {problem}"))
}

fn secret(name: &str, environment: &Environment, expected: &Expected) -> Result<Keys, String> {
    match environment.require(name)? {
        secret if !secret.is_empty() => Ok(Keys::from_secret(secret.as_bytes(), expected)),
        _ => Err(format!(
            "environment variable {name} is empty: anyone could sign tokens"
        )),
    }
}

fn non_empty(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("this must not be empty; remove it to skip the check");
    }
    Ok(text.to_owned())
}
