//! `[route.reconcile]`: how an unknown outcome is reconciled by polling.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use toml::Spanned;
use toml::de::DeValue;

use super::poll::{Placeholder, Poll};
use super::table::Table;
use super::units::format_duration;
use super::{Environment, status};

/// Default of `every`.
pub(crate) const DEFAULT_EVERY: Duration = Duration::from_secs(5);

/// Default of `max_every`.
pub(crate) const DEFAULT_MAX_EVERY: Duration = Duration::from_mins(10);

/// Default of `attempts`: about an hour.
pub(crate) const DEFAULT_ATTEMPTS: usize = 12;

/// Maximum of `attempts`.
const MAX_ATTEMPTS: usize = 1000;

/// Default of `timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum of `timeout`: a worker waits for the response.
pub const MAX_POLL_TIMEOUT: Duration = Duration::from_mins(5);

/// How unknown outcomes of a route are reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileConfig {
    /// The request to send.
    pub poll: Poll,
    /// The statuses that mean completed, each with the status to store.
    pub completed: BTreeMap<StatusCode, StatusCode>,
    /// The statuses that mean that the operation was not executed.
    pub not_executed: Vec<StatusCode>,
    /// Whether the application's own calls carry a key that is the same on every attempt, so that
    /// executing again is safe after `not_executed`.
    pub downstream_idempotent: bool,
    /// The time to the next poll, doubled with every poll.
    pub every: Duration,
    /// The longest time between two polls.
    pub max_every: Duration,
    /// How many polls before the operation is dead-lettered.
    pub attempts: u32,
    /// How long a response may take, including the connection.
    pub timeout: Duration,
    /// The `Authorization` header; never shown.
    pub authorization: Option<HeaderValue>,
}

/// Settings from the rest of the file.
pub(super) struct ReconcileContext<'a> {
    pub(super) environment: &'a Environment,
    /// Whether there is only one tenant, so that a key alone identifies a record.
    pub(super) one_tenant: bool,
    /// Whether the store has hashes in place of keys.
    pub(super) hashed_keys: bool,
}

pub(super) fn read(
    mut table: Table<'_>,
    context: &ReconcileContext<'_>,
) -> Option<ReconcileConfig> {
    let problems = table.problems;
    table.require(
        "poll",
        "poll = \"GET /payments/by-operation/{operation_id}\"",
    );
    table.require("completed", "completed = \"200\"");
    let poll = table.parsed("poll", |text| {
        let poll: Poll = text.parse()?;
        check_identifies_record(&poll, context.one_tenant)?;
        if context.hashed_keys && poll.contains(Placeholder::Key) {
            return Err(
                "`key_storage = \"hashed\"` stores no key that a poll could contain: use \
                 {operation_id} or {downstream_key} instead of {key}"
                    .to_owned(),
            );
        }
        Ok::<_, String>(poll)
    });
    let completed = statuses(&mut table, "completed");
    let stored = read_status_from(&mut table, &completed);
    let not_executed = statuses(&mut table, "not_executed");
    for status in &not_executed {
        if completed
            .iter()
            .any(|other| other.get_ref() == status.get_ref())
        {
            let message = format!(
                "{} must not be in both `completed` and `not_executed`",
                status.get_ref().as_u16()
            );
            problems.at(status.span(), message);
        }
    }
    let idempotent = table.boolean("downstream_idempotent");
    if let Some(idempotent) = &idempotent
        && *idempotent.get_ref()
        && table.key_span("not_executed").is_none()
    {
        let message = "`downstream_idempotent` has no effect without `not_executed`";
        problems.at(idempotent.span(), message);
    }
    let (every, max_every) = read_backoff(&mut table);
    let attempts = table.integer("attempts", 1..=MAX_ATTEMPTS);
    let timeout = table.parsed("timeout", |text| match super::units::duration(text)? {
        Duration::ZERO => Err("`timeout` must be longer than zero".to_owned()),
        long if long > MAX_POLL_TIMEOUT => Err(format!(
            "`timeout` must be at most {}",
            format_duration(MAX_POLL_TIMEOUT)
        )),
        timeout => Ok(timeout),
    });
    let authorization = table.parsed("authorization_env", |name| {
        credential(name, context.environment)
    });
    table.finish();

    let attempts = attempts.map_or(DEFAULT_ATTEMPTS, Spanned::into_inner);
    Some(ReconcileConfig {
        poll: poll?.into_inner(),
        completed: stored,
        not_executed: not_executed.into_iter().map(Spanned::into_inner).collect(),
        downstream_idempotent: idempotent.is_some_and(Spanned::into_inner),
        every,
        max_every,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        timeout: timeout.map_or(DEFAULT_TIMEOUT, Spanned::into_inner),
        authorization: authorization.map(Spanned::into_inner),
    })
}

/// Reads `[worker]`: when records are dead-lettered that no process reconciles.
pub(super) fn read_worker(mut table: Table<'_>) -> Option<Duration> {
    let after = table.nonzero_duration("dead_letter_unreconciled");
    table.finish();
    after.map(Spanned::into_inner)
}

/// Refuses a poll that cannot be sent for every unknown record, or that is the same for several
/// records: its response would be stored for each.
fn check_identifies_record(poll: &Poll, one_tenant: bool) -> Result<(), String> {
    if poll.contains(Placeholder::ResourceId) || poll.contains(Placeholder::ResourceType) {
        return Err(format!(
            "\"{poll}\" names the resource, which is not known while the outcome is unknown: \
             use {{operation_id}}"
        ));
    }
    if poll.contains(Placeholder::OperationId) || poll.contains(Placeholder::DownstreamKey) {
        return Ok(());
    }
    if !poll.contains(Placeholder::Key) {
        return Err(format!(
            "\"{poll}\" is the same request for all operations: add {{operation_id}}"
        ));
    }
    if !one_tenant && !poll.contains(Placeholder::Tenant) {
        return Err(format!(
            "\"{poll}\" uses {{key}}, which several tenants may have used: add {{tenant}}, or use \
             {{operation_id}}"
        ));
    }
    Ok(())
}

/// Reads statuses. Those that say nothing about the operation are refused, for example 401 and 503.
fn statuses(table: &mut Table<'_>, key: &'static str) -> Vec<Spanned<StatusCode>> {
    let problems = table.problems;
    let Some(value) = table.value(key) else {
        return Vec::new();
    };
    let mut broken = false;
    let mut statuses = status::list(value, |span, problem| {
        broken = true;
        problems.at(span, problem);
    });
    if statuses.is_empty() && !broken {
        problems.at(
            value.span(),
            format!("`{key}` has no status: add at least one"),
        );
    }
    statuses.retain(|status| {
        let code = status.get_ref().as_u16();
        let inconclusive = matches!(code, 401 | 403 | 407 | 408 | 425 | 429 | 500..);
        if inconclusive {
            let message = format!("status {code} says nothing about the operation: remove it");
            problems.at(status.span(), message);
        }
        !inconclusive
    });
    statuses
}

/// `status_from`: the status to store for each status in `completed`; by default the same.
fn read_status_from(
    table: &mut Table<'_>,
    completed: &[Spanned<StatusCode>],
) -> BTreeMap<StatusCode, StatusCode> {
    let problems = table.problems;
    let mut stored: BTreeMap<_, _> = completed
        .iter()
        .map(|status| (*status.get_ref(), *status.get_ref()))
        .collect();
    let Some(value) = table.value("status_from") else {
        return stored;
    };
    let DeValue::Table(each) = value.get_ref() else {
        match status::value(value.get_ref()) {
            Ok(one) => stored.values_mut().for_each(|status| *status = one),
            Err(problem) => problems.at(value.span(), problem),
        }
        return stored;
    };
    for (from, to) in each {
        let from_text: &str = from.get_ref();
        match status::parse(from_text) {
            Err(problem) => problems.at(from.span(), problem),
            Ok(from_status) => match stored.get_mut(&from_status) {
                None => {
                    let message = format!("status {from_text} is not in `completed`");
                    problems.at(from.span(), message);
                }
                Some(under) => match status::value(to.get_ref()) {
                    Ok(status) => *under = status,
                    Err(problem) => problems.at(to.span(), problem),
                },
            },
        }
    }
    stored
}

fn read_backoff(table: &mut Table<'_>) -> (Duration, Duration) {
    let every = table.nonzero_duration("every");
    let max_every = table.nonzero_duration("max_every");
    let span = max_every.as_ref().or(every.as_ref()).map(Spanned::span);
    let given = max_every.is_some();
    let every = every.map_or(DEFAULT_EVERY, Spanned::into_inner);
    let max_every = max_every.map_or(DEFAULT_MAX_EVERY, Spanned::into_inner);
    if let Some(span) = span.filter(|_| max_every < every) {
        let message = format!(
            "`every` ({}) is longer than `max_every` ({}){}",
            format_duration(every),
            format_duration(max_every),
            if given { "" } else { ", the default" }
        );
        table.problems.at(span, message);
    }
    (every, max_every)
}

/// The value of an `Authorization` header, from a variable.
pub(super) fn credential(name: &str, environment: &Environment) -> Result<HeaderValue, String> {
    let value = environment.require(name)?;
    if value.is_empty() {
        return Err(format!("environment variable {name} is empty"));
    }
    let visible = value.trim() == value && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let mut credential = HeaderValue::from_str(&value)
        .ok()
        .filter(|_| visible)
        .ok_or_else(|| {
            format!(
                "environment variable {name} is not a valid header value: write \"Bearer …\" in ASCII"
            )
        })?;
    credential.set_sensitive(true);
    Ok(credential)
}
