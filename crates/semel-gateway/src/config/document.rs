//! Reads the configuration file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use semel_core::fingerprint::Hosts;
use semel_core::key::{Dialect, KeyHasher};
use semel_postgres::Durability;
use semel_seal::Keyring;
use toml::Spanned;
use toml::de::DeTable;
use zeroize::Zeroizing;

use super::admin::{self, AdminDocument};
use super::policy::PolicyDocument;
use super::problem::{Origin, Problems};
use super::region::RegionDocument;
use super::table::Table;
use super::telemetry::TelemetryDocument;
use super::{
    CacheUrl, DialectName, Environment, Limits, Listen, OutboxConfig, PolicyConfig, RouteConfig,
    StoreUrl, TenantFrom, TenantRule, TlsConfig, Upstream, WebhookConfig, address, dialect,
    header_name, hosts, key_storage, limits, outbox, policy, read_file, reconcile, region, route,
    tenant, webhook,
};
use crate::error_pages::ERROR_PATH;

/// Default size of the replay cache: some ten thousand small responses.
const DEFAULT_REPLAY_CACHE: u64 = 64 << 20;

/// Maximum size of the replay cache: more memory is better spent on the store's own cache.
const MAX_REPLAY_CACHE: u64 = 64 << 30;

/// The settings of the file. Those that flags and variables can override are still optional.
pub(super) struct Document {
    pub(super) listen: Option<Spanned<Listen>>,
    pub(super) reuse_port: Option<Spanned<bool>>,
    pub(super) upstream: Option<Spanned<Upstream>>,
    /// Whether `upstream` is present, even if it is invalid.
    pub(super) upstream_given: bool,
    pub(super) trusted_proxies: Vec<IpNet>,
    pub(super) store: Option<Spanned<StoreUrl>>,
    pub(super) durability: Option<Spanned<Durability>>,
    pub(super) cache: Option<Spanned<CacheUrl>>,
    pub(super) dialect: Dialect,
    pub(super) header: HeaderName,
    pub(super) replayed_header: HeaderName,
    pub(super) hosts: Hosts,
    pub(super) error_base: Box<str>,
    pub(super) replay_cache: u64,
    pub(super) admin: AdminDocument,
    pub(super) encryption: Option<Spanned<Keyring>>,
    pub(super) key_hasher: Option<KeyHasher>,
    pub(super) region: Option<RegionDocument>,
    pub(super) tls: Option<TlsConfig>,
    /// `None` if the rule is missing or invalid.
    pub(super) tenant: Option<TenantFrom>,
    /// Whether `[tenant] from` is present, even if it is invalid.
    pub(super) tenant_given: bool,
    pub(super) policy: PolicyDocument,
    pub(super) dead_letter_unreconciled: Option<Duration>,
    pub(super) limits: Limits,
    pub(super) routes: Vec<RouteConfig>,
    pub(super) webhooks: Vec<WebhookConfig>,
    pub(super) outbox: Option<Spanned<OutboxConfig>>,
    pub(super) telemetry: TelemetryDocument,
}

impl Document {
    /// `None` if the text is not TOML. `dialect` and `tenant` are set if a flag or variable chose one.
    pub(super) fn read(
        problems: &Problems,
        environment: &Environment,
        dialect: Option<DialectName>,
        tenant: Option<(TenantRule, Origin)>,
    ) -> Option<Self> {
        let (root, errors) = DeTable::parse_recoverable(problems.text());
        for error in &errors {
            let span = to_char_boundaries(problems.text(), error.span().unwrap_or(0..0));
            problems.at(span, format!("invalid TOML: {}", error.message()));
        }
        if !errors.is_empty() {
            return None;
        }
        let mut top = Table::new(root.get_ref(), "the top level", 0..0, problems);
        let upstream_given = top.key_span("upstream").is_some();
        let listen = top.parsed("listen", Listen::from_str);
        let reuse_port = top.boolean("reuse_port");
        let upstream = top.parsed("upstream", Upstream::from_str);
        let trusted_proxies = address::read_trusted_proxies(&mut top);
        let (store, durability) = address::read_store(&mut top);
        let cache = top.parsed("cache", CacheUrl::from_str);
        let dialect = dialect::read(&mut top, dialect);
        let (header, replayed_header) = read_headers(&mut top);
        let hosts = hosts::read(&mut top);
        let error_base = top.parsed("error_base", read_error_base);
        let replay_cache = top.size("replay_cache", MAX_REPLAY_CACHE);
        let admin = admin::read(top.table("admin", "[admin]"));
        let encryption = top
            .table("encryption", "[encryption]")
            .and_then(read_encryption);
        let key_storage = key_storage::read(&mut top, environment);
        let tls = top.table("tls", "[tls]").and_then(read_tls);
        let tenant_table = top.table("tenant", "[tenant]");
        let tenant_given = tenant_table
            .as_ref()
            .is_some_and(|table| table.key_span("from").is_some());
        let tenant = tenant::read(tenant_table, tenant, environment, problems);
        let one_tenant = one_tenant(tenant.as_ref());
        let policy = policy::read(top.table("policy", "[policy]"));
        let dead_letter_unreconciled = top
            .table("worker", "[worker]")
            .and_then(reconcile::read_worker);
        let context = route::RouteContext {
            policy: &policy.routes,
            key_header: &header,
            reconcile: reconcile::ReconcileContext {
                environment,
                one_tenant: one_tenant.is_some(),
                hashed_keys: key_storage.is_hashed,
            },
        };
        let routes = route::read(top.tables("route", "[[route]]"), &context);
        let region = top.table("region", "[region]");
        let region = region.and_then(|table| region::read(table, environment));
        let bodies = |policy: &PolicyConfig| policy.max_request.max(policy.max_response);
        let max_body = routes.iter().map(|route| bodies(&route.policy));
        let max_body = max_body.fold(bodies(&policy.routes), u64::max);
        let limits = top
            .table("limits", "[limits]")
            .map(|table| limits::read(table, max_body));
        let context = webhook::WebhookContext {
            environment,
            routes: &routes,
            one_tenant,
            hashed_keys: key_storage.is_hashed,
        };
        let webhooks = webhook::read(top.tables("webhook", "[[webhook]]"), &context);
        let outbox = top.table("outbox", "[outbox]").and_then(|table| {
            let span = table.span();
            outbox::read(table, environment).map(|outbox| Spanned::new(span, outbox))
        });
        let telemetry = TelemetryDocument::read(top.table("telemetry", "[telemetry]"));
        top.finish();
        Some(Self {
            listen,
            reuse_port,
            upstream,
            upstream_given,
            trusted_proxies,
            store,
            durability,
            cache,
            dialect,
            header,
            replayed_header,
            hosts,
            error_base: error_base.map_or_else(|| ERROR_PATH.into(), Spanned::into_inner),
            replay_cache: replay_cache.map_or(DEFAULT_REPLAY_CACHE, Spanned::into_inner),
            admin,
            encryption,
            key_hasher: key_storage.hasher,
            region,
            tls,
            tenant,
            tenant_given,
            policy,
            dead_letter_unreconciled,
            limits: limits.unwrap_or_default(),
            routes,
            webhooks,
            outbox,
            telemetry,
        })
    }
}

/// The name of the only tenant, where there is one.
fn one_tenant(tenant: Option<&TenantFrom>) -> Option<&'static str> {
    match tenant {
        // Without a valid rule, what depends on it is not reported as well.
        Some(TenantFrom::None) | None => Some(semel_http::tenant::ONLY_ONE),
        Some(TenantFrom::Authorization { .. } | TenantFrom::Header(_) | TenantFrom::Jwt { .. }) => {
            None
        }
    }
}

/// `replayed_header` replaces the application's header of that name, and is read with that meaning.
const STANDARD_RESPONSE_HEADERS: [&str; 62] = [
    "accept-ch",
    "accept-patch",
    "accept-ranges",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "age",
    "allow",
    "alt-svc",
    "cache-control",
    "cdn-cache-control",
    "clear-site-data",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "content-security-policy",
    "content-security-policy-report-only",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "date",
    "deprecation",
    "etag",
    "expires",
    "keep-alive",
    "last-modified",
    "link",
    "location",
    "nel",
    "origin-agent-cluster",
    "permissions-policy",
    "pragma",
    "priority",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-status",
    "ratelimit",
    "ratelimit-policy",
    "referrer-policy",
    "refresh",
    "reporting-endpoints",
    "retry-after",
    "server",
    "server-timing",
    "sourcemap",
    "strict-transport-security",
    "sunset",
    "timing-allow-origin",
    "trailer",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-content-type-options",
    "x-dns-prefetch-control",
    "x-frame-options",
    "x-xss-protection",
];

fn read_headers(top: &mut Table<'_>) -> (HeaderName, HeaderName) {
    /// Proxies or HTTP libraries would split, change or log a key in one of these.
    const RESERVED: [&str; 10] = [
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "set-cookie",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    let custom_header = |text: &str| {
        let name = header_name(text)?;
        if RESERVED.contains(&name.as_str()) || name.as_str().starts_with("semel-") {
            return Err(format!("header {text:?} is reserved: choose another name"));
        }
        Ok(name)
    };
    let header = top.parsed("header", custom_header);
    let replayed = top.parsed("replayed_header", |text: &str| {
        let name = custom_header(text)?;
        if STANDARD_RESPONSE_HEADERS.contains(&name.as_str()) {
            return Err(format!(
                "header {text:?} has a meaning of its own: choose another name"
            ));
        }
        Ok(name)
    });
    let span = replayed
        .as_ref()
        .or(header.as_ref())
        .map(Spanned::span)
        .unwrap_or_default();
    let header = header.map_or_else(
        || HeaderName::from_static("idempotency-key"),
        Spanned::into_inner,
    );
    let replayed = replayed.map_or_else(
        || HeaderName::from_static("idempotent-replayed"),
        Spanned::into_inner,
    );
    if header == replayed {
        let message = "`header` and `replayed_header` must differ: responses contain both";
        top.problems.at(span, message);
    }
    (header, replayed)
}

/// The prefix of a URI reference, to which a code is appended.
fn read_error_base(text: &str) -> Result<Box<str>, String> {
    let allowed = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c);
    if text.is_empty() || !text.chars().all(allowed) {
        return Err(format!(
            "invalid error_base {text:?}: write the beginning of a URL, to which a code is \
             appended, for example \"https://api.example/errors/\""
        ));
    }
    Ok(text.into())
}

fn read_encryption(mut table: Table<'_>) -> Option<Spanned<Keyring>> {
    if table.key_span("key_file").is_none() {
        table.problems.at(
            table.span(),
            "[encryption] has no `key_file`: add it, or set SEMEL_ENCRYPTION_KEYS instead of this table",
        );
    }
    let keys = table.parsed("key_file", |path| {
        let text = Zeroizing::new(read_file(path.as_ref())?);
        text.parse::<Keyring>()
            .map_err(|problem| format!("{path}: {problem}"))
    });
    table.finish();
    keys
}

fn read_tls(mut table: Table<'_>) -> Option<TlsConfig> {
    let certificate = table.parsed("certificate", |path| {
        let mut chain =
            CertificateDer::pem_file_iter(path).map_err(|error| pem_error(path, &error))?;
        match chain.next() {
            None => Err(format!("{path} contains no PEM certificate")),
            Some(first) => std::iter::once(first)
                .chain(chain)
                .find_map(Result::err)
                .map_or_else(
                    || Ok(PathBuf::from(path)),
                    |error| Err(pem_error(path, &error)),
                ),
        }
    });
    let key = table.parsed("key", |path| {
        PrivateKeyDer::from_pem_file(Path::new(path))
            .map(|_| PathBuf::from(path))
            .map_err(|error| pem_error(path, &error))
    });
    for (missing, other) in [("certificate", "key"), ("key", "certificate")] {
        if table.key_span(missing).is_none() {
            let span = table.key_span(other).unwrap_or_else(|| table.span());
            let message = format!("[tls] needs a `{missing}` as well");
            table.problems.at(span, message);
        }
    }
    table.finish();
    Some(TlsConfig {
        certificate: certificate?.into_inner(),
        key: key?.into_inner(),
    })
}

fn pem_error(path: &str, error: &rustls_pki_types::pem::Error) -> String {
    format!("cannot read {path}: {error}")
}

/// Widens a span to character boundaries: the TOML parser may point into a character.
fn to_char_boundaries(text: &str, span: Range<usize>) -> Range<usize> {
    text.floor_char_boundary(span.start)..text.ceil_char_boundary(span.end)
}
