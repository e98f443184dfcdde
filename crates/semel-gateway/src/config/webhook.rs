//! `[[webhook]]`: who sends events, and what they mean.

mod rules;

use std::ops::Range;

use http::HeaderName;
use semel_core::fingerprint::Pointer;
use semel_worker::webhook::{MAX_SECRETS, Scheme, Source};
use toml::Spanned;

use super::table::{Table, choice};
use super::{Environment, Origin, RouteConfig, header_name, read_file};

/// The most sources of events.
pub const MAX_WEBHOOKS: usize = 64;

/// One source of events.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// How its events are verified and read.
    pub source: Source,
    /// What its events are about; without it, every operation that has a name.
    pub operation: Option<Box<str>>,
}

/// What a webhook takes over from the rest of the file.
pub(super) struct Around<'a> {
    pub(super) environment: &'a Environment,
    pub(super) routes: &'a [RouteConfig],
    /// The name of the only tenant, where there is one.
    pub(super) one_tenant: Option<&'static str>,
}

/// Reads all sources and compares their names.
pub(super) fn read(tables: Vec<Table<'_>>, around: &Around<'_>) -> Vec<WebhookConfig> {
    let mut webhooks: Vec<WebhookConfig> = Vec::new();
    let mut seen: Vec<(String, Range<usize>)> = Vec::new();
    for (at, table) in tables.into_iter().enumerate() {
        let problems = table.problems;
        if at == MAX_WEBHOOKS {
            let message = format!("at most {MAX_WEBHOOKS} webhooks are taken");
            problems.at(table.span(), message);
            break;
        }
        let (name, webhook) = read_one(table, around);
        webhooks.extend(webhook);
        let Some(name) = name else { continue };
        match seen.iter().find(|(other, _)| other == name.get_ref()) {
            Some((other, first)) => {
                let message = format!("there is a source {other:?} already");
                let problem = problems.problem(Origin::File(name.span()), message);
                problems.add(problem.also(first.clone(), "this one"));
            }
            None => seen.push((name.get_ref().clone(), name.span())),
        }
    }
    webhooks
}

fn read_one(
    mut table: Table<'_>,
    around: &Around<'_>,
) -> (Option<Spanned<String>>, Option<WebhookConfig>) {
    let problems = table.problems;
    for (key, example) in [
        ("source", "source = \"psp\""),
        ("scheme", "scheme = \"standard\""),
    ] {
        if table.key_span(key).is_none() {
            let message = format!("the webhook has no `{key}`; write `{example}`");
            problems.at(table.span(), message);
        }
    }
    let name = table.parsed("source", |text| Ok::<_, String>(text.to_owned()));
    let scheme = read_scheme(&mut table);
    let secrets = read_secrets(&mut table, scheme.as_ref(), around.environment);
    let tolerance = table.some_time("tolerance");
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
    let remember = table.some_time("remember");
    let (operation, rules) = rules::read(&mut table, around);
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

/// The scheme's word, before what belongs to it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Standard,
    Stripe,
    Hmac,
}

fn read_scheme(table: &mut Table<'_>) -> Option<Scheme> {
    const OF_HMAC: [&str; 3] = ["signature_header", "timestamp_header", "event_id"];
    let words = [
        ("standard", Word::Standard),
        ("standard-webhooks", Word::Standard),
        ("stripe", Word::Stripe),
        ("hmac-sha256", Word::Hmac),
    ];
    let word = table.parsed("scheme", |text| choice(text, &words));
    let signature = table.parsed("signature_header", header_name);
    let timestamp = table.parsed("timestamp_header", header_name);
    let event_id = table.parsed("event_id", str::parse::<Pointer>);
    let problems = table.problems;
    match word?.into_inner() {
        word @ (Word::Standard | Word::Stripe) => {
            for span in OF_HMAC.into_iter().filter_map(|key| table.key_span(key)) {
                problems.at(
                    span,
                    "this is for `scheme = \"hmac-sha256\"` only, and has no effect here",
                );
            }
            Some(match word {
                Word::Standard => Scheme::Standard,
                Word::Stripe | Word::Hmac => Scheme::Stripe,
            })
        }
        Word::Hmac => {
            if table.key_span("event_id").is_none() {
                let message = "`hmac-sha256` needs an `event_id`: an event without one cannot be \
                               told from its repetition; write `event_id = \"/id\"`";
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
                    "the signature and its time are in two headers",
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

/// The secrets, read at the edge. Where there is a problem, it is told.
fn read_secrets(
    table: &mut Table<'_>,
    scheme: Option<&Scheme>,
    environment: &Environment,
) -> Option<Vec<String>> {
    let problems = table.problems;
    let (asked, all) = each_secret(table, scheme, environment);
    let given = ["secret_env", "secret_file"]
        .into_iter()
        .filter_map(|key| table.key_span(key))
        .next_back();
    match given {
        None => problems.at(
            table.span(),
            "without a secret anybody could send events; write `secret_env = \"PSP_SECRET\"` or \
             `secret_file = \"psp.secret\"`",
        ),
        Some(span) if asked == 0 || asked > MAX_SECRETS => {
            let message = format!("a webhook has 1 to {MAX_SECRETS} secrets, and this has {asked}");
            problems.at(span, message);
        }
        Some(_) => {}
    }
    (asked == all.len() && (1..=MAX_SECRETS).contains(&asked)).then_some(all)
}

/// How many secrets are asked for, and those that can be used.
pub(super) fn each_secret(
    table: &mut Table<'_>,
    scheme: Option<&Scheme>,
    environment: &Environment,
) -> (usize, Vec<String>) {
    let problems = table.problems;
    let fit = |from: &str, secret: String| match scheme.map(|scheme| scheme.check(&secret)) {
        Some(Err(problem)) => Err(format!("{from}: {problem}")),
        Some(Ok(())) | None => Ok(secret),
    };
    let mut asked = 0;
    let mut all = Vec::new();
    for spanned in table.one_or_more("secret_env", |name| Ok::<_, String>(name.to_owned())) {
        asked += 1;
        let name = spanned.get_ref();
        let secret = environment.value(name).and_then(|value| {
            let value = value.ok_or_else(|| format!("the environment has no variable {name}"))?;
            fit(&format!("the variable {name}"), value)
        });
        keep(secret, &spanned.span(), problems, &mut all);
    }
    for spanned in table.one_or_more("secret_file", |path| Ok::<_, String>(path.to_owned())) {
        asked += 1;
        let path = spanned.get_ref();
        // Editors end a file with a line break; nobody means it.
        let secret = read_file(path.as_ref()).and_then(|text| {
            let text = text.strip_suffix('\n').unwrap_or(&text);
            let text = text.strip_suffix('\r').unwrap_or(text);
            fit(path, text.to_owned())
        });
        keep(secret, &spanned.span(), problems, &mut all);
    }
    (asked, all)
}

fn keep(
    secret: Result<String, String>,
    span: &Range<usize>,
    problems: &super::problem::Problems,
    all: &mut Vec<String>,
) {
    match secret {
        Ok(secret) => all.push(secret),
        Err(problem) => problems.at(span.clone(), problem),
    }
}
