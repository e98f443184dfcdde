//! `[[route]]`: which requests, and how they are guarded.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use semel_core::KeyScope;
use semel_core::fingerprint::Options;
use semel_core::identity::MAX_OPERATION_BYTES;
use semel_core::key::MAX_LENGTH;
use semel_http::{Ending, InFlight, KeyRule};
use toml::Spanned;

use super::pattern::{Pattern, Seen};
use super::policy::{Draft, PolicyConfig};
use super::reconcile::{self, ReconcileConfig};
use super::table::{Table, choice};
use super::units::spell;

/// The most routes of one gateway; the list is read whole at every change.
pub const MAX_ROUTES: usize = 1024;

/// The longest wait for another attempt. Callers and proxies in between give up long before.
pub const MAX_WAIT: Duration = Duration::from_mins(10);

/// How long a request waits for another attempt, unless it is told.
const WAIT: Duration = Duration::from_secs(5);

/// One route, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// Which requests.
    pub pattern: Pattern,
    /// What they do; without a name, every exact path is an operation of its own.
    pub operation: Option<Box<str>>,
    /// Whether they need a key.
    pub key: KeyRule,
    /// How far a key reaches; without it, as is the dialect's custom.
    pub key_scope: Option<KeyScope>,
    /// The fewest characters of a key.
    pub min_length: usize,
    /// What a request gets while another attempt runs.
    pub in_flight: InFlight,
    /// Leases, windows and sizes.
    pub policy: PolicyConfig,
    /// What makes two requests the same.
    pub fingerprint: Options,
    /// What a status of the upstream means, where the built-in table is wrong for it.
    pub outcomes: BTreeMap<StatusCode, Ending>,
    /// Response headers that are stored besides the usual ones.
    pub store_headers: Vec<HeaderName>,
    /// Whether cookies are stored and replayed, too.
    pub store_set_cookie: bool,
    /// How the truth is found where the outcome is unknown.
    pub reconcile: Option<ReconcileConfig>,
}

/// What a route takes over from the rest of the file.
pub(super) struct Common<'a> {
    pub(super) policy: &'a PolicyConfig,
    pub(super) key_header: &'a HeaderName,
    pub(super) reconcile: reconcile::Around<'a>,
}

/// Reads all routes and compares their patterns.
pub(super) fn read(tables: Vec<Table<'_>>, common: &Common<'_>) -> Vec<RouteConfig> {
    let mut routes = Vec::new();
    let mut seen = Seen::default();
    let mut reconciled = BTreeMap::new();
    for (at, table) in tables.into_iter().enumerate() {
        let (problems, header) = (table.problems, table.span());
        if at == MAX_ROUTES {
            problems.at(header, format!("at most {MAX_ROUTES} routes are taken"));
            break;
        }
        let by_name = table.key_span("reconcile");
        let read = read_one(table, common, &mut routes);
        if let (Some(_), Some(span), Some(route)) = (&read, by_name, routes.last())
            && let (Some(name), Some(_)) = (&route.operation, &route.reconcile)
            && let Some(first) = reconciled.insert(name.clone(), span.clone())
        {
            let message = format!("operation {name:?} is reconciled by another route already");
            let problem = problems.problem(super::Origin::File(span), message);
            problems.add(problem.also(first, "here"));
        }
        if let Some((pattern, span)) = read
            && let Err((with, first)) = seen.add(&pattern, &span)
        {
            let message = format!("\"{pattern}\" takes the same requests as \"{with}\"");
            let problem = problems.problem(super::Origin::File(span), message);
            problems.add(problem.also(first, "this route"));
        }
    }
    routes
}

fn read_one(
    mut table: Table<'_>,
    common: &Common<'_>,
    routes: &mut Vec<RouteConfig>,
) -> Option<(Pattern, Range<usize>)> {
    let problems = table.problems;
    if table.key_span("match").is_none() {
        problems.at(
            table.span(),
            "the route has no `match`; write `match = \"POST /payments\"`",
        );
    }
    let pattern = table.parsed("match", Pattern::from_str);
    let operation = table.parsed("operation", operation);
    let key = read_key(&mut table);
    let key_scope = table.parsed("key_scope", |text| {
        choice(
            text,
            &[
                ("operation", KeyScope::Operation),
                ("tenant", KeyScope::Tenant),
            ],
        )
    });
    let min_length = table.integer("min_length", 1..=MAX_LENGTH);
    let in_flight = in_flight(&mut table);
    let policy = Draft::read(&mut table).over(common.policy, &table);
    let fingerprint = table
        .table("fingerprint", "`fingerprint`")
        .map(|rules| super::fingerprint::read(rules, common.key_header))
        .unwrap_or_default();
    let outcomes = table
        .table("outcome", "`outcome`")
        .map(|outcome| outcomes(&outcome))
        .unwrap_or_default();
    let store_headers = table.list("store_headers", stored_header);
    let store_set_cookie = table.boolean("store_set_cookie");
    let reconcile = table
        .table("reconcile", "[route.reconcile]")
        .and_then(|rules| reconcile::read(rules, &common.reconcile));
    if let Some(span) = table.key_span("reconcile")
        && table.key_span("operation").is_none()
        && key != KeyRule::Ignored
    {
        problems.at(
            span,
            "a route without a name has an operation for each path, and what is reconciled is an \
             operation; add `operation = \"create_payment\"`",
        );
    }
    table.finish();

    let pattern = pattern?;
    let span = pattern.span();
    let pattern = pattern.into_inner();
    routes.push(RouteConfig {
        operation: operation.map(Spanned::into_inner),
        pattern: pattern.clone(),
        key,
        key_scope: key_scope.map(Spanned::into_inner),
        min_length: min_length.map_or(1, Spanned::into_inner),
        in_flight,
        policy,
        fingerprint,
        outcomes,
        store_headers: store_headers.into_iter().map(Spanned::into_inner).collect(),
        store_set_cookie: store_set_cookie.is_some_and(Spanned::into_inner),
        reconcile,
    });
    Some((pattern, span))
}

/// Naming a route means guarding it, so a key is required unless it says otherwise.
fn read_key(table: &mut Table<'_>) -> KeyRule {
    const WITHOUT_EFFECT: [&str; 12] = [
        "operation",
        "upstream_timeout",
        "max_request",
        "key_scope",
        "min_length",
        "in_flight",
        "wait_max",
        "fingerprint",
        "outcome",
        "store_headers",
        "store_set_cookie",
        "reconcile",
    ];
    let words = [
        ("required", KeyRule::Required),
        ("optional", KeyRule::Optional),
        ("ignored", KeyRule::Ignored),
    ];
    let rule = table
        .parsed("key", |text| choice(text, &words))
        .map_or(KeyRule::Required, Spanned::into_inner);
    if rule == KeyRule::Ignored {
        for key in WITHOUT_EFFECT.into_iter().chain(Draft::GUARDING) {
            if let Some(span) = table.key_span(key) {
                let message =
                    format!("`key = \"ignored\"` guards nothing, so `{key}` has no effect here");
                table.problems.at(span, message);
            }
        }
    }
    rule
}

fn in_flight(table: &mut Table<'_>) -> InFlight {
    let words = [
        ("reject", InFlight::Reject),
        ("wait", InFlight::Wait { max: WAIT }),
        ("accept", InFlight::Accept),
    ];
    let chosen = table.parsed("in_flight", |text| choice(text, &words));
    let wait_max = table.some_time("wait_max");
    let chosen = chosen.map(Spanned::into_inner).unwrap_or_default();
    let Some(wait_max) = wait_max else {
        return chosen;
    };
    let (span, max) = (wait_max.span(), wait_max.into_inner());
    match chosen {
        InFlight::Wait { .. } if max > MAX_WAIT => {
            let message = format!("`wait_max` is at most {}", spell(MAX_WAIT));
            table.problems.at(span, message);
            chosen
        }
        InFlight::Wait { .. } => InFlight::Wait { max },
        InFlight::Reject | InFlight::Accept => {
            let message = "`wait_max` has no effect without `in_flight = \"wait\"`";
            table.problems.at(span, message);
            chosen
        }
    }
}

fn operation(text: &str) -> Result<Box<str>, String> {
    if text.is_empty() || text.len() > MAX_OPERATION_BYTES || text.chars().any(char::is_control) {
        return Err(format!(
            "an operation has a name of 1 to {MAX_OPERATION_BYTES} bytes without control \
             characters, such as \"create_payment\""
        ));
    }
    Ok(text.into())
}

fn outcomes(table: &Table<'_>) -> BTreeMap<StatusCode, Ending> {
    let words = Ending::ALL.map(|ending| (ending.as_str(), ending));
    let mut outcomes = BTreeMap::new();
    for (status, value) in table.entries() {
        let text = *status.get_ref();
        let code = super::status::parse(text)
            .map_err(|problem| table.problems.at(status.span(), problem))
            .ok();
        let outcome = match value.get_ref().as_str() {
            Some(word) => choice(word, &words),
            None => Err(format!(
                "the outcome of {text} is a string, such as \"unknown\""
            )),
        };
        match (code, outcome) {
            (Some(code), Ok(outcome)) => {
                outcomes.insert(code, outcome);
            }
            (_, Err(problem)) => table.problems.at(value.span(), problem),
            (None, Ok(_)) => {}
        }
    }
    outcomes
}

/// A header that a replay may repeat. What describes one exchange is wrong in the next.
fn stored_header(text: &str) -> Result<HeaderName, String> {
    let name = super::header_name(text)?;
    if name == http::header::SET_COOKIE {
        return Err("cookies are stored by `store_set_cookie = true`".to_owned());
    }
    semel_http::Route::default()
        .store_header(text)
        .map_err(|error| error.to_string())?;
    Ok(name)
}
