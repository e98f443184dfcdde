//! The configuration: read once at the edge, into types that cannot be wrong.
//!
//! ```
//! use semel_gateway::config::{Environment, Flags, Source};
//!
//! let source = Source {
//!     file: None,
//!     flags: Flags { upstream: Some("http://127.0.0.1:3000".parse()?), ..Flags::default() },
//!     environment: Environment::from_pairs([("SEMEL_LISTEN", "127.0.0.1:9000")]),
//! };
//! let config = source.load().map_err(|report| report.to_string())?;
//! assert_eq!(config.listen.to_string(), "127.0.0.1:9000");
//! # Ok::<(), String>(())
//! ```
//!
//! Flags beat the environment, which beats the file, which beats the defaults. Every key that
//! is read has an effect; what a later version will know is refused by name until then.

mod address;
mod admin;
mod document;
mod environment;
mod fingerprint;
mod outbox;
mod pattern;
mod policy;
mod poll;
mod problem;
mod reconcile;
mod route;
mod status;
mod table;
mod telemetry;
mod tenant;
mod units;
mod webhook;

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use semel_core::key::Dialect;
use semel_seal::Keyring;

pub use address::{CacheUrl, Listen, Secret, StoreUrl, Upstream};
pub use admin::AdminConfig;
pub use environment::Environment;
pub use outbox::{Destination, Hidden, OutboxConfig};
pub use pattern::Pattern;
pub use policy::{MAX_BODY, PolicyConfig};
pub use poll::Poll;
pub use problem::{Origin, Problem, Report, Style};
pub use reconcile::{MAX_POLL_TIMEOUT, ReconcileConfig};
pub use route::{MAX_ROUTES, MAX_WAIT, RouteConfig};
pub use telemetry::{Collector, OtlpConfig, Ratio};
pub use tenant::TenantFrom;
pub use units::{MAX_DURATION, duration, size};
pub use webhook::{MAX_WEBHOOKS, WebhookConfig};

use crate::server;
use document::Document;
use problem::Problems;

/// The largest file that the configuration is read from, or one that it names.
pub const MAX_FILE: u64 = 1 << 20;

/// Everything the gateway is told, valid and complete.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where requests come in.
    pub listen: Listen,
    /// Where they go.
    pub upstream: Upstream,
    /// Where operations are remembered.
    pub store: StoreUrl,
    /// Whose rules the key's header and the refusals follow.
    pub dialect: Dialect,
    /// The header of the key.
    pub header: HeaderName,
    /// The header that marks a replay.
    pub replayed_header: HeaderName,
    /// A cache of answers that all processes share, in front of the store.
    pub cache: Option<CacheUrl>,
    /// The size of the replay cache in this process, in bytes; 0 is none.
    pub replay_cache: u64,
    /// The listener for operators.
    pub admin: AdminConfig,
    /// What answers are sealed with; without it they are stored as they are.
    pub encryption: Option<Keyring>,
    /// What the gateway listener identifies itself by; without it, it speaks plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Who is calling.
    pub tenant: TenantFrom,
    /// For requests that no route names: their key is optional.
    pub policy: PolicyConfig,
    /// How long a shutdown waits for running executions.
    pub drain: Duration,
    /// What a connection may take.
    pub limits: Limits,
    /// In the order of the file.
    pub routes: Vec<RouteConfig>,
    /// Who sends events, in the order of the file.
    pub webhooks: Vec<WebhookConfig>,
    /// Where events go that the application writes.
    pub outbox: Option<OutboxConfig>,
    /// Where traces go.
    pub otlp: Option<OtlpConfig>,
}

/// Certificate and key of the gateway listener. Both were readable PEM when the configuration
/// was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file of the certificate and its chain.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
}

/// What a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time on the gateway listener.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// How long a connection may be open without a request.
    pub idle_timeout: Duration,
    /// How long a body may pause.
    pub body_idle_timeout: Duration,
}

impl Default for Limits {
    /// The server's own, with its reasons.
    fn default() -> Self {
        Self {
            max_connections: server::Limits::MAX_CONNECTIONS,
            header_timeout: server::Limits::HEADER_TIMEOUT,
            idle_timeout: server::Limits::IDLE_TIMEOUT,
            body_idle_timeout: server::Limits::BODY_IDLE_TIMEOUT,
        }
    }
}

/// Whose rules the key's header follows, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectName {
    /// The IETF draft.
    Ietf,
    /// Stripe's.
    Stripe,
}

impl FromStr for DialectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        table::choice(text, &[("ietf", Self::Ietf), ("stripe", Self::Stripe)])
    }
}

/// What the command line says. Absent flags leave it to the environment and the file.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--listen`
    pub listen: Option<Listen>,
    /// `--upstream`
    pub upstream: Option<Upstream>,
    /// `--store`
    pub store: Option<StoreUrl>,
    /// `--admin-listen`
    pub admin_listen: Option<Listen>,
    /// `--dialect`
    pub dialect: Option<DialectName>,
    /// `--allow-volatile`: a store that forgets is meant.
    pub allow_volatile: bool,
    /// `--otlp-endpoint`
    pub otlp_endpoint: Option<Collector>,
}

/// All places that settings come from. Kept while the gateway runs, so that its configuration
/// can be read again.
#[derive(Clone, Debug)]
pub struct Source {
    /// `--config`; without it, `SEMEL_CONFIG`.
    pub file: Option<PathBuf>,
    /// The command line.
    pub flags: Flags,
    /// The environment.
    pub environment: Environment,
}

impl Source {
    /// Reads the file and everything it names, and merges all places.
    ///
    /// # Errors
    /// [`Report`] with everything that is wrong.
    pub fn load(&self) -> Result<Config, Report> {
        let nothing = Problems::of("", String::new());
        let path = match (&self.file, self.environment.value("SEMEL_CONFIG")) {
            (Some(file), _) => Some((file.clone(), Origin::Flag("--config"))),
            (None, Ok(path)) => {
                path.map(|path| (PathBuf::from(path), Origin::Variable("SEMEL_CONFIG")))
            }
            (None, Err(problem)) => {
                nothing.from(Origin::Variable("SEMEL_CONFIG"), problem);
                return nothing.verdict(None);
            }
        };
        let Some((path, origin)) = path else {
            return self.load_text(nothing);
        };
        match read_file(&path) {
            Ok(text) => self.load_text(Problems::of(&path.display().to_string(), text)),
            Err(problem) => {
                nothing.from(origin, problem);
                nothing.verdict(None)
            }
        }
    }

    fn load_text(&self, problems: Problems) -> Result<Config, Report> {
        let pick = Pick {
            environment: &self.environment,
            problems: &problems,
        };
        let dialect = pick.of(self.flags.dialect, "--dialect", "SEMEL_DIALECT", None);
        let dialect = dialect.map(|(dialect, _)| dialect);
        let config = Document::read(&problems, &self.environment, dialect)
            .and_then(|document| self.merge(document, &pick));
        problems.verdict(config)
    }

    fn merge(&self, document: Document, pick: &Pick<'_>) -> Option<Config> {
        let problems = pick.problems;
        let Flags {
            listen,
            upstream,
            store,
            admin_listen,
            dialect: _,
            allow_volatile,
            otlp_endpoint,
        } = self.flags.clone();
        let listen = pick.of(listen, "--listen", "SEMEL_LISTEN", document.listen);
        let upstream = pick.of(upstream, "--upstream", "SEMEL_UPSTREAM", document.upstream);
        let store = pick.of(store, "--store", "SEMEL_STORE", document.store);
        let admin = admin::merge(document.admin, admin_listen, pick);
        let encryption = pick.of(None, "", "SEMEL_ENCRYPTION_KEYS", document.encryption);

        let (store, store_from) =
            store.unwrap_or_else(|| (StoreUrl::Sqlite("semel.db".into()), Origin::Default));
        if store == StoreUrl::Memory && !allow_volatile {
            problems.from(
                store_from,
                "`memory:` forgets every operation when the process ends, and then retries \
                 execute again; write \"sqlite:semel.db\", or add --allow-volatile for a test",
            );
        }
        if let Some(outbox) = &document.outbox
            && store == StoreUrl::Memory
        {
            problems.at(
                outbox.span(),
                "an application writes its events into the store's database, and `memory:` is none",
            );
        }
        let cache = pick.of(None, "", "SEMEL_CACHE", document.cache);
        if let Some((_, from)) = &cache
            && !matches!(store, StoreUrl::Postgres(_))
        {
            problems.from(
                from.clone(),
                "a cache in Redis is for processes that share a store in PostgreSQL; the cache \
                 in this process is `replay_cache = \"64MiB\"`",
            );
        }
        let somewhere = document.upstream_given || pick.is_set("SEMEL_UPSTREAM");
        if upstream.is_none() && !somewhere {
            problems.from(
                Origin::Default,
                "no upstream: say where requests go, by --upstream URL, SEMEL_UPSTREAM or \
                 `upstream = \"http://127.0.0.1:3000\"` in the file",
            );
        }
        Some(Config {
            listen: listen.map_or_else(|| loopback(8080), |(listen, _)| listen),
            upstream: upstream?.0,
            store,
            cache: cache.map(|(cache, _)| cache),
            dialect: document.dialect,
            header: document.header,
            replayed_header: document.replayed_header,
            replay_cache: document.replay_cache,
            admin,
            encryption: encryption.map(|(keys, _)| keys),
            tls: document.tls,
            tenant: document.tenant,
            policy: document.policy,
            drain: document.drain,
            limits: document.limits,
            routes: document.routes,
            webhooks: document.webhooks,
            outbox: document.outbox.map(toml::Spanned::into_inner),
            otlp: document.telemetry.merge(otlp_endpoint, pick),
        })
    }
}

/// Picks the value of the place that goes first.
struct Pick<'a> {
    environment: &'a Environment,
    problems: &'a Problems,
}

impl Pick<'_> {
    /// Whether the variable is there, right or wrong.
    fn is_set(&self, variable: &str) -> bool {
        !matches!(self.environment.value(variable), Ok(None))
    }

    fn of<T: FromStr<Err: std::fmt::Display>>(
        &self,
        flag: Option<T>,
        flag_name: &'static str,
        variable: &'static str,
        file: Option<toml::Spanned<T>>,
    ) -> Option<(T, Origin)> {
        let value = self.environment.value(variable).and_then(|value| {
            value
                .map(|text| text.parse::<T>().map_err(|problem| problem.to_string()))
                .transpose()
        });
        let value = value.unwrap_or_else(|problem| {
            self.problems.from(Origin::Variable(variable), problem);
            None
        });
        flag.map(|flag| (flag, Origin::Flag(flag_name)))
            .or(value.map(|value| (value, Origin::Variable(variable))))
            .or_else(|| {
                file.map(|file| {
                    let origin = Origin::File(file.span());
                    (file.into_inner(), origin)
                })
            })
    }
}

const fn loopback(port: u16) -> Listen {
    Listen::new(SocketAddr::new(
        std::net::IpAddr::V4(Ipv4Addr::LOCALHOST),
        port,
    ))
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_str(text).map_err(|_| format!("{text:?} is no header name"))
}

fn read_file(path: &Path) -> Result<String, String> {
    let cannot =
        |problem: &dyn std::fmt::Display| format!("cannot read {}: {problem}", path.display());
    let file = std::fs::File::open(path).map_err(|error| cannot(&error))?;
    let mut text = String::new();
    file.take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| cannot(&error))?;
    if text.len() as u64 > MAX_FILE {
        return Err(cannot(&format!("it has more than {MAX_FILE} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
