//! `[[route]]`: which requests are guarded, and how.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use semel_core::KeyScope;
use semel_core::fingerprint::Options;
use semel_core::identity::MAX_OPERATION_BYTES;
use semel_core::key::{Format, MAX_LENGTH};
use semel_core::path::fold_pattern;
use semel_http::{InFlight, KeyRule, OperationName, OutcomeKind, WeakKeys};
use toml::Spanned;

use super::pattern::{Pattern, PatternSet};
use super::policy::{PolicyConfig, PolicyOverrides};
use super::reconcile::{self, ReconcileConfig};
use super::replay::{self, ReplayConfig};
use super::status::{self, StatusPattern};
use super::table::{Table, choice};
use super::units::format_duration;

/// Maximum number of routes; every reload reads all of them.
pub const MAX_ROUTES: usize = 1024;

/// Maximum of `wait_max`. Clients and proxies give up long before.
pub const MAX_WAIT: Duration = Duration::from_mins(10);

/// Default of `wait_max`.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);

const KEY_FORMATS: [(&str, Format); 3] = [
    ("any", Format::Any),
    ("uuid", Format::Uuid),
    ("token", Format::Token),
];

const WEAK_KEYS: [(&str, WeakKeys); 2] = [("warn", WeakKeys::Warn), ("refuse", WeakKeys::Refuse)];

/// One route, with all defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// Which requests it matches.
    pub pattern: Pattern,
    /// Whether it matches only paths that are spelled as the pattern is.
    pub match_exactly: bool,
    /// The name of the operation; without one, every folded path is a separate operation.
    pub operation: Option<Box<str>>,
    /// The name that the operation was first published under: its records keep it.
    pub was: Option<Box<str>>,
    /// Whether a key is required.
    pub key: KeyRule,
    /// The scope of a key; by default that of the dialect.
    pub key_scope: Option<KeyScope>,
    /// Minimum length of a key.
    pub min_length: usize,
    /// What a key has to look like.
    pub key_format: Format,
    /// What happens to a request with a weak key.
    pub weak_keys: WeakKeys,
    /// What happens to a request while another attempt runs.
    pub in_flight: InFlight,
    /// Lease, retention and sizes.
    pub policy: PolicyConfig,
    /// What makes two requests equal.
    pub fingerprint: Options,
    /// Overrides of what an upstream status means.
    pub outcomes: BTreeMap<StatusPattern, OutcomeKind>,
    /// Additional response headers to store.
    pub store_headers: Vec<HeaderName>,
    /// Whether cookies are stored and replayed.
    pub store_set_cookie: bool,
    /// What a retry of a completed operation gets.
    pub replay: ReplayConfig,
    /// How unknown outcomes are reconciled.
    pub reconcile: Option<ReconcileConfig>,
}

/// Settings from the rest of the file.
pub(super) struct RouteContext<'a> {
    pub(super) policy: &'a PolicyConfig,
    pub(super) key_header: &'a HeaderName,
    pub(super) reconcile: reconcile::ReconcileContext<'a>,
}

/// Reads all routes and reports conflicts between them.
pub(super) fn read(tables: Vec<Table<'_>>, context: &RouteContext<'_>) -> Vec<RouteConfig> {
    let mut routes = Vec::new();
    let mut patterns = PatternSet::default();
    let mut reconciled = BTreeMap::new();
    for (at, table) in tables.into_iter().enumerate() {
        let (problems, header) = (table.problems, table.span());
        if at == MAX_ROUTES {
            problems.at(
                header,
                format!("too many routes: the maximum is {MAX_ROUTES}"),
            );
            break;
        }
        let reconcile_span = table.key_span("reconcile");
        let read = read_one(table, context, &mut routes);
        if let (Some(_), Some(span), Some(route)) = (&read, reconcile_span, routes.last())
            && let (Some(name), Some(_)) = (&route.operation, &route.reconcile)
            && let Some(first) = reconciled.insert(name.clone(), span.clone())
        {
            let message = format!("operation {name:?} is already reconciled by another route");
            let problem = problems.problem(super::Origin::File(span), message);
            problems.add(problem.with_related(first, "here"));
        }
        if let (Some((_, span)), Some(route)) = (&read, routes.last())
            && let Some(problem) = name_conflict(&routes, route)
        {
            problems.at(span.clone(), problem);
        }
        if let (Some((pattern, span)), Some(route)) = (read, routes.last())
            && let Err((with, first)) = patterns.add(&pattern, route.match_exactly, &span)
        {
            let message = format!("\"{pattern}\" matches the same requests as \"{with}\"");
            let problem = problems.problem(super::Origin::File(span), message);
            problems.add(problem.with_related(first, "this route"));
        }
    }
    routes
}

/// Why the name of a route conflicts with that of another.
fn name_conflict(routes: &[RouteConfig], route: &RouteConfig) -> Option<String> {
    let pattern = route.pattern.to_string();
    let name = route.name(&pattern)?;
    routes.iter().find_map(|other| {
        let other_pattern = other.pattern.to_string();
        let conflict = name.conflict(other.name(&other_pattern)?)?;
        let problem = format!("`was` of \"{pattern}\" or of \"{other_pattern}\": {conflict}");
        Some(problem)
    })
}

impl RouteConfig {
    /// The operation in the identity of its records.
    pub fn identity_name(&self) -> Option<&str> {
        self.was.as_deref().or(self.operation.as_deref())
    }

    /// The operation of a guarded route with this pattern, where all its records have the same one.
    pub(crate) fn name<'a>(&'a self, pattern: &'a str) -> Option<OperationName<'a>> {
        let is_guarded = self.key != KeyRule::Ignored;
        let name = OperationName::new(self.operation.as_deref(), self.was.as_deref(), pattern);
        name.filter(|_| is_guarded)
    }
}

fn read_one(
    mut table: Table<'_>,
    context: &RouteContext<'_>,
    routes: &mut Vec<RouteConfig>,
) -> Option<(Pattern, Range<usize>)> {
    let problems = table.problems;
    table.require("match", "match = \"POST /payments\"");
    let pattern = table.parsed("match", Pattern::from_str);
    let match_exactly = table
        .boolean("match_exactly")
        .is_some_and(Spanned::into_inner);
    let pattern = pattern.filter(|pattern| {
        let (span, pattern) = (pattern.span(), pattern.get_ref());
        if match_exactly {
            return true;
        }
        let folded = fold_pattern(pattern.path()).map_err(|problem| {
            let message =
                format!("invalid route \"{pattern}\": {problem} (`match_exactly = true`)");
            problems.at(span, message);
        });
        folded.is_ok()
    });
    let operation = table.parsed("operation", operation);
    let was = table.parsed("was", self::operation);
    if let (Some(was), None) = (&was, table.key_span("operation")) {
        problems.at(
            was.span(),
            "`was` is an earlier name of the operation: add the current one, `operation = \"…\"`",
        );
    }
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
    let key_format = table.parsed("key_format", |text| choice(text, &KEY_FORMATS));
    let weak_keys = table.parsed("weak_keys", |text| choice(text, &WEAK_KEYS));
    let in_flight = in_flight(&mut table);
    let policy = PolicyOverrides::read(&mut table).apply_to(context.policy, &table);
    let fingerprint = table
        .table("fingerprint", "`fingerprint`")
        .map(|rules| super::fingerprint::read(rules, context.key_header))
        .unwrap_or_default();
    let outcomes = table
        .table("outcome", "`outcome`")
        .map(|outcome| outcomes(&outcome))
        .unwrap_or_default();
    let store_headers = table.list("store_headers", stored_header);
    let store_set_cookie = table.boolean("store_set_cookie");
    let replay = replay::read(&mut table, &context.reconcile);
    let reconcile = table
        .table("reconcile", "[route.reconcile]")
        .and_then(|rules| reconcile::read(rules, &context.reconcile));
    if let Some(span) = table.key_span("reconcile")
        && table.key_span("operation").is_none()
        && key != KeyRule::Ignored
    {
        problems.at(
            span,
            "`reconcile` needs a named operation: add `operation = \"create_payment\"`",
        );
    }
    table.finish();

    let pattern = pattern?;
    let span = pattern.span();
    let pattern = pattern.into_inner();
    routes.push(RouteConfig {
        operation: operation.map(Spanned::into_inner),
        was: was.map(Spanned::into_inner),
        pattern: pattern.clone(),
        match_exactly,
        key,
        key_scope: key_scope.map(Spanned::into_inner),
        min_length: min_length.map_or(1, Spanned::into_inner),
        key_format: key_format.map(Spanned::into_inner).unwrap_or_default(),
        weak_keys: weak_keys.map(Spanned::into_inner).unwrap_or_default(),
        in_flight,
        policy,
        fingerprint,
        outcomes,
        store_headers: store_headers.into_iter().map(Spanned::into_inner).collect(),
        store_set_cookie: store_set_cookie.is_some_and(Spanned::into_inner),
        replay,
        reconcile,
    });
    Some((pattern, span))
}

/// `key`; required by default, because a route is listed to guard it.
fn read_key(table: &mut Table<'_>) -> KeyRule {
    const WITHOUT_EFFECT: [&str; 15] = [
        "operation",
        "was",
        "upstream_timeout",
        "max_request",
        "key_scope",
        "min_length",
        "key_format",
        "weak_keys",
        "in_flight",
        "wait_max",
        "fingerprint",
        "outcome",
        "store_headers",
        "store_set_cookie",
        "reconcile",
    ];
    let names = [
        ("required", KeyRule::Required),
        ("optional", KeyRule::Optional),
        ("ignored", KeyRule::Ignored),
    ];
    let rule = table
        .parsed("key", |text| choice(text, &names))
        .map_or(KeyRule::Required, Spanned::into_inner);
    if rule == KeyRule::Ignored {
        let keys = WITHOUT_EFFECT.into_iter().chain(replay::KEYS);
        table.reject(keys.chain(PolicyOverrides::GUARDED_ONLY), |key| {
            format!("`key = \"ignored\"` guards nothing, so `{key}` has no effect here")
        });
    }
    rule
}

fn in_flight(table: &mut Table<'_>) -> InFlight {
    let names = [
        ("reject", InFlight::Reject),
        ("wait", InFlight::Wait { max: DEFAULT_WAIT }),
        ("accept", InFlight::Accept),
    ];
    let chosen = table.parsed("in_flight", |text| choice(text, &names));
    let wait_max = table.nonzero_duration("wait_max");
    let chosen = chosen.map(Spanned::into_inner).unwrap_or_default();
    let Some(wait_max) = wait_max else {
        return chosen;
    };
    let (span, max) = (wait_max.span(), wait_max.into_inner());
    match chosen {
        InFlight::Wait { .. } if max > MAX_WAIT => {
            let message = format!("`wait_max` must be at most {}", format_duration(MAX_WAIT));
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
            "invalid operation name: use 1 to {MAX_OPERATION_BYTES} bytes without control \
             characters, for example \"create_payment\""
        ));
    }
    Ok(text.into())
}

fn outcomes(table: &Table<'_>) -> BTreeMap<StatusPattern, OutcomeKind> {
    let names = OutcomeKind::ALL.map(|ending| (ending.as_str(), ending));
    let mut outcomes = BTreeMap::new();
    for (key, value) in table.entries() {
        let text = *key.get_ref();
        let code = status::parse_pattern(text)
            .map_err(|problem| table.problems.at(key.span(), problem))
            .ok();
        let outcome = match value.get_ref().as_str() {
            Some(name) => choice(name, &names),
            None => Err(format!(
                "the outcome of {text} must be a string, for example \"unknown\""
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

/// A header that may be replayed. Headers that describe a single exchange are refused.
fn stored_header(text: &str) -> Result<HeaderName, String> {
    let name = super::header_name(text)?;
    if name == http::header::SET_COOKIE {
        return Err("to store cookies, set `store_set_cookie = true`".to_owned());
    }
    semel_http::Route::default()
        .store_header(text)
        .map_err(|error| error.to_string())?;
    Ok(name)
}
