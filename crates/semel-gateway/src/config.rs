//! The configuration: loaded once, into validated types.
//!
//! ```
//! use semel_gateway::config::{Environment, Flags, Source};
//!
//! let source = Source {
//!     file: None,
//!     flags: Flags { upstream: Some("http://127.0.0.1:3000".parse()?), ..Flags::default() },
//!     environment: Environment::from_pairs([
//!         ("SEMEL_LISTEN", "127.0.0.1:9000"),
//!         ("SEMEL_TENANT", "authorization"),
//!     ]),
//! };
//! let config = source.load().map_err(|report| report.to_string())?;
//! assert_eq!(config.listen.to_string(), "127.0.0.1:9000");
//! # Ok::<(), String>(())
//! ```
//!
//! Flags override the environment, which overrides the file, which overrides the defaults. An
//! unknown key, an invalid value and a setting without effect are errors. All of them are reported
//! at once, each with its line and column.

mod address;
mod admin;
mod dialect;
mod document;
mod environment;
mod fingerprint;
mod hosts;
mod key_storage;
mod limits;
mod outbox;
mod pattern;
mod policy;
mod poll;
mod problem;
mod reconcile;
mod region;
mod replay;
mod role;
mod route;
mod secrets;
mod status;
mod table;
mod telemetry;
mod tenant;
mod units;
mod warnings;
mod webhook;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use semel_core::fingerprint::Hosts;
use semel_core::key::{Dialect, KeyHasher};
use semel_seal::Keyring;

pub use address::{CacheUrl, Listen, SecretUrl, StoreUrl, Upstream};
pub use admin::AdminConfig;
pub use dialect::DialectName;
pub use environment::Environment;
pub use limits::Limits;
pub use outbox::{Destination, OutboxConfig, SigningSecret};
pub use pattern::Pattern;
pub use policy::{MAX_BODY, PolicyConfig};
pub use poll::Poll;
pub use problem::{Origin, Problem, Report, Style};
pub use reconcile::{MAX_POLL_TIMEOUT, ReconcileConfig};
pub use replay::{ReplayConfig, ReplayRequest};
pub use route::{MAX_ROUTES, MAX_WAIT, RouteConfig};
pub use status::StatusPattern;
pub use telemetry::{Collector, OtlpConfig, Ratio};
pub use tenant::{JwksUrl, TenantFrom, TenantRule};
pub use units::{MAX_DURATION, duration, size};
pub use webhook::{MAX_WEBHOOKS, WebhookConfig};

use crate::Role;
use crate::regions::Regions;
use document::Document;
use problem::Problems;

/// Maximum size of the configuration file, and of each file that it names.
pub const MAX_FILE: u64 = 1 << 20;

/// The complete, validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address of the gateway listener.
    pub listen: Listen,
    /// Whether other gateways, with the same store, may listen on the same addresses.
    pub reuse_port: bool,
    /// The application; only a worker or a console may be without it.
    pub upstream: Option<Upstream>,
    /// Peers whose `Forwarded` and `X-Forwarded-*` headers are kept.
    pub trusted_proxies: Vec<IpNet>,
    /// Where records are stored.
    pub store: StoreUrl,
    /// The dialect of the key header and of error responses.
    pub dialect: Dialect,
    /// The name of the key header.
    pub header: HeaderName,
    /// The header that marks a replay.
    pub replayed_header: HeaderName,
    /// Which hosts are the same target.
    pub hosts: Hosts,
    /// The prefix of the `type` of a problem.
    pub error_base: Box<str>,
    /// A Redis cache of responses, shared by all processes.
    pub cache: Option<CacheUrl>,
    /// The size of the in-process replay cache, in bytes; 0 disables it.
    pub replay_cache: u64,
    /// The admin listener.
    pub admin: AdminConfig,
    /// Keys to encrypt stored responses with; `None` stores them unencrypted.
    pub encryption: Option<Keyring>,
    /// Replaces keys by their hashes in the store; `None` stores them as they are.
    pub key_hasher: Option<KeyHasher>,
    /// The regions, if there are several. A reload keeps what the running process knows of them.
    pub region: Option<Arc<Regions>>,
    /// Certificate of the gateway listener; `None` serves plain HTTP.
    pub tls: Option<TlsConfig>,
    /// How the tenant of a request is found.
    pub tenant: TenantFrom,
    /// For requests that match no route; their key is optional.
    pub policy: PolicyConfig,
    /// How long a process that is asked to stop still accepts connections.
    pub drain_delay: Duration,
    /// How long a shutdown then waits for running executions.
    pub drain: Duration,
    /// The `Retry-After` of a dead-lettered record.
    pub dead_letter_retry_after: Duration,
    /// When unknown records of operations that this configuration does not name are dead-lettered;
    /// `None` leaves them to other processes.
    pub dead_letter_unreconciled: Option<Duration>,
    /// Limits on client connections.
    pub limits: Limits,
    /// In the order of the file.
    pub routes: Vec<RouteConfig>,
    /// The sources of events, in the order of the file.
    pub webhooks: Vec<WebhookConfig>,
    /// Where the application's outbox events are published.
    pub outbox: Option<OutboxConfig>,
    /// Where traces are sent.
    pub otlp: Option<OtlpConfig>,
}

/// Certificate and key of the gateway listener. Both were valid PEM when the configuration was
/// loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file of the certificate and its chain.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
}

/// Command-line flags. An absent flag leaves the setting to the environment and the file.
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
    /// `--tenant`
    pub tenant: Option<TenantRule>,
    /// `--allow-volatile`: allows the `memory:` store.
    pub allow_volatile: bool,
    /// `--otlp-endpoint`
    pub otlp_endpoint: Option<Collector>,
}

/// The sources of the settings. Kept while the gateway runs, to reload the configuration.
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
    /// Reads the configuration of a gateway: see [`load_for`](Source::load_for).
    ///
    /// # Errors
    /// [`Report`] with all problems.
    pub fn load(&self) -> Result<Config, Report> {
        self.load_for(Role::Gateway)
    }

    /// Reads the file and all files that it names, and merges it with flags and environment.
    ///
    /// # Errors
    /// [`Report`] with all problems.
    pub fn load_for(&self, role: Role) -> Result<Config, Report> {
        let no_file = Problems::new("", String::new());
        let path = match (&self.file, self.environment.value("SEMEL_CONFIG")) {
            (Some(file), _) => Some((file.clone(), Origin::Flag("--config"))),
            (None, Ok(path)) => {
                path.map(|path| (PathBuf::from(path), Origin::Variable("SEMEL_CONFIG")))
            }
            (None, Err(problem)) => {
                no_file.report(Origin::Variable("SEMEL_CONFIG"), problem);
                return no_file.into_result(None);
            }
        };
        let Some((path, origin)) = path else {
            return self.load_text(role, no_file);
        };
        match read_file(&path) {
            Ok(text) => self.load_text(role, Problems::new(&path.display().to_string(), text)),
            Err(problem) => {
                no_file.report(origin, problem);
                no_file.into_result(None)
            }
        }
    }

    fn load_text(&self, role: Role, problems: Problems) -> Result<Config, Report> {
        if problems.has_long_line() {
            return problems.into_result(None);
        }
        let settings = Settings {
            environment: &self.environment,
            problems: &problems,
        };
        let dialect = settings.resolve(self.flags.dialect, "--dialect", "SEMEL_DIALECT", None);
        let dialect = dialect.map(|(dialect, _)| dialect);
        let tenant = self.flags.tenant.clone();
        let tenant = settings.resolve(tenant, "--tenant", "SEMEL_TENANT", None);
        let config = Document::read(&problems, &self.environment, dialect, tenant)
            .map(|document| self.merge(role, document, &settings));
        problems.into_result(config)
    }

    fn merge(&self, role: Role, mut document: Document, settings: &Settings<'_>) -> Config {
        let problems = settings.problems;
        let Flags {
            listen,
            upstream,
            store,
            admin_listen,
            dialect: _,
            tenant: _,
            allow_volatile,
            otlp_endpoint,
        } = self.flags.clone();
        let listen = settings.resolve(listen, "--listen", "SEMEL_LISTEN", document.listen);
        let upstream =
            settings.resolve(upstream, "--upstream", "SEMEL_UPSTREAM", document.upstream);
        let store = settings.resolve(store, "--store", "SEMEL_STORE", document.store);
        let admin = admin::merge(document.admin, admin_listen, settings);
        let encryption = settings.resolve(None, "", "SEMEL_ENCRYPTION_KEYS", document.encryption);

        let (store, store_from) =
            store.unwrap_or_else(|| (StoreUrl::Sqlite("semel.db".into()), Origin::Default));
        let store = address::apply_durability(store, document.durability, problems);
        if store == StoreUrl::Memory && !allow_volatile {
            problems.report(
                store_from,
                "`memory:` loses all records when the process ends, and retries would execute again: \
                 use \"sqlite:semel.db\", or add --allow-volatile for a test",
            );
        }
        if let Some(outbox) = &document.outbox {
            outbox::check_store(outbox.span(), &store, problems);
        }
        let reuse_port = address::merge_reuse_port(document.reuse_port, &store, problems);
        let cache = settings.resolve(None, "", "SEMEL_CACHE", document.cache);
        if let Some((_, from)) = &cache
            && !matches!(store, StoreUrl::Postgres(_))
        {
            problems.report(
                from.clone(),
                "`cache` needs a PostgreSQL store; for other stores use the in-process cache, \
                 `replay_cache = \"64MiB\"`",
            );
        }
        let upstream = upstream.map(|(upstream, _)| upstream);
        // An invalid upstream was already reported; it is not missing.
        if !document.upstream_given && !settings.is_set("SEMEL_UPSTREAM") {
            role::check_upstream(role, upstream.as_ref(), &mut document.routes, problems);
        }
        let given =
            document.tenant_given || self.flags.tenant.is_some() || settings.is_set("SEMEL_TENANT");
        let serves = matches!(role, Role::Gateway | Role::GatewayOnly);
        if serves && !given {
            tenant::report_missing(problems);
        }
        let mut config = Config {
            listen: listen.map_or_else(|| Listen::loopback(8080), |(listen, _)| listen),
            reuse_port,
            upstream,
            trusted_proxies: document.trusted_proxies,
            store,
            cache: cache.map(|(cache, _)| cache),
            dialect: document.dialect,
            header: document.header,
            replayed_header: document.replayed_header,
            hosts: document.hosts,
            error_base: document.error_base,
            replay_cache: document.replay_cache,
            admin,
            encryption: encryption.map(|(keys, _)| keys),
            key_hasher: document.key_hasher,
            region: None,
            tls: document.tls,
            // Only a process that serves requests uses it, and one without was refused above.
            tenant: document.tenant.unwrap_or(TenantFrom::None),
            policy: document.policy.routes,
            drain_delay: document.policy.drain_delay,
            drain: document.policy.drain,
            dead_letter_retry_after: document.policy.dead_letter_retry_after,
            dead_letter_unreconciled: document.dead_letter_unreconciled,
            limits: document.limits,
            routes: document.routes,
            webhooks: document.webhooks,
            outbox: document.outbox.map(toml::Spanned::into_inner),
            otlp: document.telemetry.merge(otlp_endpoint, settings),
        };
        let region = document.region;
        config.region = region.map(|region| Arc::new(region.merge(&config, problems)));
        config
    }
}

/// Resolves settings that flags and variables can override.
struct Settings<'a> {
    environment: &'a Environment,
    problems: &'a Problems,
}

impl Settings<'_> {
    /// Whether the variable is set, even if its value is invalid.
    fn is_set(&self, variable: &str) -> bool {
        !matches!(self.environment.value(variable), Ok(None))
    }

    /// The value from the flag, else from the variable, else from the file, with its origin.
    fn resolve<T: FromStr<Err: std::fmt::Display>>(
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
            self.problems.report(Origin::Variable(variable), problem);
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

fn header_name(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_str(text).map_err(|_| format!("invalid header name {text:?}"))
}

fn read_file(path: &Path) -> Result<String, String> {
    let unreadable =
        |problem: &dyn std::fmt::Display| format!("cannot read {}: {problem}", path.display());
    let file = std::fs::File::open(path).map_err(|error| unreadable(&error))?;
    let mut text = String::new();
    file.take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| unreadable(&error))?;
    if text.len() as u64 > MAX_FILE {
        return Err(unreadable(&format!("it is larger than {MAX_FILE} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
