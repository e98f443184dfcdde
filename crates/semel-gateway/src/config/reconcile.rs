//! `[route.reconcile]`: how the truth is found when the outcome is unknown.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use toml::Spanned;
use toml::de::DeValue;

use super::poll::{Place, Poll};
use super::table::Table;
use super::units::spell;
use super::{Environment, status};

/// When an operation is first asked about again, unless it is told.
pub(crate) const EVERY: Duration = Duration::from_secs(5);

/// The longest time between two looks, unless it is told.
pub(crate) const MAX_EVERY: Duration = Duration::from_mins(10);

/// How many looks before a person is asked, unless it is told: about an hour.
pub(crate) const ATTEMPTS: usize = 12;

/// The most looks that can be asked for.
const MAX_ATTEMPTS: usize = 1000;

/// How long an answer may take, unless it is told.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest that an answer may take: a worker waits for it.
pub const MAX_POLL_TIMEOUT: Duration = Duration::from_mins(5);

/// How the outcome of a route's operations is found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileConfig {
    /// Where to ask.
    pub poll: Poll,
    /// The answers that are the operation's own, under the status that each is stored with.
    pub completed: BTreeMap<StatusCode, StatusCode>,
    /// The answers that say that there is no such operation.
    pub not_executed: Vec<StatusCode>,
    /// Whether the application's own calls carry a key that is the same on every attempt, so
    /// that trying again is safe where nothing was found.
    pub downstream_idempotent: bool,
    /// When to look again, doubled with every look.
    pub every: Duration,
    /// The longest time between two looks.
    pub max_every: Duration,
    /// How many looks before a person is asked.
    pub attempts: u32,
    /// How long an answer may take, connecting included.
    pub timeout: Duration,
    /// What is sent as `Authorization`. It is never shown.
    pub authorization: Option<HeaderValue>,
}

/// What the rest of the file says.
pub(super) struct Around<'a> {
    pub(super) environment: &'a Environment,
    /// Whether there is one tenant, so that a key alone names an operation.
    pub(super) one_tenant: bool,
}

pub(super) fn read(mut table: Table<'_>, around: &Around<'_>) -> Option<ReconcileConfig> {
    let problems = table.problems;
    for (key, example) in [
        (
            "poll",
            "poll = \"GET /payments/by-operation/{operation_id}\"",
        ),
        ("completed", "completed = \"200\""),
    ] {
        if table.key_span(key).is_none() {
            let message = format!("`[route.reconcile]` has no `{key}`; write `{example}`");
            problems.at(table.span(), message);
        }
    }
    let poll = table.parsed("poll", |text| {
        let poll: Poll = text.parse()?;
        names_one(&poll, around.one_tenant)?;
        Ok::<_, String>(poll)
    });
    let completed = statuses(&mut table, "completed");
    let stored = stored_as(&mut table, &completed);
    let not_executed = statuses(&mut table, "not_executed");
    for status in &not_executed {
        if completed
            .iter()
            .any(|other| other.get_ref() == status.get_ref())
        {
            let message = format!(
                "{} cannot mean both that it happened and that it did not",
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
        long if long > MAX_POLL_TIMEOUT => {
            Err(format!("`timeout` is at most {}", spell(MAX_POLL_TIMEOUT)))
        }
        timeout => Ok(timeout),
    });
    let authorization = table.parsed("authorization_env", |name| {
        credential(name, around.environment)
    });
    table.finish();

    let attempts = attempts.map_or(ATTEMPTS, Spanned::into_inner);
    Some(ReconcileConfig {
        poll: poll?.into_inner(),
        completed: stored,
        not_executed: not_executed.into_iter().map(Spanned::into_inner).collect(),
        downstream_idempotent: idempotent.is_some_and(Spanned::into_inner),
        every,
        max_every,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        timeout: timeout.map_or(TIMEOUT, Spanned::into_inner),
        authorization: authorization.map(Spanned::into_inner),
    })
}

/// One answer for all operations would be taken for the answer of each.
fn names_one(poll: &Poll, one_tenant: bool) -> Result<(), String> {
    if poll.names(Place::OperationId) || poll.names(Place::DownstreamKey) {
        return Ok(());
    }
    if !poll.names(Place::Key) {
        return Err(format!(
            "\"{poll}\" asks the same for all operations; put {{operation_id}} into it"
        ));
    }
    if !one_tenant && !poll.names(Place::Tenant) {
        return Err(format!(
            "\"{poll}\" asks by a key that several tenants may have used; put {{tenant}} into it, \
             or ask by {{operation_id}}"
        ));
    }
    Ok(())
}

/// Statuses that say something of the operation, and not of whoever answers for it.
fn statuses(table: &mut Table<'_>, key: &'static str) -> Vec<Spanned<StatusCode>> {
    let problems = table.problems;
    let Some(value) = table.raw(key) else {
        return Vec::new();
    };
    let mut broken = false;
    let mut statuses = status::list(value, |span, problem| {
        broken = true;
        problems.at(span, problem);
    });
    if statuses.is_empty() && !broken {
        problems.at(value.span(), format!("`{key}` names no status"));
    }
    statuses.retain(|status| {
        let code = status.get_ref().as_u16();
        let says_nothing = matches!(code, 401 | 403 | 407 | 408 | 425 | 429 | 500..);
        if says_nothing {
            let message = format!("an answer {code} says nothing about the operation");
            problems.at(status.span(), message);
        }
        !says_nothing
    });
    statuses
}

/// `status_from`: what each answer is stored under; its own status where nothing is said.
fn stored_as(
    table: &mut Table<'_>,
    completed: &[Spanned<StatusCode>],
) -> BTreeMap<StatusCode, StatusCode> {
    let problems = table.problems;
    let mut stored: BTreeMap<_, _> = completed
        .iter()
        .map(|status| (*status.get_ref(), *status.get_ref()))
        .collect();
    let Some(value) = table.raw("status_from") else {
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
                    let message = format!("{from_text} is not among `completed`");
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
    let every = table.some_time("every");
    let max_every = table.some_time("max_every");
    let span = max_every.as_ref().or(every.as_ref()).map(Spanned::span);
    let said = max_every.is_some();
    let every = every.map_or(EVERY, Spanned::into_inner);
    let max_every = max_every.map_or(MAX_EVERY, Spanned::into_inner);
    if let Some(span) = span.filter(|_| max_every < every) {
        let message = format!(
            "`every` ({}) is longer than `max_every` ({}){}",
            spell(every),
            spell(max_every),
            if said { "" } else { ", its default" }
        );
        table.problems.at(span, message);
    }
    (every, max_every)
}

fn credential(name: &str, environment: &Environment) -> Result<HeaderValue, String> {
    let value = environment
        .value(name)?
        .ok_or_else(|| format!("the environment has no variable {name}"))?;
    if value.is_empty() {
        return Err(format!("the variable {name} is empty"));
    }
    let visible = value.trim() == value && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let mut credential = HeaderValue::from_str(&value)
        .ok()
        .filter(|_| visible)
        .ok_or_else(|| {
            format!("the variable {name} holds what cannot be sent: write \"Bearer …\" in ASCII")
        })?;
    credential.set_sensitive(true);
    Ok(credential)
}
