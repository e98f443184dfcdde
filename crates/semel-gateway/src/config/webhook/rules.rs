//! What events mean.

use semel_core::fingerprint::Pointer;
use semel_worker::webhook::{Find, MAX_EQUALS, Match, Rules, TenantName};
use toml::Spanned;

use super::super::status;
use super::super::table::{Table, choice};
use super::Around;

/// The ways to find an operation, by the key that asks for each.
const WAYS: [&str; 3] = ["operation_id", "key", "resource_id"];

/// Reads what events are about, and what they say. All keys are read, whatever is wrong with
/// some, so that none is called unknown for another's fault.
pub(super) fn read(
    table: &mut Table<'_>,
    around: &Around<'_>,
) -> (Option<Box<str>>, Option<Rules>) {
    let problems = table.problems;
    let names: Vec<(&str, &str)> = around
        .routes
        .iter()
        .filter_map(|route| route.operation.as_deref())
        .map(|name| (name, name))
        .collect();
    let operation = table.parsed("operation", |text| {
        choice(text, &names).map_err(|problem| match names.len() {
            0 => format!("no route has an `operation`, so there is none called {text:?}"),
            _ => format!("no route has this `operation`: {problem}"),
        })
    });
    let operation: Option<Box<str>> = operation.map(|name| (*name.get_ref()).into());
    let operations = match &operation {
        Some(one) => vec![one.clone()],
        None => distinct(&names),
    };
    let find = read_find(table, around, operations);

    let completed = read_match(table, "completed", "`completed`");
    let not_executed = read_match(table, "not_executed", "`not_executed`");
    if ["completed", "not_executed"]
        .iter()
        .all(|key| table.key_span(key).is_none())
    {
        problems.at(
            table.span(),
            "the webhook says neither which events mean that it happened nor which that it did \
             not; write `completed = { pointer = \"/type\", equals = [\"payment.succeeded\"] }`",
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
                    "{:?} cannot mean both that it happened and that it did not",
                    value.get_ref()
                );
                problems.at(value.span(), message);
            }
        }
    }
    let response_body = table.parsed("response_body", str::parse::<Pointer>);
    let (status, statuses) = read_statuses(table, completed.as_ref());
    if table.key_span("completed").is_none() {
        for key in ["response_body", "status", "statuses"] {
            if let Some(span) = table.key_span(key) {
                problems.at(span, format!("`{key}` has no effect without `completed`"));
            }
        }
    }
    let rules = find.map(|find| Rules {
        completed: completed.map(Draft::into_match),
        not_executed: not_executed.map(Draft::into_match),
        response_body: response_body.map(Spanned::into_inner),
        status: status.unwrap_or(200),
        statuses,
        ..Rules::new(find)
    });
    (operation, rules)
}

fn distinct(names: &[(&str, &str)]) -> Vec<Box<str>> {
    let mut all: Vec<Box<str>> = names.iter().map(|(name, _)| (*name).into()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn read_find(
    table: &mut Table<'_>,
    around: &Around<'_>,
    operations: Vec<Box<str>>,
) -> Option<Find> {
    let problems = table.problems;
    let [operation_id, key, resource_id] =
        WAYS.map(|way| table.parsed(way, not_whole).map(Spanned::into_inner));
    let tenant = table.parsed("tenant", not_whole);
    let given: Vec<_> = WAYS
        .into_iter()
        .filter_map(|way| table.key_span(way))
        .collect();
    match given.as_slice() {
        [] => problems.at(
            table.span(),
            "the webhook does not say which operation an event is about; \
             write `operation_id = \"/data/metadata/operation_id\"`, or `key` and `tenant`, or \
             `resource_id`",
        ),
        [_] => {}
        [_, rest @ ..] => {
            for span in rest {
                problems.at(
                    span.clone(),
                    "an operation is found by `operation_id`, by `key` or by `resource_id`; keep \
                     one of them",
                );
            }
        }
    }
    let by_key = table.key_span("key");
    let name = match (&by_key, tenant, around.one_tenant) {
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
        (Some(_), Some(tenant), None) => Some(TenantName::At(tenant.into_inner())),
        (Some(_), None, Some(only)) => Some(TenantName::Fixed(only.into())),
        (Some(span), None, None) => {
            if table.key_span("tenant").is_none() {
                problems.at(
                    span.clone(),
                    "several tenants may have used one key; add `tenant = \"/data/account\"`, or \
                     find the operation by `operation_id`",
                );
            }
            None
        }
        (None, None, _) => None,
    };
    if let Some(span) = by_key.filter(|_| operations.is_empty()) {
        let message = "a key belongs to an operation, and no route has an `operation`";
        problems.at(span, message);
    }
    match (operation_id, key, resource_id) {
        (Some(pointer), _, _) => Some(Find::Operation(pointer)),
        (None, Some(key), _) => Some(Find::Key {
            key,
            tenant: name?,
            operations,
        }),
        (None, None, Some(pointer)) => Some(Find::Resource(pointer)),
        (None, None, None) => None,
    }
}

/// A pointer to one value: the whole event is no name.
fn not_whole(text: &str) -> Result<Pointer, String> {
    if text.is_empty() {
        return Err(
            "this points to the whole event; write where in it, such as \"/id\"".to_owned(),
        );
    }
    text.parse()
        .map_err(|error: semel_core::fingerprint::Error| error.to_string())
}

/// A rule that still knows where it is written.
struct Draft {
    pointer: Pointer,
    equals: Vec<Spanned<Box<str>>>,
}

impl Draft {
    fn into_match(self) -> Match {
        Match {
            pointer: self.pointer,
            equals: self.equals.into_iter().map(Spanned::into_inner).collect(),
        }
    }
}

fn read_match(table: &mut Table<'_>, key: &'static str, name: &'static str) -> Option<Draft> {
    let mut rule = table.table(key, name)?;
    let problems = rule.problems;
    for needed in ["pointer", "equals"] {
        if rule.key_span(needed).is_none() {
            problems.at(rule.span(), format!("`{key}` has no `{needed}`"));
        }
    }
    let pointer = rule.parsed("pointer", not_whole);
    let equals = rule.one_or_more("equals", |text| Ok::<Box<str>, String>(text.into()));
    if let Some(span) = rule.key_span("equals")
        && !(1..=MAX_EQUALS).contains(&equals.len())
    {
        problems.at(span, format!("`equals` has 1 to {MAX_EQUALS} values"));
    }
    rule.finish();
    Some(Draft {
        pointer: pointer?.into_inner(),
        equals,
    })
}

/// `status`, and `statuses` by the value that `completed` matched.
fn read_statuses(
    table: &mut Table<'_>,
    completed: Option<&Draft>,
) -> (Option<u16>, Vec<(Box<str>, u16)>) {
    let problems = table.problems;
    let one = table.raw("status").and_then(|value| {
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
                let message = format!("{name:?} is not among the values of `completed`");
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
