//! `[policy]`, and what a route overrides of it.

use std::time::Duration;

use semel_core::{OnExpired, Policy, Stale};
use semel_http::DEAD_LETTER_RETRY_AFTER;
use toml::Spanned;

use super::table::{Table, choice};
use super::units::format_duration;

/// Maximum of `max_request` and `max_response`. Bodies are held in memory while they are hashed and
/// stored.
pub const MAX_BODY: u64 = 256 * 1024 * 1024;

/// Default of `drain`.
pub(super) const DEFAULT_DRAIN: Duration = crate::server::Limits::DRAIN;

/// How the requests of a route are guarded, with all defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// The policy that the store applies.
    pub guard: Policy,
    /// `body_retention`, where it is set; without it a body is kept as long as its record.
    pub body_retention: Option<Duration>,
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
            body_retention: None,
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

/// The policy keys of one table.
pub(super) struct PolicyOverrides {
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

impl PolicyOverrides {
    /// The keys that have no effect on requests that are not guarded.
    pub(super) const GUARDED_ONLY: [&str; 7] = [
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
            lease: table.nonzero_duration("lease"),
            upstream_timeout: table.nonzero_duration("upstream_timeout"),
            retention: table.nonzero_duration("retention"),
            body_retention: table.duration("body_retention"),
            tombstone: table.parsed("tombstone", |text| match super::duration(text) {
                Ok(Duration::ZERO) => Err(
                    "`tombstone` must be longer than zero; to keep none, write `expiry = \"delete\"`"
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

    /// `base` with these overrides. Contradictions are reported.
    pub(super) fn apply_to(&self, base: &PolicyConfig, table: &Table<'_>) -> PolicyConfig {
        let mut policy = base.clone();
        let guard = &mut policy.guard;
        set(&mut guard.lease, self.lease.as_ref());
        set(&mut guard.windows.replay, self.retention.as_ref());
        set(&mut guard.on_expired, self.on_expired.as_ref());
        let own_body = self.body_retention.as_ref().map(|body| *body.get_ref());
        policy.body_retention = own_body.or(base.body_retention);
        let replay = guard.windows.replay;
        // An inherited body retention is capped: a body cannot outlive its record. A route's own is
        // checked.
        guard.windows.body = own_body
            .or(base.body_retention.map(|body| body.min(replay)))
            .unwrap_or(replay);
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
                Some(_) => {
                    "`expiry = \"delete\"` keeps no tombstone: remove `expiry` or `tombstone`"
                }
                None => {
                    "`[policy] expiry = \"delete\"` keeps no tombstone: \
                     add `expiry = \"tombstone\"` here, or remove this key"
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
                    "`body_retention` ({}) is longer than `retention` ({}): \
                     a body is deleted with its record",
                    format_duration(body),
                    format_duration(replay)
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
                    "`retention` ({}) is shorter than `lease` ({}): the response of a long \
                     execution would expire before a retry",
                    format_duration(replay),
                    format_duration(guard.lease)
                ),
            );
        }
        if let (Some(expiry), Some(on_expired)) = (&self.expiry, &self.on_expired)
            && *expiry.get_ref() == Expiry::Delete
            && *on_expired.get_ref() == OnExpired::Reject
        {
            problems.at(
                on_expired.span(),
                "`expiry = \"delete\"` keeps nothing that could reject a late retry: \
                 write `on_expired = \"execute\"`, or `expiry = \"tombstone\"`",
            );
        }
    }
}

/// `[policy]`.
pub(super) struct PolicyDocument {
    /// For all routes.
    pub(super) routes: PolicyConfig,
    pub(super) drain_delay: Duration,
    pub(super) drain: Duration,
    pub(super) dead_letter_retry_after: Duration,
}

impl Default for PolicyDocument {
    fn default() -> Self {
        Self {
            routes: PolicyConfig::default(),
            drain_delay: Duration::ZERO,
            drain: DEFAULT_DRAIN,
            dead_letter_retry_after: DEAD_LETTER_RETRY_AFTER,
        }
    }
}

/// Reads `[policy]`.
pub(super) fn read(table: Option<Table<'_>>) -> PolicyDocument {
    let mut read = PolicyDocument::default();
    let Some(mut table) = table else {
        return read;
    };
    let overrides = PolicyOverrides::read(&mut table);
    set(
        &mut read.drain_delay,
        table.duration("drain_delay").as_ref(),
    );
    set(&mut read.drain, table.duration("drain").as_ref());
    let dead_letter = table.parsed("dead_letter_retry_after", |text| {
        match super::duration(text) {
            Ok(wait) if wait < Duration::from_secs(1) => {
                Err("`dead_letter_retry_after` must be at least 1s".to_owned())
            }
            other => other,
        }
    });
    table.parsed("stale", |text| {
        match choice(text, &[("unknown", false), ("resume", true)]) {
            Ok(true) => Err(
                "the gateway has no recovery points to resume at: write `stale = \"unknown\"`; \
             only applications that use the library can resume"
                    .to_owned(),
            ),
            Ok(false) => Ok(Stale::Unknown),
            Err(problem) => Err(problem),
        }
    });
    set(&mut read.dead_letter_retry_after, dead_letter.as_ref());
    read.routes = overrides.apply_to(&read.routes, &table);
    table.finish();
    read
}

fn set<T: Copy>(to: &mut T, value: Option<&Spanned<T>>) {
    if let Some(value) = value {
        *to = *value.get_ref();
    }
}
