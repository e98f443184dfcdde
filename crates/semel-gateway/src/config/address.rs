//! Addresses: of the listeners, the upstream, the store and the cache.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};
use ipnet::IpNet;
use semel_postgres::Durability;
use toml::Spanned;

use super::problem::{Origin, Problems};
use super::table::Table;
use crate::upstream::UpstreamConfig;

/// The address of a listener. Port 0 means any free port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(SocketAddr);

impl Listen {
    /// Wraps an address.
    pub const fn new(address: SocketAddr) -> Self {
        Self(address)
    }

    /// A port of this machine only.
    pub(super) const fn loopback(port: u16) -> Self {
        Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// The address to bind to.
    pub const fn address(self) -> SocketAddr {
        self.0
    }

    /// Whether only this machine can connect to it.
    pub fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!(
                "invalid listen address {text:?}: write an IP address and a port, \
                 for example \"127.0.0.1:8080\", \"0.0.0.0:8080\" or \"[::1]:8080\""
            )
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The application behind the gateway: `http://host:port` or `https://host:port`, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    authority: Authority,
}

impl Upstream {
    /// `http` or `https`.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Host and port, as configured.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Whether it uses TLS.
    pub fn is_secure(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The host to connect to; an IPv6 address is without brackets.
    pub fn host(&self) -> &str {
        let host = self.authority.host();
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        let default = if self.is_secure() { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(default)
    }
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |problem: &str| {
            format!("invalid upstream {text:?}: {problem}; write \"http://127.0.0.1:3000\"")
        };
        // `Uri` silently drops a fragment.
        if text.contains('#') {
            return Err(invalid("it has a fragment"));
        }
        let uri: Uri = text.parse().map_err(|_| invalid("it is not a URL"))?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => scheme.clone(),
            Some(_) => return Err(invalid("the scheme must be http or https")),
            None => return Err(invalid("it has no scheme")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("remove the user name: it would not be sent"));
        }
        if authority.host().is_empty() {
            return Err(invalid("it has no host"));
        }
        let rest = authority.as_str().strip_prefix(authority.host());
        if !matches!((rest, authority.port_u16()), (Some(""), _) | (_, Some(1..))) {
            return Err(invalid("the port must be from 1 to 65535"));
        }
        if uri.path() != "/" || uri.query().is_some() {
            return Err(invalid("remove the path: requests keep their own path"));
        }
        Ok(Self {
            scheme,
            authority: authority.clone(),
        })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

/// Where records are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In memory; lost when the process ends.
    Memory,
    /// In a SQLite file.
    Sqlite(PathBuf),
    /// In a PostgreSQL database.
    Postgres(SecretUrl),
    /// In a DynamoDB table. The URL holds no credential.
    Dynamodb(Box<str>),
}

/// A URL that may contain a password. `Display` and `Debug` leave the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(Box<str>);

impl SecretUrl {
    pub(super) fn new(address: &str) -> Self {
        Self(address.into())
    }

    /// The complete URL, to connect with.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Shows scheme, user and host; neither the password nor the query, which may contain one.
impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.0.split(['?', '#']).next().unwrap_or_default();
        let Some((scheme, rest)) = address.split_once("://") else {
            return f.write_str("…");
        };
        match rest.rsplit_once('@') {
            Some((credentials, host)) => {
                let user = credentials.split(':').next().unwrap_or_default();
                write!(f, "{scheme}://{user}@{host}")
            }
            None => write!(f, "{scheme}://{rest}"),
        }
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The URL of the Redis cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUrl(pub SecretUrl);

impl FromStr for CacheUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            Some(("redis" | "rediss", rest)) if !rest.is_empty() => {
                Ok(Self(SecretUrl(text.into())))
            }
            _ => Err("invalid cache URL: write \"redis://127.0.0.1:6379\"".to_owned()),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = "write \"sqlite:semel.db\" or \"postgres://user@host/database\"";
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| format!("invalid store {text:?}: it has no scheme; {advice}"))?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err("invalid store: remove what follows `memory:`".to_owned()),
            "sqlite" if rest.is_empty() => Err(format!("`sqlite:` has no path; {advice}")),
            // SQLite treats these as special names, for example of databases in memory.
            "sqlite" if rest.contains('\0') || rest.starts_with(':') => {
                Err(format!("invalid SQLite path {rest:?}; {advice}"))
            }
            "sqlite" => Ok(Self::Sqlite(PathBuf::from(path(rest)))),
            "postgres" | "postgresql"
                if rest.strip_prefix("//").is_some_and(|at| !at.is_empty()) =>
            {
                Ok(Self::Postgres(SecretUrl(text.into())))
            }
            "postgres" | "postgresql" => {
                Err(format!("`{scheme}:` has no host and database; {advice}"))
            }
            "dynamodb" if rest.strip_prefix("//").is_some_and(|at| !at.is_empty()) => {
                Ok(Self::Dynamodb(text.into()))
            }
            "dynamodb" => Err(
                "`dynamodb:` has no table; write \"dynamodb://TABLE?region=eu-west-1\"".to_owned(),
            ),
            _ => Err(format!("unknown store `{scheme}:`; {advice}")),
        }
    }
}

/// Also accepts the URL form `sqlite:///var/lib/semel.db`.
fn path(rest: &str) -> &str {
    rest.strip_prefix("//")
        .filter(|path| path.starts_with('/'))
        .unwrap_or(rest)
}

impl StoreUrl {
    /// The same store with this durability. The URL may already have one, for commands that have no
    /// configuration file.
    pub(super) fn with_durability(self, durability: Durability) -> Result<Self, &'static str> {
        let Self::Postgres(SecretUrl(url)) = self else {
            return Err("`durability` has an effect only with PostgreSQL: remove it");
        };
        if url.contains("durability=") {
            return Err("the URL of the store has a `durability` already: remove one of them");
        }
        let separator = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{separator}durability={}", durability.as_str());
        Ok(Self::Postgres(SecretUrl(url.into())))
    }

    /// The SQLite file, if this is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory | Self::Postgres(_) | Self::Dynamodb(_) => None,
            Self::Sqlite(path) => Some(path),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
            Self::Dynamodb(url) => f.write_str(url),
        }
    }
}

/// `store` and `durability`. A flag may replace the store, and not how durable it must be.
pub(super) fn read_store(
    top: &mut Table<'_>,
) -> (Option<Spanned<StoreUrl>>, Option<Spanned<Durability>>) {
    (
        top.parsed("store", StoreUrl::from_str),
        top.parsed("durability", Durability::from_str),
    )
}

/// The store with `durability` of the file.
pub(super) fn apply_durability(
    store: StoreUrl,
    durability: Option<Spanned<Durability>>,
    problems: &Problems,
) -> StoreUrl {
    let Some(durability) = durability else {
        return store;
    };
    let origin = Origin::File(durability.span());
    let durable = store.clone().with_durability(durability.into_inner());
    durable.unwrap_or_else(|reason| {
        problems.report(origin, reason);
        store
    })
}

/// Reads `trusted_proxies`; without it, the loopback addresses.
pub(super) fn read_trusted_proxies(top: &mut Table<'_>) -> Vec<IpNet> {
    if top.key_span("trusted_proxies").is_none() {
        return UpstreamConfig::trusted_by_default();
    }
    let listed = top.list("trusted_proxies", network);
    listed.into_iter().map(Spanned::into_inner).collect()
}

fn network(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let network: IpNet = text.parse().map_err(|_| {
        format!(
            "invalid network {text:?}: write an address or a prefix, for example \"10.0.0.0/8\""
        )
    })?;
    if network != network.trunc() {
        return Err(format!(
            "invalid network {text:?}: write \"{}\"",
            network.trunc()
        ));
    }
    Ok(network)
}

/// Whether the listeners' addresses are shared. Gateways that share an address must share the store:
/// the kernel gives a retry to either of them.
pub(super) fn merge_reuse_port(
    reuse_port: Option<Spanned<bool>>,
    store: &StoreUrl,
    problems: &Problems,
) -> bool {
    let Some(reuse_port) = reuse_port.filter(|reuse_port| *reuse_port.get_ref()) else {
        return false;
    };
    let problem = match store {
        StoreUrl::Postgres(_) | StoreUrl::Dynamodb(_) => return true,
        StoreUrl::Sqlite(path) if path.is_absolute() => return true,
        StoreUrl::Sqlite(_) => {
            "`reuse_port` needs a store that all gateways on this port share, and a relative path is \
             another file in another working directory: write an absolute path, for example \
             \"sqlite:/var/lib/semel/semel.db\""
        }
        StoreUrl::Memory => {
            "`reuse_port` needs a store that all gateways on this port share, and `memory:` is not: \
             use a SQLite or PostgreSQL store"
        }
    };
    problems.at(reuse_port.span(), problem);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams() {
        for (text, host, port) in [
            ("http://127.0.0.1:3000", "127.0.0.1", 3000),
            ("http://127.0.0.1:3000/", "127.0.0.1", 3000),
            ("http://app", "app", 80),
            ("http://[::1]:3000", "::1", 3000),
            ("http://[::1]", "::1", 80),
            ("https://app", "app", 443),
            ("HTTPS://app:8443/", "app", 8443),
        ] {
            let upstream: Upstream = text.parse().unwrap();
            assert_eq!((upstream.host(), upstream.port()), (host, port));
        }
        for text in [
            "",
            "app",
            "app:3000",
            "/path",
            "ftp://app",
            "http://",
            "http://:80",
            "http://a:b@app",
            "http://app/base",
            "http://app/?x",
            "http://app#x",
            "http://app:0",
            "http://app:65536",
            "http://app:",
            "http://a b",
        ] {
            assert!(text.parse::<Upstream>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn stores() {
        assert_eq!("memory:".parse(), Ok(StoreUrl::Memory));
        for (text, path) in [
            ("sqlite:semel.db", "semel.db"),
            ("sqlite:/var/lib/semel.db", "/var/lib/semel.db"),
            ("sqlite:///var/lib/semel.db", "/var/lib/semel.db"),
        ] {
            assert_eq!(text.parse(), Ok(StoreUrl::Sqlite(path.into())));
        }
        for text in [
            "",
            "memory",
            "memory:x",
            "sqlite:",
            "sqlite::memory:",
            "redis://x",
            "semel.db",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text:?}");
        }
        for text in ["postgres:", "postgres://", "postgres:host/d"] {
            let message = text.parse::<StoreUrl>().unwrap_err();
            assert!(message.contains("no host and database"), "{message}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let store: StoreUrl = "postgres://u:se@cret@h:1/d?password=secret"
            .parse()
            .unwrap();
        assert_eq!(store.to_string(), "postgres://u@h:1/d");
        assert_eq!(format!("{store:?}"), "Postgres(postgres://u@h:1/d)");
        let StoreUrl::Postgres(url) = store.with_durability(Durability::Replicated).unwrap() else {
            panic!("another store");
        };
        assert!(
            url.expose()
                .ends_with("?password=secret&durability=replicated")
        );
        let cache: CacheUrl = "redis://:secret@h".parse().unwrap();
        assert_eq!(cache.0.to_string(), "redis://@h");
        for text in ["", "redis:", "redis://", "memcached://h"] {
            assert!(text.parse::<CacheUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn listeners() {
        for (text, loopback) in [
            ("127.0.0.1:0", true),
            ("[::1]:8080", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:8080", false),
            ("[::]:8080", false),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().is_loopback(), loopback);
        }
        for text in [
            "",
            ":8080",
            "8080",
            "localhost:8080",
            "127.0.0.1",
            "127.0.0.1:65536",
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text:?}");
        }
    }
}
