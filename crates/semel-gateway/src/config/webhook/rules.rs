//! How events are matched to operations, and what they mean.

use semel_core::fingerprint::Pointer;
use semel_worker::webhook::{MAX_EQUALS, Match, RecordSelector, Rules, TenantSelector};
use toml::Spanned;

use super::super::status;
use super::super::table::{Table, choice};
use super::WebhookContext;
use crate::config::RouteConfig;

/// The keys that say how to find the operation of an event.
const LOOKUP_KEYS: [&str; 3] = ["operation_id", "key", "resource_id"];

/// Reads the operation and the rules. All keys are read even if some are invalid, so that none is
/// reported as unknown.
pub(super) fn read(
    table: &mut Table<'_>,
    context: &WebhookContext<'_>,
) -> (Option<Box<str>>, Option<Rules>) {
    let problems = table.problems;
    // Each with the name that its records have.
    let names: Vec<(&str, &str)> = context
        .routes
        .iter()
        .filter_map(|route| Some((route.operation.as_deref()?, route.identity_name()?)))
        .collect();
    let identity = table.parsed("operation", |text| {
        choice(text, &names).map_err(|problem| match names.len() {
            0 => format!("unknown operation {text:?}: no route has an `operation`"),
            _ => format!("unknown operation: {problem}"),
        })
    });
    let identity = identity.map(Spanned::into_inner);
    let operation = names
        .iter()
        .find(|(_, of)| Some(*of) == identity)
        .map(|(name, _)| Box::from(*name));
    let operations = match identity {
        Some(one) => vec![one.into()],
        None => distinct(&names),
    };
    let find = read_find(table, context, operations);

    let completed = read_match(table, "completed", "`completed`");
    let not_executed = read_match(table, "not_executed", "`not_executed`");
    if ["completed", "not_executed"]
        .iter()
        .all(|key| table.key_span(key).is_none())
    {
        problems.at(
            table.span(),
            "[[webhook]] has neither `completed` nor `not_executed`: add \
             `completed = { pointer = \"/type\", equals = [\"payment.succeeded\"] }`",
        );
    }
    if let (Some(completed), Some(not_executed)) = (&completed, &not_executed)
        && completed.pointer == not_executed.pointer
    {
        for value in &not_executed.equals {
            if completed
                .equals
                .iter()
                .any(|other| other.get_ref() == value.get_ref())
            {
                let message = format!(
                    "{:?} must not be in both `completed` and `not_executed`",
                    value.get_ref()
                );
                problems.at(value.span(), message);
            }
        }
    }
    let response_body = table.parsed("response_body", str::parse::<Pointer>);
    let (status, statuses) = read_statuses(table, completed.as_ref());
    if table.key_span("completed").is_none() {
        table.reject(["response_body", "status", "statuses"], |key| {
            format!("`{key}` has no effect without `completed`")
        });
    }
    let rules = find.map(|find| Rules {
        completed: completed.map(SpannedMatch::into_match),
        not_executed: not_executed.map(SpannedMatch::into_match),
        response_body: response_body.map(Spanned::into_inner),
        status: status.unwrap_or(200),
        statuses,
        schema_version: schema_version(context.routes, identity),
        ..Rules::new(find)
    });
    (operation, rules)
}

/// The schema version of the responses that a webhook reports: that of its routes, where they agree.
fn schema_version(routes: &[RouteConfig], identity: Option<&str>) -> u16 {
    let covers = |route: &&RouteConfig| identity.is_none() || route.identity_name() == identity;
    let mut schemas = routes
        .iter()
        .filter(covers)
        .map(|route| route.replay.schema);
    let first = schemas.next().unwrap_or(0);
    if schemas.all(|other| other == first) {
        first
    } else {
        0
    }
}

fn distinct(names: &[(&str, &str)]) -> Vec<Box<str>> {
    let mut all: Vec<Box<str>> = names.iter().map(|(_, of)| (*of).into()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn read_find(
    table: &mut Table<'_>,
    context: &WebhookContext<'_>,
    operations: Vec<Box<str>>,
) -> Option<RecordSelector> {
    let problems = table.problems;
    let [operation_id, key, resource_id] =
        LOOKUP_KEYS.map(|key| table.parsed(key, inner_pointer).map(Spanned::into_inner));
    let tenant = table.parsed("tenant", inner_pointer);
    let given: Vec<_> = LOOKUP_KEYS
        .into_iter()
        .filter_map(|key| table.key_span(key))
        .collect();
    match given.as_slice() {
        [] => problems.at(
            table.span(),
            "[[webhook]] does not say how to find the operation of an event: add \
             `operation_id = \"/data/metadata/operation_id\"`, or `key` and `tenant`, or \
             `resource_id`",
        ),
        [_] => {}
        [_, rest @ ..] => {
            for span in rest {
                problems.at(
                    span.clone(),
                    "use only one of `operation_id`, `key` and `resource_id`",
                );
            }
        }
    }
    let by_key = table.key_span("key");
    if let (Some(span), true) = (&by_key, context.hashed_keys) {
        problems.at(
            span.clone(),
            "`key_storage = \"hashed\"` keeps keys out of the store, and an event that contains one \
             is stored: use `operation_id` or `resource_id`",
        );
    }
    let name = match (&by_key, tenant, context.one_tenant) {
        (None, Some(tenant), _) => {
            problems.at(tenant.span(), "`tenant` has no effect without `key`");
            None
        }
        (Some(_), Some(tenant), Some(_)) => {
            problems.at(
                tenant.span(),
                "`[tenant] from = \"none\"` has one tenant, so `tenant` has no effect here",
            );
            None
        }
        (Some(_), Some(tenant), None) => Some(TenantSelector::At(tenant.into_inner())),
        (Some(_), None, Some(only)) => Some(TenantSelector::Fixed(only.into())),
        (Some(span), None, None) => {
            if table.key_span("tenant").is_none() {
                problems.at(
                    span.clone(),
                    "several tenants may have used one key: add `tenant = \"/data/account\"`, or \
                     use `operation_id`",
                );
            }
            None
        }
        (None, None, _) => None,
    };
    if let Some(span) = by_key.filter(|_| operations.is_empty()) {
        let message = "`key` needs an operation, and no route has an `operation`";
        problems.at(span, message);
    }
    match (operation_id, key, resource_id) {
        (Some(pointer), _, _) => Some(RecordSelector::Operation(pointer)),
        (None, Some(key), _) => Some(RecordSelector::Key {
            key,
            tenant: name?,
            operations,
        }),
        (None, None, Some(pointer)) => Some(RecordSelector::Resource(pointer)),
        (None, None, None) => None,
    }
}

/// A pointer to a value inside the event.
fn inner_pointer(text: &str) -> Result<Pointer, String> {
    if text.is_empty() {
        return Err(
            "this points to the whole event: point to a value, for example \"/id\"".to_owned(),
        );
    }
    text.parse()
        .map_err(|error: semel_core::fingerprint::Error| error.to_string())
}

/// A [`Match`] with the spans of its values.
struct SpannedMatch {
    pointer: Pointer,
    equals: Vec<Spanned<Box<str>>>,
}

impl SpannedMatch {
    fn into_match(self) -> Match {
        Match {
            pointer: self.pointer,
            equals: self.equals.into_iter().map(Spanned::into_inner).collect(),
        }
    }
}

fn read_match(
    table: &mut Table<'_>,
    key: &'static str,
    name: &'static str,
) -> Option<SpannedMatch> {
    let mut rule = table.table(key, name)?;
    let problems = rule.problems;
    rule.require("pointer", "pointer = \"/type\"");
    rule.require("equals", "equals = [\"payment.succeeded\"]");
    let pointer = rule.parsed("pointer", inner_pointer);
    let equals = rule.one_or_more("equals", |text| Ok::<Box<str>, String>(text.into()));
    if let Some(span) = rule.key_span("equals")
        && !(1..=MAX_EQUALS).contains(&equals.len())
    {
        problems.at(span, format!("`equals` must have 1 to {MAX_EQUALS} values"));
    }
    rule.finish();
    Some(SpannedMatch {
        pointer: pointer?.into_inner(),
        equals,
    })
}

/// `status`, and `statuses` by the value that `completed` matched.
fn read_statuses(
    table: &mut Table<'_>,
    completed: Option<&SpannedMatch>,
) -> (Option<u16>, Vec<(Box<str>, u16)>) {
    let problems = table.problems;
    let one = table.value("status").and_then(|value| {
        status::value(value.get_ref())
            .map_err(|problem| problems.at(value.span(), problem))
            .ok()
    });
    let mut statuses = Vec::new();
    if let Some(each) = table.table("statuses", "`statuses`") {
        for (value, under) in each.entries() {
            let name = *value.get_ref();
            let known = completed
                .is_none_or(|rule| rule.equals.iter().any(|equal| **equal.get_ref() == *name));
            if !known {
                let message = format!("{name:?} is not a value of `completed`");
                problems.at(value.span(), message);
            }
            match status::value(under.get_ref()) {
                Ok(status) => statuses.push((name.into(), status.as_u16())),
                Err(problem) => problems.at(under.span(), problem),
            }
        }
    }
    (one.map(|status| status.as_u16()), statuses)
}
