//! `[[webhook]]`: the sources of events, and what their events mean.

mod rules;

use std::ops::Range;

use http::HeaderName;
use semel_core::fingerprint::Pointer;
use semel_worker::webhook::{Scheme, Source};
use toml::Spanned;

use super::table::{Table, choice};
use super::{Environment, Origin, RouteConfig, header_name, secrets};

/// Maximum number of sources.
pub const MAX_WEBHOOKS: usize = 64;

/// One source of events.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// How its events are verified and read.
    pub source: Source,
    /// The operation of its events; by default every named operation.
    pub operation: Option<Box<str>>,
}

/// Settings from the rest of the file.
pub(super) struct WebhookContext<'a> {
    pub(super) environment: &'a Environment,
    pub(super) routes: &'a [RouteConfig],
    /// The name of the only tenant, if there is only one.
    pub(super) one_tenant: Option<&'static str>,
    /// Whether the store has hashes in place of keys.
    pub(super) hashed_keys: bool,
}

/// Reads all sources and reports duplicate names.
pub(super) fn read(tables: Vec<Table<'_>>, context: &WebhookContext<'_>) -> Vec<WebhookConfig> {
    let mut webhooks: Vec<WebhookConfig> = Vec::new();
    let mut seen: Vec<(String, Range<usize>)> = Vec::new();
    for (at, table) in tables.into_iter().enumerate() {
        let problems = table.problems;
        if at == MAX_WEBHOOKS {
            let message = format!("too many webhooks: the maximum is {MAX_WEBHOOKS}");
            problems.at(table.span(), message);
            break;
        }
        let (name, webhook) = read_one(table, context);
        webhooks.extend(webhook);
        let Some(name) = name else { continue };
        match seen.iter().find(|(other, _)| other == name.get_ref()) {
            Some((other, first)) => {
                let message = format!("duplicate source {other:?}");
                let problem = problems.problem(Origin::File(name.span()), message);
                problems.add(problem.with_related(first.clone(), "first used here"));
            }
            None => seen.push((name.get_ref().clone(), name.span())),
        }
    }
    webhooks
}

fn read_one(
    mut table: Table<'_>,
    context: &WebhookContext<'_>,
) -> (Option<Spanned<String>>, Option<WebhookConfig>) {
    let problems = table.problems;
    table.require("source", "source = \"psp\"");
    table.require("scheme", "scheme = \"standard\"");
    let name = table.parsed("source", |text| Ok::<_, String>(text.to_owned()));
    let scheme = read_scheme(&mut table);
    let required = "[[webhook]] has no secret to verify events with: add \
                    `secret_env = \"PSP_SECRET\"` or `secret_file = \"psp.secret\"`";
    let environment = context.environment;
    let secrets = secrets::read(&mut table, scheme.as_ref(), environment, Some(required));
    let tolerance = table.nonzero_duration("tolerance");
    if let (
        Some(tolerance),
        Some(Scheme::Hmac {
            timestamp: None, ..
        }),
    ) = (&tolerance, &scheme)
    {
        let message = "`tolerance` has no effect without `timestamp_header`";
        problems.at(tolerance.span(), message);
    }
    let remember = table.nonzero_duration("remember");
    let (operation, rules) = rules::read(&mut table, context);
    table.finish();

    let (Some(named), Some(scheme), Some(secrets), Some(rules)) = (&name, scheme, secrets, rules)
    else {
        return (name, None);
    };
    let secrets = secrets.iter().map(String::as_str);
    let mut source = match Source::new(named.get_ref(), scheme, secrets, rules) {
        Ok(source) => source,
        Err(error) => {
            problems.at(named.span(), error.to_string());
            return (None, None);
        }
    };
    if let Some(tolerance) = tolerance {
        source = source.tolerance(tolerance.into_inner());
    }
    if let Some(remember) = remember {
        source = source.remember(remember.into_inner());
    }
    (name, Some(WebhookConfig { source, operation }))
}

/// `scheme`, before the keys that belong to it are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemeName {
    Standard,
    Stripe,
    Hmac,
}

fn read_scheme(table: &mut Table<'_>) -> Option<Scheme> {
    const HMAC_KEYS: [&str; 3] = ["signature_header", "timestamp_header", "event_id"];
    let names = [
        ("standard", SchemeName::Standard),
        ("standard-webhooks", SchemeName::Standard),
        ("stripe", SchemeName::Stripe),
        ("hmac-sha256", SchemeName::Hmac),
    ];
    let scheme = table.parsed("scheme", |text| choice(text, &names));
    let signature = table.parsed("signature_header", header_name);
    let timestamp = table.parsed("timestamp_header", header_name);
    let event_id = table.parsed("event_id", str::parse::<Pointer>);
    let problems = table.problems;
    match scheme?.into_inner() {
        scheme @ (SchemeName::Standard | SchemeName::Stripe) => {
            table.reject(HMAC_KEYS, |key| {
                format!(
                    "`{key}` applies to `scheme = \"hmac-sha256\"` only, and has no effect here"
                )
            });
            Some(match scheme {
                SchemeName::Standard => Scheme::Standard,
                SchemeName::Stripe | SchemeName::Hmac => Scheme::Stripe,
            })
        }
        SchemeName::Hmac => {
            if table.key_span("event_id").is_none() {
                let message = "`hmac-sha256` needs an `event_id` to detect repeated events: add \
                               `event_id = \"/id\"`";
                problems.at(table.span(), message);
            }
            let signature = signature.map_or_else(
                || HeaderName::from_static("x-signature"),
                Spanned::into_inner,
            );
            if let Some(timestamp) = &timestamp
                && *timestamp.get_ref() == signature
            {
                problems.at(
                    timestamp.span(),
                    "`signature_header` and `timestamp_header` must differ",
                );
            }
            Some(Scheme::Hmac {
                signature,
                timestamp: timestamp.map(Spanned::into_inner),
                event_id: event_id?.into_inner(),
            })
        }
    }
}
