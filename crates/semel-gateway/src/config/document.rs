//! The file, from top to bottom.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use semel_core::key::Dialect;
use semel_seal::Keyring;
use toml::Spanned;
use toml::de::DeTable;
use zeroize::Zeroizing;

use super::admin::{self, AdminDocument};
use super::problem::Problems;
use super::table::Table;
use super::telemetry::Telemetry;
use super::{
    CacheUrl, DialectName, Environment, Limits, Listen, OutboxConfig, PolicyConfig, RouteConfig,
    StoreUrl, TenantFrom, TlsConfig, Upstream, WebhookConfig, header_name, outbox, policy,
    read_file, reconcile, route, tenant, webhook,
};

/// The size of the replay cache, unless it is told: some ten thousand small answers.
const REPLAY_CACHE: u64 = 64 << 20;

/// The largest replay cache: beyond it, memory is better given to the store's own cache.
const MAX_REPLAY_CACHE: u64 = 64 << 30;

/// The most connections that can be asked for: more than the ports of one address.
const MAX_CONNECTIONS: usize = 1_000_000;

/// What the file says. What flags and variables can say, too, is still open.
pub(super) struct Document {
    pub(super) listen: Option<Spanned<Listen>>,
    pub(super) upstream: Option<Spanned<Upstream>>,
    /// Whether it is there at all, right or wrong.
    pub(super) upstream_given: bool,
    pub(super) store: Option<Spanned<StoreUrl>>,
    pub(super) cache: Option<Spanned<CacheUrl>>,
    pub(super) dialect: Dialect,
    pub(super) header: HeaderName,
    pub(super) replayed_header: HeaderName,
    pub(super) replay_cache: u64,
    pub(super) admin: AdminDocument,
    pub(super) encryption: Option<Spanned<Keyring>>,
    pub(super) tls: Option<TlsConfig>,
    pub(super) tenant: TenantFrom,
    pub(super) policy: PolicyConfig,
    pub(super) drain: Duration,
    pub(super) limits: Limits,
    pub(super) routes: Vec<RouteConfig>,
    pub(super) webhooks: Vec<WebhookConfig>,
    pub(super) outbox: Option<Spanned<OutboxConfig>>,
    pub(super) telemetry: Telemetry,
}

impl Document {
    /// Nothing where it is not TOML; then the rest would be guessing. `dialect` is what flags
    /// and variables say of it.
    pub(super) fn read(
        problems: &Problems,
        environment: &Environment,
        dialect: Option<DialectName>,
    ) -> Option<Self> {
        let (root, errors) = DeTable::parse_recoverable(problems.text());
        for error in &errors {
            let span = on_characters(problems.text(), error.span().unwrap_or(0..0));
            problems.at(span, format!("not TOML: {}", error.message()));
        }
        if !errors.is_empty() {
            return None;
        }
        let mut top = Table::new(root.get_ref(), "the top level", 0..0, problems);
        let upstream_given = top.key_span("upstream").is_some();
        let listen = top.parsed("listen", Listen::from_str);
        let upstream = top.parsed("upstream", Upstream::from_str);
        let store = top.parsed("store", StoreUrl::from_str);
        let cache = top.parsed("cache", CacheUrl::from_str);
        let dialect = read_dialect(&mut top, dialect);
        let (header, replayed_header) = read_headers(&mut top);
        let replay_cache = top.size("replay_cache", MAX_REPLAY_CACHE);
        let admin = admin::read(top.table("admin", "[admin]"));
        let encryption = top
            .table("encryption", "[encryption]")
            .and_then(read_encryption);
        let tls = top.table("tls", "[tls]").and_then(read_tls);
        let tenant = tenant::read(top.table("tenant", "[tenant]"), environment);
        let one_tenant = match &tenant {
            TenantFrom::None => Some(semel_http::tenant::ONLY_ONE),
            TenantFrom::Authorization | TenantFrom::Header(_) | TenantFrom::Jwt { .. } => None,
        };
        let (policy, drain) = policy::read(top.table("policy", "[policy]"));
        let limits = top.table("limits", "[limits]").map(read_limits);
        let common = route::Common {
            policy: &policy,
            key_header: &header,
            reconcile: reconcile::Around {
                environment,
                one_tenant: one_tenant.is_some(),
            },
        };
        let routes = route::read(top.tables("route", "[[route]]"), &common);
        let around = webhook::Around {
            environment,
            routes: &routes,
            one_tenant,
        };
        let webhooks = webhook::read(top.tables("webhook", "[[webhook]]"), &around);
        let outbox = top.table("outbox", "[outbox]").and_then(|table| {
            let span = table.span();
            outbox::read(table, environment).map(|outbox| Spanned::new(span, outbox))
        });
        let telemetry = Telemetry::read(top.table("telemetry", "[telemetry]"));
        top.finish();
        Some(Self {
            listen,
            upstream,
            upstream_given,
            store,
            cache,
            dialect,
            header,
            replayed_header,
            replay_cache: replay_cache.map_or(REPLAY_CACHE, Spanned::into_inner),
            admin,
            encryption,
            tls,
            tenant,
            policy,
            drain,
            limits: limits.unwrap_or_default(),
            routes,
            webhooks,
            outbox,
            telemetry,
        })
    }
}

fn read_dialect(top: &mut Table<'_>, elsewhere: Option<DialectName>) -> Dialect {
    let here = top.parsed("dialect", DialectName::from_str);
    let lenient = top.boolean("lenient");
    let here = here.map(Spanned::into_inner);
    if let (Some(DialectName::Stripe), Some(lenient)) = (here, &lenient) {
        top.problems.at(
            lenient.span(),
            "`lenient` is for `dialect = \"ietf\"`; in that of Stripe quotes are part of the key",
        );
    }
    match elsewhere.or(here) {
        Some(DialectName::Stripe) => Dialect::Stripe,
        Some(DialectName::Ietf) | None => Dialect::Ietf {
            lenient: lenient.is_none_or(Spanned::into_inner),
        },
    }
}

fn read_headers(top: &mut Table<'_>) -> (HeaderName, HeaderName) {
    /// A key in one of these would be taken apart, changed or shown by somebody in between.
    const TAKEN: [&str; 10] = [
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
    let own = |text: &str| {
        let name = header_name(text)?;
        if TAKEN.contains(&name.as_str()) || name.as_str().starts_with("semel-") {
            return Err(format!("header {text:?} has another meaning already"));
        }
        Ok(name)
    };
    let header = top.parsed("header", own);
    let replayed = top.parsed("replayed_header", own);
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
        let message = "`header` and `replayed_header` are the same; the key is echoed in answers";
        top.problems.at(span, message);
    }
    (header, replayed)
}

fn read_encryption(mut table: Table<'_>) -> Option<Spanned<Keyring>> {
    if table.key_span("key_file").is_none() {
        table.problems.at(
            table.span(),
            "[encryption] needs `key_file`; without a file, give the keys by SEMEL_ENCRYPTION_KEYS",
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
        let mut chain = CertificateDer::pem_file_iter(path).map_err(|error| pem(path, &error))?;
        match chain.next() {
            None => Err(format!("{path} has no certificate in PEM")),
            Some(first) => std::iter::once(first)
                .chain(chain)
                .find_map(Result::err)
                .map_or_else(|| Ok(PathBuf::from(path)), |error| Err(pem(path, &error))),
        }
    });
    let key = table.parsed("key", |path| {
        PrivateKeyDer::from_pem_file(Path::new(path))
            .map(|_| PathBuf::from(path))
            .map_err(|error| pem(path, &error))
    });
    for (missing, other) in [("certificate", "key"), ("key", "certificate")] {
        if table.key_span(missing).is_none() {
            let span = table.key_span(other).unwrap_or_else(|| table.span());
            let message = format!("`[tls]` needs a `{missing}`, too");
            table.problems.at(span, message);
        }
    }
    table.finish();
    Some(TlsConfig {
        certificate: certificate?.into_inner(),
        key: key?.into_inner(),
    })
}

fn pem(path: &str, error: &rustls_pki_types::pem::Error) -> String {
    format!("cannot read {path}: {error}")
}

fn read_limits(mut table: Table<'_>) -> Limits {
    let mut limits = Limits::default();
    if let Some(most) = table.integer("max_connections", 1..=MAX_CONNECTIONS) {
        limits.max_connections = most.into_inner();
    }
    for (key, timeout) in [
        ("header_timeout", &mut limits.header_timeout),
        ("idle_timeout", &mut limits.idle_timeout),
        ("body_idle_timeout", &mut limits.body_idle_timeout),
    ] {
        if let Some(said) = table.some_time(key) {
            *timeout = said.into_inner();
        }
    }
    table.finish();
    limits
}

/// The parser counts bytes, and may point into a character.
fn on_characters(text: &str, span: Range<usize>) -> Range<usize> {
    text.floor_char_boundary(span.start)..text.ceil_char_boundary(span.end)
}
