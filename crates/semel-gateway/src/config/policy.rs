//! `[policy]`, and what a route changes of it.

use std::time::Duration;

use semel_core::{OnExpired, Policy, Stale};
use toml::Spanned;

use super::table::{Table, choice};
use super::units::spell;

/// The largest body that can be asked for. Bodies are held in memory while they are hashed and
/// stored.
pub const MAX_BODY: u64 = 256 * 1024 * 1024;

/// How long the gateway waits for running executions at its end, unless it is told.
pub(super) const DRAIN: Duration = crate::server::Limits::DRAIN;

/// How the requests of a route are guarded, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// What the store is told.
    pub guard: Policy,
    /// How long the upstream may take for one request.
    pub upstream_timeout: Duration,
    /// The largest request body, in bytes.
    pub max_request: u64,
    /// The largest response body that is stored, in bytes.
    pub max_response: u64,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            guard: Policy::default(),
            upstream_timeout: Duration::from_mins(1),
            max_request: 8 << 20,
            max_response: 1 << 20,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Tombstone,
    Delete,
}

/// What a table says about its policy.
pub(super) struct Draft {
    lease: Option<Spanned<Duration>>,
    upstream_timeout: Option<Spanned<Duration>>,
    retention: Option<Spanned<Duration>>,
    body_retention: Option<Spanned<Duration>>,
    tombstone: Option<Spanned<Duration>>,
    expiry: Option<Spanned<Expiry>>,
    on_expired: Option<Spanned<OnExpired>>,
    max_request: Option<Spanned<u64>>,
    max_response: Option<Spanned<u64>>,
}

impl Draft {
    /// The keys that say how a guarded request is remembered: without effect where nothing is
    /// guarded.
    pub(super) const GUARDING: [&str; 7] = [
        "lease",
        "retention",
        "body_retention",
        "tombstone",
        "expiry",
        "on_expired",
        "max_response",
    ];

    pub(super) fn read(table: &mut Table<'_>) -> Self {
        const EXPIRY: [(&str, Expiry); 2] =
            [("tombstone", Expiry::Tombstone), ("delete", Expiry::Delete)];
        const ON_EXPIRED: [(&str, OnExpired); 2] = [
            ("reject", OnExpired::Reject),
            ("execute", OnExpired::Execute),
        ];
        Self {
            lease: table.some_time("lease"),
            upstream_timeout: table.some_time("upstream_timeout"),
            retention: table.some_time("retention"),
            body_retention: table.duration("body_retention"),
            tombstone: table.parsed("tombstone", |text| match super::duration(text) {
                Ok(Duration::ZERO) => Err(
                    "a tombstone that stays for no time is none; write `expiry = \"delete\"`"
                        .to_owned(),
                ),
                other => other,
            }),
            expiry: table.parsed("expiry", |text| choice(text, &EXPIRY)),
            on_expired: table.parsed("on_expired", |text| choice(text, &ON_EXPIRED)),
            max_request: table.size("max_request", MAX_BODY),
            max_response: table.size("max_response", MAX_BODY),
        }
    }

    /// The policy that results where this table says nothing of its own and `base` holds.
    pub(super) fn over(&self, base: &PolicyConfig, table: &Table<'_>) -> PolicyConfig {
        let mut policy = base.clone();
        let guard = &mut policy.guard;
        set(&mut guard.lease, self.lease.as_ref());
        set(&mut guard.windows.replay, self.retention.as_ref());
        set(&mut guard.on_expired, self.on_expired.as_ref());
        // What nobody said here follows what somebody did: a body cannot outlive its record.
        guard.windows.body = self
            .body_retention
            .as_ref()
            .map_or(guard.windows.body.min(guard.windows.replay), |body| {
                *body.get_ref()
            });
        guard.windows.tombstone = self.tombstone(base, table);
        self.check(&policy.guard, table);
        set(&mut policy.upstream_timeout, self.upstream_timeout.as_ref());
        set(&mut policy.max_request, self.max_request.as_ref());
        set(&mut policy.max_response, self.max_response.as_ref());
        policy
    }

    fn tombstone(&self, base: &PolicyConfig, table: &Table<'_>) -> Option<Duration> {
        let inherited = base.guard.windows.tombstone;
        let expiry = self.expiry.as_ref().map(|expiry| *expiry.get_ref());
        let deletes = match expiry {
            Some(expiry) => expiry == Expiry::Delete,
            None => inherited.is_none(),
        };
        if let (true, Some(tombstone)) = (deletes, &self.tombstone) {
            let message = match expiry {
                Some(_) => "`expiry = \"delete\"` leaves no tombstone; keep one of the two",
                None => {
                    "`[policy] expiry = \"delete\"` leaves no tombstone; \
                     add `expiry = \"tombstone\"` here, or take this out"
                }
            };
            table.problems.at(tombstone.span(), message);
        }
        if deletes {
            return None;
        }
        let tombstone = self
            .tombstone
            .as_ref()
            .map(|tombstone| *tombstone.get_ref());
        tombstone
            .or(inherited)
            .or(Policy::default().windows.tombstone)
    }

    fn check(&self, guard: &Policy, table: &Table<'_>) {
        let problems = table.problems;
        let (replay, body) = (guard.windows.replay, guard.windows.body);
        if let Some(span) = self.body_retention.as_ref().map(Spanned::span)
            && body > replay
        {
            problems.at(
                span,
                format!(
                    "`body_retention` ({}) is longer than `retention` ({}), \
                     and a body goes with its record",
                    spell(body),
                    spell(replay)
                ),
            );
        }
        let named = self.retention.as_ref().or(self.lease.as_ref());
        if let Some(span) = named.map(Spanned::span)
            && replay < guard.lease
        {
            problems.at(
                span,
                format!(
                    "`retention` ({}) is shorter than `lease` ({}): a retry would come too late \
                     for an answer that took that long",
                    spell(replay),
                    spell(guard.lease)
                ),
            );
        }
        if let (Some(expiry), Some(on_expired)) = (&self.expiry, &self.on_expired)
            && *expiry.get_ref() == Expiry::Delete
            && *on_expired.get_ref() == OnExpired::Reject
        {
            problems.at(
                on_expired.span(),
                "`expiry = \"delete\"` leaves nothing to reject a late retry by; \
                 write `on_expired = \"execute\"`, or `expiry = \"tombstone\"`",
            );
        }
    }
}

/// Reads `[policy]`: the policy of all routes, and how long a shutdown waits.
pub(super) fn read(table: Option<Table<'_>>) -> (PolicyConfig, Duration) {
    let base = PolicyConfig::default();
    let Some(mut table) = table else {
        return (base, DRAIN);
    };
    let draft = Draft::read(&mut table);
    let drain = table.duration("drain");
    table.parsed("stale", |text| {
        match choice(text, &[("unknown", false), ("resume", true)]) {
            Ok(true) => Err(
                "the gateway has no recovery points to resume at: write `stale = \"unknown\"`; \
             resuming is for applications that use the library"
                    .to_owned(),
            ),
            Ok(false) => Ok(Stale::Unknown),
            Err(problem) => Err(problem),
        }
    });
    let policy = draft.over(&base, &table);
    table.finish();
    (policy, drain.map_or(DRAIN, Spanned::into_inner))
}

fn set<T: Copy>(to: &mut T, said: Option<&Spanned<T>>) {
    if let Some(said) = said {
        *to = *said.get_ref();
    }
}
