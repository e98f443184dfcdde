use http::StatusCode;
use semel_core::key::Format;
use semel_core::{KeyScope, OnExpired, Stale};
use semel_http::{InFlight, KeyRule, OnSchemaChange, OutcomeKind, ReplayMode, WeakKeys};
use semel_worker::webhook::{Match, RecordSelector, Rules, TenantSelector};

use super::*;

mod key_storage;
mod out_of_band;
mod outbox;
mod region;
mod telemetry;
mod tenant;
mod wrong;

/// Reads `text` as if by `--upstream http://app --config semel.toml`.
fn load(text: &str) -> Result<Config, Report> {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    load_with(text, flags, &[])
}

/// Unless the file has a tenant rule, `--tenant authorization` is set.
fn load_with(text: &str, mut flags: Flags, variables: &[(&str, &str)]) -> Result<Config, Report> {
    if !["[tenant]", "tenant.from"]
        .iter()
        .any(|key| text.contains(key))
    {
        flags.tenant.get_or_insert(TenantRule::Authorization);
    }
    load_exactly(text, flags, variables)
}

fn load_exactly(text: &str, flags: Flags, variables: &[(&str, &str)]) -> Result<Config, Report> {
    let source = Source {
        file: None,
        flags,
        environment: Environment::from_pairs(variables.iter().copied()),
    };
    source.load_text(Role::Gateway, Problems::new("semel.toml", text.to_owned()))
}

const HOUR: Duration = Duration::from_hours(1);

/// The example of the documentation.
const EXAMPLE: &str = r#"
listen = "127.0.0.1:8080"
upstream = "http://127.0.0.1:3000"
store = "sqlite:semel.db"
dialect = "ietf"
lenient = true                   # also take the unquoted form

[admin]
listen = "127.0.0.1:8081"

[tenant]
from = "authorization"

[policy]
lease = "30s"
upstream_timeout = "60s"
retention = "24h"
tombstone = "30d"
on_expired = "reject"
expiry = "tombstone"
stale = "unknown"
max_request = "8MiB"
max_response = "1MiB"

[[route]]
match = "POST /payments"
operation = "create_payment"
key = "required"
in_flight = "reject"
retention = "30d"
fingerprint = { headers = ["API-Version"], ignore = ["/metadata/trace_id"], defaults = { "/channel" = "web" }, decimals = ["/amount"] }
outcome = { "503" = "not-executed" }
store_headers = ["X-Request-Cost"]

[route.reconcile]                # how the truth is found when the outcome is unknown
poll = "GET /payments/by-operation/{operation_id}"     # also {key}, {downstream_key}, {tenant}
completed = "200"                # this answer becomes the stored response …
status_from = "201"              # … under this status
not_executed = "404"
downstream_idempotent = true     # without it a 404 never releases: it is shown to the operator instead
every = "5s"                     # then exponential with jitter up to
max_every = "10m"
attempts = 12                    # then dead-lettered

[[webhook]]
source = "psp"                   # served at /.semel/webhooks/psp on the gateway listener
scheme = "standard"              # standard-webhooks | stripe | hmac-sha256
secret_env = "PSP_WEBHOOK_SECRET"
operation_id = "/data/metadata/operation_id"           # or key + tenant, or resource id
completed = { pointer = "/type", equals = ["payment.succeeded", "payment.declined"] }
not_executed = { pointer = "/type", equals = ["payment.never_created"] }
response_body = "/data/object"
"#;

/// The variable that the example names.
const SECRET: (&str, &str) = ("PSP_WEBHOOK_SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZg==");

#[test]
fn the_example_is_valid() {
    let config = load_with(EXAMPLE, Flags::default(), &[SECRET]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(
        config.upstream.as_ref().unwrap().to_string(),
        "http://127.0.0.1:3000"
    );
    assert_eq!(config.store, StoreUrl::Sqlite("semel.db".into()));
    assert_eq!(config.dialect, Dialect::Ietf { lenient: true });
    assert_eq!(config.header, "idempotency-key");
    assert_eq!(config.replayed_header, "idempotent-replayed");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:8081");
    assert!(config.admin.token.is_none() && config.tls.is_none());
    assert!(matches!(
        config.tenant,
        TenantFrom::Authorization { rotating: false }
    ));
    assert_eq!(config.key_hasher, None);
    assert_eq!(config.warnings(), [""; 0]);
    assert_eq!(config.policy, PolicyConfig::default());

    let [route] = &config.routes[..] else {
        panic!("{:?}", config.routes)
    };
    let mut policy = PolicyConfig::default();
    policy.guard.windows.replay = 30 * 24 * HOUR;
    policy.guard.windows.body = 30 * 24 * HOUR;
    let rules = semel_core::fingerprint::Options {
        headers: vec!["API-Version".into()],
        ignore: vec!["/metadata/trace_id".into()],
        defaults: vec![("/channel".into(), r#""web""#.into())],
        decimals: vec!["/amount".into()],
        ..Default::default()
    };
    let expected = RouteConfig {
        pattern: "POST /payments".parse().unwrap(),
        match_exactly: false,
        operation: Some("create_payment".into()),
        was: None,
        key: KeyRule::Required,
        key_scope: None,
        min_length: 1,
        key_format: Format::Any,
        weak_keys: WeakKeys::Warn,
        in_flight: InFlight::Reject,
        policy,
        fingerprint: rules,
        outcomes: [(
            StatusPattern::Exact(StatusCode::SERVICE_UNAVAILABLE),
            OutcomeKind::NotExecuted,
        )]
        .into(),
        store_headers: vec![HeaderName::from_static("x-request-cost")],
        store_set_cookie: false,
        replay: ReplayConfig::default(),
        reconcile: Some(ReconcileConfig {
            poll: "GET /payments/by-operation/{operation_id}".parse().unwrap(),
            completed: [(StatusCode::OK, StatusCode::CREATED)].into(),
            not_executed: vec![StatusCode::NOT_FOUND],
            downstream_idempotent: true,
            every: Duration::from_secs(5),
            max_every: Duration::from_mins(10),
            attempts: 12,
            timeout: Duration::from_secs(10),
            authorization: None,
        }),
    };
    assert_eq!(*route, expected);

    let [webhook] = &config.webhooks[..] else {
        panic!("{:?}", config.webhooks)
    };
    assert_eq!(webhook.source.name(), "psp");
    assert_eq!(webhook.operation, None);
    let when = |values: &[&str]| {
        Some(Match {
            pointer: "/type".parse().unwrap(),
            equals: values.iter().map(|value| (*value).into()).collect(),
        })
    };
    let rules = Rules {
        completed: when(&["payment.succeeded", "payment.declined"]),
        not_executed: when(&["payment.never_created"]),
        response_body: Some("/data/object".parse().unwrap()),
        ..Rules::new(RecordSelector::Operation(
            "/data/metadata/operation_id".parse().unwrap(),
        ))
    };
    assert_eq!(*webhook.source.rules(), rules);
}

#[test]
fn an_empty_file_has_the_defaults_of_the_example() {
    let config = load("").unwrap();
    let example = load_with(EXAMPLE, Flags::default(), &[SECRET]).unwrap();
    assert_eq!(config.listen, example.listen);
    assert_eq!(config.store, example.store);
    assert_eq!(config.dialect, example.dialect);
    assert_eq!(config.admin.listen, example.admin.listen);
    assert_eq!(config.policy, example.policy);
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.drain, Duration::from_secs(25));
    assert_eq!(config.drain_delay, Duration::ZERO);
    assert!(!config.reuse_port);
    assert_eq!(config.replay_cache, 64 << 20);
    let loopback = ["127.0.0.0/8", "::1/128"].map(|net| net.parse().unwrap());
    assert_eq!(config.trusted_proxies, loopback);
    assert!(
        load("trusted_proxies = []")
            .unwrap()
            .trusted_proxies
            .is_empty()
    );
    assert!(config.routes.is_empty());
    let guard = config.policy.guard;
    assert_eq!(guard.lease, Duration::from_secs(30));
    assert_eq!(guard.windows.replay, 24 * HOUR);
    assert_eq!(guard.windows.body, 24 * HOUR);
    assert_eq!(guard.windows.tombstone, Some(30 * 24 * HOUR));
    assert_eq!(
        (guard.stale, guard.on_expired),
        (Stale::Unknown, OnExpired::Reject)
    );
    assert!(!guard.recovery_points);
    assert_eq!(config.policy.upstream_timeout, Duration::from_mins(1));
    assert_eq!(
        (config.policy.max_request, config.policy.max_response),
        (8 << 20, 1 << 20)
    );
}

/// The keys that the example does not have.
const OTHER_KEYS: &str = r#"
dialect = "stripe"
header = "X-Idempotency-Key"
replayed_header = "X-Replayed"
replay_cache = "0B"
store = "sqlite:/var/lib/semel.db"
reuse_port = true
trusted_proxies = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]

[tenant]
from = "header:X-Account-Id"

[policy]
drain_delay = "5s"
drain = "0s"
expiry = "delete"

[limits]
max_connections = 5
header_timeout = "1s"
idle_timeout = "2s"
body_idle_timeout = "3s"
upstream_idle = "0s"
max_buffered = "1GiB"

[[route]]
match = "PUT /a/{id}/{*rest}"

[[route]]
match = "POST /b"
key = "optional"
key_scope = "tenant"
min_length = 16
key_format = "uuid"
weak_keys = "refuse"
in_flight = "wait"
wait_max = "1500ms"
lease = "1m"
upstream_timeout = "2m"
retention = "2h"
body_retention = "0s"
expiry = "tombstone"
on_expired = "execute"
max_request = "1kB"
max_response = "0B"
store_set_cookie = true
outcome = { 502 = "unknown", 402 = "completed", 4xx = "forget" }
fingerprint.defaults = { "/a" = 1, "/b" = 1.5, "/c" = [true, { d = "e" }] }
schema = 3
on_schema_change = "reconstruct"
on_revoked = "ask"
reconstruct = { get = "GET /a/{resource_type}/{resource_id}", authorization_env = "TOKEN" }
authorize = { get = "GET https://auth.example/{tenant}" }
fingerprint.fields = ["/a", "/b", "/c", "/due"]
fingerprint.enums = ["/c/1/d"]
fingerprint.timestamps = { "/due" = "millisecond" }

[[route]]
match = "DELETE /b"
in_flight = "wait"
retention = "1h"

[[route]]
match = "PATCH /b"
key = "ignored"
"#;

fn load_other_keys() -> Config {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    load_with(OTHER_KEYS, flags, &[("TOKEN", "Bearer t")]).unwrap()
}

#[test]
fn the_other_keys_of_the_process_are_read() {
    let config = load_other_keys();
    assert_eq!((config.replay_cache, config.drain), (0, Duration::ZERO));
    assert_eq!(config.drain_delay, Duration::from_secs(5));
    assert!(config.reuse_port);
    let trusted = ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"];
    assert_eq!(
        config.trusted_proxies,
        trusted.map(|net| net.parse().unwrap())
    );
}

#[test]
fn every_other_key_is_read() {
    let config = load_other_keys();
    assert_eq!(config.dialect, Dialect::Stripe);
    assert_eq!(config.header, "x-idempotency-key");
    assert_eq!(config.replayed_header, "x-replayed");
    assert!(matches!(&config.tenant, TenantFrom::Header(name) if name == "x-account-id"));
    let seconds = Duration::from_secs;
    let limits = Limits {
        max_connections: 5,
        header_timeout: seconds(1),
        idle_timeout: seconds(2),
        body_idle_timeout: seconds(3),
        upstream_idle: Duration::ZERO,
        max_buffered: 1 << 30,
    };
    assert_eq!(config.limits, limits);
    assert_eq!(config.policy.guard.windows.tombstone, None);

    let [put, post, delete, patch] = &config.routes[..] else {
        panic!("{:?}", config.routes)
    };
    assert_eq!(put.operation, None);
    assert_eq!(put.key, KeyRule::Required);
    assert_eq!(put.policy, config.policy);

    assert_eq!(
        (post.key, post.key_scope),
        (KeyRule::Optional, Some(KeyScope::Tenant))
    );
    assert_eq!(post.min_length, 16);
    assert_eq!(
        (post.key_format, post.weak_keys),
        (Format::Uuid, WeakKeys::Refuse)
    );
    assert_eq!(
        post.in_flight,
        InFlight::Wait {
            max: Duration::from_millis(1500)
        }
    );
    let guard = &post.policy.guard;
    assert_eq!((guard.lease, guard.windows.replay), (seconds(60), 2 * HOUR));
    assert_eq!(
        (guard.windows.body, guard.on_expired),
        (Duration::ZERO, OnExpired::Execute)
    );
    // `[policy]` deletes; this route keeps a tombstone for the default time.
    assert_eq!(guard.windows.tombstone, Some(30 * 24 * HOUR));
    assert_eq!(post.policy.upstream_timeout, seconds(120));
    assert_eq!(
        (post.policy.max_request, post.policy.max_response),
        (1000, 0)
    );
    assert!(post.store_set_cookie);
    let exact = |status: u16| StatusPattern::Exact(StatusCode::from_u16(status).unwrap());
    let outcomes = [
        (exact(402), OutcomeKind::Completed),
        (StatusPattern::Class(4), OutcomeKind::Forget),
        (exact(502), OutcomeKind::Unknown),
    ];
    assert_eq!(post.outcomes, outcomes.into());
    let rules = semel_core::fingerprint::Options {
        defaults: vec![
            ("/a".into(), "1".into()),
            ("/b".into(), "1.5".into()),
            ("/c".into(), r#"[true,{"d":"e"}]"#.into()),
        ],
        fields: ["/a", "/b", "/c", "/due"].map(Into::into).to_vec(),
        enums: vec!["/c/1/d".into()],
        timestamps: vec![(
            "/due".into(),
            semel_core::fingerprint::Precision::Millisecond,
        )],
        ..Default::default()
    };
    assert_eq!(post.fingerprint, rules);

    let replay = ReplayConfig {
        schema: 3,
        mode: ReplayMode::Stored,
        on_schema_change: OnSchemaChange::Reconstruct,
        reconstruct: Some(ReplayRequest {
            get: "GET /a/{resource_type}/{resource_id}".parse().unwrap(),
            authorization: Some(http::HeaderValue::from_static("Bearer t")),
        }),
        authorize: Some(ReplayRequest {
            get: "GET https://auth.example/{tenant}".parse().unwrap(),
            authorization: None,
        }),
    };
    assert_eq!(post.replay, replay);
    assert_eq!(delete.replay, ReplayConfig::default());

    assert_eq!(delete.in_flight, InFlight::Wait { max: seconds(5) });
    assert_eq!(delete.policy.guard.windows.body, HOUR);
    assert_eq!(patch.key, KeyRule::Ignored);
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let file = "listen = \"127.0.0.1:1\"\nupstream = \"http://file\"\nstore = \"sqlite:file\"\n\
                dialect = \"stripe\"\n[admin]\nlisten = \"127.0.0.1:2\"";
    let variables = [
        ("SEMEL_LISTEN", "127.0.0.1:3"),
        ("SEMEL_UPSTREAM", "http://variable"),
        ("SEMEL_STORE", "sqlite:variable"),
        ("SEMEL_ADMIN_LISTEN", "127.0.0.1:4"),
        ("SEMEL_DIALECT", "ietf"),
    ];
    let flags = Flags {
        listen: Some("127.0.0.1:5".parse().unwrap()),
        upstream: Some("http://flag".parse().unwrap()),
        store: Some("sqlite:flag".parse().unwrap()),
        admin_listen: Some("127.0.0.1:6".parse().unwrap()),
        dialect: Some(DialectName::Stripe),
        tenant: None,
        allow_volatile: false,
        otlp_endpoint: None,
    };
    let ietf = Dialect::Ietf { lenient: true };
    for (flags, variables, expected, dialect) in [
        (
            Flags::default(),
            &[][..],
            ["127.0.0.1:1", "http://file", "sqlite:file", "127.0.0.1:2"],
            Dialect::Stripe,
        ),
        (
            Flags::default(),
            &variables[..],
            [
                "127.0.0.1:3",
                "http://variable",
                "sqlite:variable",
                "127.0.0.1:4",
            ],
            ietf,
        ),
        (
            flags,
            &variables[..],
            ["127.0.0.1:5", "http://flag", "sqlite:flag", "127.0.0.1:6"],
            Dialect::Stripe,
        ),
    ] {
        let config = load_with(file, flags, variables).unwrap();
        let found = [
            config.listen.to_string(),
            config.upstream.unwrap().to_string(),
            config.store.to_string(),
            config.admin.listen.to_string(),
        ];
        assert_eq!(found, expected);
        assert_eq!(config.dialect, dialect);
    }
}

#[test]
fn the_memory_store_needs_allow_volatile() {
    let flags = Flags {
        allow_volatile: true,
        ..Flags::default()
    };
    let text = "upstream = \"http://a\"\nstore = \"memory:\"";
    assert_eq!(load_with(text, flags, &[]).unwrap().store, StoreUrl::Memory);
    assert!(
        load(text)
            .unwrap_err()
            .to_string()
            .contains("--allow-volatile")
    );
}

#[test]
fn a_token_opens_the_admin_listener() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, "from-file\n").unwrap();
    let open = "[admin]\nlisten = \"0.0.0.0:8081\"\n";
    let with_file = format!("{open}token_file = {:?}", path.to_str().unwrap());
    let upstream = Flags {
        upstream: Some("http://a".parse().unwrap()),
        ..Flags::default()
    };
    let variable = &[("SEMEL_ADMIN_TOKEN", "from-variable")];
    for (text, variables, token) in [
        (open, &variable[..], "from-variable"),
        (&with_file, &[], "from-file"),
        (&with_file, &variable[..], "from-variable"),
    ] {
        let config = load_with(text, upstream.clone(), variables).unwrap();
        let configured = config.admin.token.unwrap();
        assert!(configured.is(token) && !configured.is("other"));
    }
    std::fs::write(&path, "\n").unwrap();
    let empty = load(&with_file).unwrap_err().to_string();
    assert!(
        empty.contains("semel.toml:3:14: ") && empty.contains("is empty"),
        "{empty}"
    );
}

#[test]
fn a_certificate_and_its_key_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let text = |certificate: &Path, key: &Path| {
        format!(
            "[tls]\ncertificate = {:?}\nkey = {:?}",
            certificate.to_str().unwrap(),
            key.to_str().unwrap()
        )
    };
    let tls = load(&text(&certificate, &key)).unwrap().tls;
    let expected = TlsConfig {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    assert_eq!(tls, Some(expected));
    let swapped = load(&text(&key, &certificate)).unwrap_err().to_string();
    assert!(swapped.contains("semel.toml:2:15: ") && swapped.contains("semel.toml:3:7: "));
}

#[test]
fn files_are_found_by_flag_and_by_variable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.toml");
    let text = "upstream = \"http://file\"\ntenant.from = \"none\"";
    std::fs::write(&path, text).unwrap();
    let mut source = Source {
        file: Some(path.clone()),
        flags: Flags::default(),
        environment: Environment::from_pairs::<&str, &str>([]),
    };
    assert_eq!(source.load().unwrap().upstream.unwrap().host(), "file");
    source.file = None;
    let none = source.load().unwrap_err().to_string();
    assert!(none.starts_with("no upstream"), "{none}");
    source.environment = Environment::from_pairs([("SEMEL_CONFIG", path)]);
    assert_eq!(source.load().unwrap().upstream.unwrap().host(), "file");
    source.environment = Environment::from_pairs([("SEMEL_CONFIG", "/nowhere.toml")]);
    let missing = source.load().unwrap_err().to_string();
    assert!(
        missing.starts_with("SEMEL_CONFIG: cannot read /nowhere.toml"),
        "{missing}"
    );
    source.file = Some("/nowhere.toml".into());
    let missing = source.load().unwrap_err().to_string();
    assert!(
        missing.starts_with("--config: cannot read /nowhere.toml"),
        "{missing}"
    );
}

#[test]
fn a_report_shows_the_line() {
    let report = load("listen = \"127.0.0.1:8080\"\n[policy]\nretenton = \"1h\"").unwrap_err();
    let plain = report.render(Style::Plain);
    assert!(
        plain.is_ascii() && plain.contains("semel.toml:3:1"),
        "{plain}"
    );
    assert!(plain.contains("3 | retenton = \"1h\""), "{plain}");
    assert!(plain.contains("did you mean `retention`?"), "{plain}");
    assert!(report.render(Style::Graphical).contains('│'));
}

#[test]
fn viewers_need_their_own_token() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, "for-viewers\n").unwrap();
    let upstream = Flags {
        upstream: Some("http://a".parse().unwrap()),
        ..Flags::default()
    };
    let text = format!(
        "[admin]\nsecure_cookie = true\nviewer_token_file = {:?}",
        path.to_str().unwrap()
    );
    let operators = ("SEMEL_ADMIN_TOKEN", "for-operators");
    let config = load_with(&text, upstream.clone(), &[operators]).unwrap();
    let viewers = config.admin.viewer_token.clone().unwrap();
    assert!(viewers.is("for-viewers") && !viewers.is("for-operators"));
    assert!(config.admin.secure_cookie);
    let variables = [operators, ("SEMEL_VIEWER_TOKEN", "others")];
    let config = load_with(&text, upstream.clone(), &variables).unwrap();
    assert!(config.admin.viewer_token.unwrap().is("others"));

    let same = [("SEMEL_ADMIN_TOKEN", "for-viewers")];
    let report = load_with(&text, upstream.clone(), &same).unwrap_err();
    let report = report.to_string();
    assert!(
        report.starts_with("semel.toml:3:21: ")
            && report.contains("viewers could act as operators"),
        "{report}"
    );
    let report = load_with(&text, upstream, &[]).unwrap_err().to_string();
    assert!(
        report.contains("semel.toml:3:21: ") && report.contains("operators have none"),
        "{report}"
    );
}

#[test]
fn a_body_is_kept_as_long_as_its_record_unless_the_file_says_otherwise() {
    let day = 24 * HOUR;
    for (policy, route, body) in [
        ("", "retention = \"30d\"", 30 * day),
        ("", "retention = \"2h\"", 2 * HOUR),
        ("", "retention = \"30d\"\nbody_retention = \"1d\"", day),
        ("retention = \"30d\"", "", 30 * day),
        ("retention = \"30d\"", "retention = \"60d\"", 60 * day),
        ("body_retention = \"2h\"", "retention = \"30d\"", 2 * HOUR),
        ("body_retention = \"24h\"", "retention = \"30d\"", day),
        ("body_retention = \"2h\"", "retention = \"1h\"", HOUR),
    ] {
        let text = format!("[policy]\n{policy}\n[[route]]\nmatch = \"POST /a\"\n{route}");
        let config = load(&text).unwrap();
        assert_eq!(config.routes[0].policy.guard.windows.body, body, "{text}");
    }
}

#[test]
fn a_short_retention_is_a_warning() {
    for (text, named) in [
        ("", &[][..]),
        ("[policy]\nretention = \"1h\"", &[]),
        (
            "[policy]\nretention = \"59m\"",
            &["[policy]: `retention` is 59m"],
        ),
        (
            "[[route]]\nmatch = \"POST /a\"\nretention = \"10m\"\n[[route]]\nmatch = \"POST /b\"",
            &["route \"POST /a\": `retention` is 10m"],
        ),
        (
            "[policy]\nretention = \"5m\"\n[[route]]\nmatch = \"POST /a\"",
            &["[policy]: `retention` is 5m"],
        ),
        (
            "[tenant]\nfrom = \"authorization\"\nrotating = true",
            &["`[tenant] rotating = true`"],
        ),
    ] {
        let warnings = load(text).unwrap().warnings();
        assert_eq!(warnings.len(), named.len(), "{text}: {warnings:?}");
        for (warning, named) in warnings.iter().zip(named) {
            assert!(warning.contains(named), "{warning}");
        }
    }
}

#[test]
fn responses_and_background_jobs_have_defaults_and_keys() {
    let config = load("").unwrap();
    assert_eq!(&*config.error_base, "/.semel/errors/");
    assert_eq!(config.dead_letter_retry_after, Duration::from_mins(5));
    assert_eq!(config.dead_letter_unreconciled, None);
    let text = "error_base = \"https://api.example/errors#\"\n[policy]\n\
                dead_letter_retry_after = \"20m\"\n[worker]\ndead_letter_unreconciled = \"1h\"";
    let config = load(text).unwrap();
    assert_eq!(&*config.error_base, "https://api.example/errors#");
    assert_eq!(config.dead_letter_retry_after, Duration::from_mins(20));
    assert_eq!(config.dead_letter_unreconciled, Some(HOUR));
}

#[test]
fn hosts_and_exact_routes_are_read() {
    use semel_core::fingerprint::Hosts;

    let hosts = |text: &str| load(text).unwrap().hosts;
    assert_eq!(hosts(""), Hosts::default());
    assert_eq!(hosts("hosts = \"any\""), Hosts::any());
    let pair = Hosts::equivalent([["a.example", "b.example:8443"]]).unwrap();
    let text = "hosts = [[\"b.example:8443\", \"A.example\"]]";
    assert_eq!(hosts(text), pair);
    let text = "[[route]]\nmatch = \"POST /Payments/{id}\"\nmatch_exactly = true\n\
                [[route]]\nmatch = \"POST /payments/{id}\"\n\
                [[route]]\nmatch = \"POST /a;b\"\nmatch_exactly = true";
    let routes = load(text).unwrap().routes;
    let exact: Vec<bool> = routes.iter().map(|route| route.match_exactly).collect();
    assert_eq!(exact, [true, false, true]);
}
