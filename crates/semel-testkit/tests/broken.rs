//! The suite can fail: a store with one rule missing is found out, by the right case.
#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    clippy::panic,
    reason = "any answer but the right one fails the test"
)]

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::figures::{Census, Survey};
use semel_core::history::{Entry, What};
use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::outbox::{Event, EventId, Waiting};
use semel_core::store::{Epoch, MAX_BATCH, Page, Query, Result, Standing, Summary, Which};
use semel_core::transition::{InProgress, Replay};
use semel_core::{
    Backoff, By, Clock, Code, Completion, Decision, Fence, Figures, Held, Identity, Inbox, Inspect,
    Key, Maintain, Memory, OperationId, Outbox, Owner, Policy, Record, RecoveryPoint, Reserve,
    Resolution, Resolve, Resource, Stale, State, Status, Store, Verdict,
};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{self, Fixture, Harness, Scale};

/// The rule that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    FenceOnComplete,
    FenceOnRelease,
    FenceOnResolve,
    UnknownOnLeaseExpiry,
    MisuseBeforeInFlight,
    PruneGuard,
    AtomicReserve,
    ReplayWindow,
    KeyCase,
    Tenant,
    HeaderOrder,
    BodyBytes,
    EmptyBody,
    ClaimSchedule,
    SweepLimit,
    PageOrder,
    RecoveryPoint,
    HistoryEntry,
    ErasedEvidence,
    OneReceipt,
    RevealTold,
    WalkGoesOn,
    LatestCensus,
    SurveyOfAll,
    WholeKey,
    ParkedSchedule,
    NamedResource,
    OthersOperations,
    AbandonedCommand,
    AbandonedAttempt,
    ResumeBeforeSweep,
    HeldBack,
    OneRelay,
    SentIsGone,
    DeadLetsGoOn,
    OwnTries,
    RevivedOnce,
}

/// Evidence as it was before it was erased.
type Seen = Arc<Mutex<HashMap<OperationId, Vec<Option<Bytes>>>>>;

#[derive(Clone)]
struct Broken {
    inner: Memory,
    clock: ManualClock,
    missing: Missing,
    seen: Seen,
}

impl Broken {
    /// The fence that the record has, whoever asks.
    async fn any_fence(&self, fence: Fence) -> Result<Fence> {
        let found = self.inner.find(fence.id).await?;
        Ok(found.map_or(fence, |record| record.fence()))
    }
}

impl Store for Broken {
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.inner.epoch()
    }

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let mut request = request;
        let identity = request.identity.clone();
        let found = self.inner.find_identity(&identity).await?;
        match (self.missing, found) {
            (Missing::UnknownOnLeaseExpiry, _) => {
                request.policy.stale = Stale::Resume;
                request.policy.recovery_points = true;
            }
            (Missing::MisuseBeforeInFlight, Some(record)) => {
                if let State::InProgress(lease) = &record.state
                    && lease.locked_until > self.clock.now()
                {
                    return Ok(Decision::InProgress(InProgress {
                        fence: record.fence(),
                        locked_until: lease.locked_until,
                    }));
                }
            }
            (Missing::ReplayWindow, Some(record)) => {
                if let State::Completed(completed) = record.state
                    && request.fingerprints.matches(record.fingerprint)
                {
                    return Ok(Decision::Replay(Replay {
                        id: record.id,
                        response: completed.response,
                        resource: record.resource,
                        expires_at: completed.expires_at,
                        body_expires_at: completed.body_expires_at,
                    }));
                }
            }
            (Missing::AtomicReserve, None) => {
                // Looks, then writes, and believes what it saw.
                tokio::task::yield_now().await;
                let decision = self.inner.reserve(request).await?;
                if let Decision::InProgress(running) = decision {
                    return Ok(Decision::Execute(semel_core::transition::Grant {
                        fence: running.fence,
                        locked_until: running.locked_until,
                        recovery: None,
                    }));
                }
                return Ok(decision);
            }
            (Missing::KeyCase, _) => {
                let key = Key::new(identity.key().as_str().to_lowercase()).unwrap();
                let renamed = Identity::new(identity.tenant(), identity.operation(), key);
                request.identity = renamed.unwrap().scoped(identity.scope());
            }
            (Missing::Tenant, _) => {
                let renamed = Identity::new("all", identity.operation(), identity.key().clone());
                request.identity = renamed.unwrap().scoped(identity.scope());
            }
            (_, _) => {}
        }
        self.inner.reserve(request).await
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let (mut fence, mut completion) = (fence, completion);
        let response = &mut completion.response;
        match self.missing {
            Missing::FenceOnComplete => fence = self.any_fence(fence).await?,
            Missing::HeaderOrder => response.headers.sort(),
            Missing::BodyBytes => {
                let text = response.body.take();
                let text = text.map(|body| String::from_utf8_lossy(&body).into_owned());
                response.body = text.map(Into::into);
            }
            Missing::EmptyBody => response.body = response.body.take().filter(|b| !b.is_empty()),
            _ => {}
        }
        self.inner.complete(fence, completion).await
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
        let fence = match self.missing {
            Missing::FenceOnRelease => self.any_fence(fence).await?,
            _ => fence,
        };
        self.inner.release(fence, code).await
    }

    async fn evict(&self, fence: Fence, code: Code) -> Result<Held> {
        self.inner.evict(fence, code).await
    }

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        let resource = resource.filter(|_| self.missing != Missing::NamedResource);
        self.inner.mark_unknown(fence, code, resource).await
    }

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.inner.heartbeat(fence, lease).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        if self.missing == Missing::RecoveryPoint {
            return self.inner.heartbeat(fence, Duration::ZERO).await;
        }
        self.inner.advance(fence, point).await
    }
}

impl Maintain for Broken {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let limit = match self.missing {
            Missing::SweepLimit => MAX_BATCH,
            _ => limit,
        };
        let mut swept = self.inner.sweep(limit).await?;
        if self.missing == Missing::ResumeBeforeSweep {
            // As a sweeper does that knows nothing of resuming.
            for record in self.abandoned().await? {
                let lost = self
                    .inner
                    .mark_unknown(record.fence(), Code::LEASE_EXPIRED, None);
                lost.await?;
                swept.push(record.fence());
            }
        }
        Ok(swept)
    }

    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let mut claimed = self
            .inner
            .claim_abandoned(operation, owner.clone(), lease, limit)
            .await?;
        match self.missing {
            Missing::AbandonedCommand => {
                for record in self.abandoned().await? {
                    let operation = record.identity.operation();
                    let more = self
                        .inner
                        .claim_abandoned(operation, owner.clone(), lease, limit);
                    claimed.extend(more.await?);
                }
            }
            Missing::AbandonedAttempt => claimed.iter_mut().for_each(|record| record.attempt -= 1),
            _ => {}
        }
        Ok(claimed)
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        let backoff = match self.missing {
            Missing::ClaimSchedule => Backoff {
                every: Duration::ZERO,
                max_every: Duration::ZERO,
            },
            _ => backoff,
        };
        let which = match (self.missing, which) {
            (Missing::OthersOperations, Which::AllBut(_)) => Which::All,
            (_, which) => which,
        };
        self.inner.claim_due(which, backoff, limit).await
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        let fence = match self.missing {
            Missing::FenceOnResolve => self.any_fence(verdict.fence).await?,
            _ => verdict.fence,
        };
        self.inner.resolve(Resolve { fence, ..verdict }).await
    }

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        self.inner.dead_letter(fence, code).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        let mut deleted = 0;
        if self.missing == Missing::PruneGuard {
            let query = Query {
                status: Some(Status::Unknown),
                ..Query::default()
            };
            for old in self.inner.list(query).await?.operations {
                deleted += usize::from(self.delete(old.fence).await?);
            }
        }
        Ok(deleted + self.inner.expire(limit).await?)
    }

    async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        self.inner.drop_bodies(limit).await
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        self.inner.purge(limit).await
    }

    async fn erase(&self, id: OperationId, by: By) -> Result<bool> {
        if self.missing == Missing::ErasedEvidence {
            let entries = self.inner.history(id).await?;
            let seen = entries.into_iter().map(|entry| entry.note.evidence);
            self.seen.lock().unwrap().insert(id, seen.collect());
        }
        self.inner.erase(id, by).await
    }

    async fn revealed(&self, id: OperationId, by: By) -> Result<bool> {
        if self.missing == Missing::RevealTold {
            return Ok(self.inner.find(id).await?.is_some());
        }
        self.inner.revealed(id, by).await
    }
}

impl Figures for Broken {
    semel_core::forward!([inner] count activity misuses meet count_alone census);
    semel_core::forward!([inner] forget_activity forget_misuses);

    async fn survey(&self, after: Option<OperationId>, limit: usize) -> Result<Survey> {
        let mut survey = self.inner.survey(after, limit).await?;
        if self.missing == Missing::SurveyOfAll {
            survey
                .counts
                .retain(|(_, status, _)| *status != Status::Expired);
        }
        Ok(survey)
    }

    async fn publish_census(&self, mut census: Census) -> Result<()> {
        if self.missing == Missing::LatestCensus {
            let latest = self.inner.census().await?;
            let latest = latest.map_or(census.ended_at, |latest| latest.ended_at);
            census.ended_at = latest.max(census.ended_at);
        }
        self.inner.publish_census(census).await
    }

    async fn find_key(&self, key: &Key) -> Result<Vec<Summary>> {
        let mut found = self.inner.find_key(key).await?;
        if self.missing == Missing::WholeKey {
            found.truncate(1);
        }
        Ok(found)
    }
}

impl Broken {
    /// What somebody fell silent over and may be resumed.
    async fn abandoned(&self) -> Result<Vec<Record>> {
        let mut abandoned = Vec::new();
        for summary in self.inner.list(Query::default()).await?.operations {
            if let Some(record) = self.inner.find(summary.fence.id).await?
                && let State::InProgress(lease) = &record.state
                && lease.resume_at().is_some_and(|at| at <= self.clock.now())
            {
                abandoned.push(record);
            }
        }
        Ok(abandoned)
    }

    /// Deletes an unknown older than its replay window, as a reaper by age does.
    async fn delete(&self, fence: Fence) -> Result<bool> {
        let Some(record) = self.inner.find(fence.id).await? else {
            return Ok(false);
        };
        if record.updated_at.saturating_add(record.windows.replay) > self.clock.now() {
            return Ok(false);
        }
        let verdict = Verdict::NotExecuted("old".into());
        let reap = Resolve {
            fence,
            verdict,
            by: "reaper".into(),
            evidence: None,
        };
        self.inner.resolve(reap).await?;
        let again = Reserve {
            id: OperationId::generate(),
            identity: record.identity,
            fingerprints: record.fingerprint.into(),
            owner: "reaper".into(),
            policy: Policy::default(),
        };
        match self.inner.reserve(again).await? {
            Decision::Execute(grant) => {
                Ok(self.inner.evict(grant.fence, "refused".into()).await? == Held::Applied)
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Inbox for Broken {
    async fn receive(&self, message: Message, handling: Handling) -> Result<Receipt> {
        let receipt = self.inner.receive(message, handling).await?;
        Ok(match self.missing {
            Missing::OneReceipt => Receipt::New,
            _ => receipt,
        })
    }

    async fn settle(&self, source: &str, id: &str) -> Result<()> {
        self.inner.settle(source, id).await
    }

    async fn claim_parked(&self, backoff: Backoff, limit: usize) -> Result<Vec<Parked>> {
        let backoff = match self.missing {
            Missing::ParkedSchedule => Backoff {
                every: Duration::ZERO,
                max_every: Duration::ZERO,
            },
            _ => backoff,
        };
        self.inner.claim_parked(backoff, limit).await
    }

    async fn forget(&self, limit: usize) -> Result<usize> {
        self.inner.forget(limit).await
    }
}

impl Inspect for Broken {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        self.inner.find(id).await
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        self.inner.find_identity(identity).await
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        self.inner.find_resource(resource_id).await
    }

    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        let mut entries = self.inner.history(id).await?;
        if self.missing == Missing::HistoryEntry {
            // As a store does that tells of refused writes in what it then rolls back.
            entries.retain(|entry| entry.note.what != What::Fenced);
        }
        if let Some(seen) = self.seen.lock().unwrap().get(&id) {
            for (entry, evidence) in entries.iter_mut().zip(seen) {
                entry.note.evidence.clone_from(evidence);
            }
        }
        Ok(entries)
    }

    async fn standing(&self) -> Result<Vec<Standing>> {
        self.inner.standing().await
    }

    async fn list(&self, query: Query) -> Result<Page> {
        let size = query.page_size();
        let mut page = self.inner.list(query).await?;
        if self.missing == Missing::WalkGoesOn && page.operations.len() < size {
            page.next = None;
        }
        if self.missing == Missing::PageOrder {
            page.operations.reverse();
        }
        Ok(page)
    }
}

impl Outbox for Broken {
    semel_core::forward!([inner] dead_events backlog stand_down);

    async fn claim_events(
        &self,
        relay: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Waiting>> {
        let relay = match self.missing {
            Missing::OneRelay => "anybody".into(),
            _ => relay,
        };
        let mut claimed = self.inner.claim_events(relay, lease, limit).await?;
        if self.missing == Missing::OwnTries {
            // As a store does that counts by aggregate.
            let tries = claimed.iter().map(|waiting| waiting.tries).max();
            for waiting in &mut claimed {
                waiting.tries = tries.unwrap_or_default();
            }
        }
        Ok(claimed)
    }

    async fn mark_sent(&self, events: Vec<EventId>) -> Result<()> {
        match self.missing {
            Missing::SentIsGone => Ok(()),
            _ => self.inner.mark_sent(events).await,
        }
    }

    async fn hold_back(&self, event: EventId, reason: &str, backoff: Backoff) -> Result<()> {
        match self.missing {
            Missing::HeldBack => Ok(()),
            _ => self.inner.hold_back(event, reason, backoff).await,
        }
    }

    async fn set_aside(&self, event: EventId, reason: &str) -> Result<()> {
        match self.missing {
            Missing::DeadLetsGoOn => {
                let forever = Backoff {
                    every: Duration::MAX,
                    max_every: Duration::MAX,
                };
                self.inner.hold_back(event, reason, forever).await
            }
            _ => self.inner.set_aside(event, reason).await,
        }
    }

    async fn revive(&self, event: EventId) -> Result<bool> {
        let revived = self.inner.revive(event).await?;
        Ok(revived || self.missing == Missing::RevivedOnce)
    }
}

struct Without(Missing);

impl Publisher for Without {
    async fn publish(&self, store: &Broken, event: Event) {
        store.inner.publish(event);
    }
}

impl Harness for Without {
    type Store = Broken;

    async fn fresh(&self) -> Fixture<Broken> {
        let clock = ManualClock::default();
        let store = Broken {
            inner: Memory::new(Arc::new(clock.clone())),
            clock: clock.clone(),
            missing: self.0,
            seen: Seen::default(),
        };
        Fixture::new(store, clock)
    }

    fn scale(&self) -> Scale {
        Scale::QUICK
    }
}

/// Panics are what this test asks for; only its own are worth reading.
fn hush_the_cases() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("tokio-rt-worker") {
            loud(panic);
        }
    }));
}

#[allow(clippy::too_many_lines, reason = "a list of rules and their cases")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_missing_rule_is_found_out_by_its_case() {
    hush_the_cases();
    let rules = [
        (
            Missing::FenceOnComplete,
            "fences::a_late_owner_after_a_new_attempt_is_fenced",
        ),
        (
            Missing::FenceOnRelease,
            "fences::a_late_owner_after_a_new_attempt_is_fenced",
        ),
        (
            Missing::FenceOnResolve,
            "verdicts::a_verdict_on_an_older_attempt_is_refused",
        ),
        (
            Missing::UnknownOnLeaseExpiry,
            "reserving::a_lease_that_is_over_becomes_unknown",
        ),
        (
            Missing::MisuseBeforeInFlight,
            "reserving::misuse_comes_first_in_every_state",
        ),
        (
            Missing::PruneGuard,
            "retention::what_is_unfinished_is_never_pruned",
        ),
        (Missing::AtomicReserve, "races::one_of_many_executes"),
        (
            Missing::ReplayWindow,
            "instants::the_replay_window_is_over_at_its_instant",
        ),
        (Missing::KeyCase, "keys::keys_are_case_sensitive"),
        (Missing::Tenant, "keys::tenants_are_isolated"),
        (
            Missing::HeaderOrder,
            "content::headers_keep_lines_and_order",
        ),
        (Missing::BodyBytes, "content::bodies_are_bytes"),
        (Missing::EmptyBody, "content::an_empty_body_is_not_no_body"),
        (
            Missing::ClaimSchedule,
            "claims::claim_due_follows_the_backoff",
        ),
        (
            Missing::SweepLimit,
            "claims::sweep_takes_the_oldest_lapsed_leases_first",
        ),
        (Missing::PageOrder, "listing::the_newest_comes_first"),
        (
            Missing::RecoveryPoint,
            "reserving::the_recovery_point_survives_into_the_next_grant",
        ),
        (Missing::HistoryEntry, "history::every_fenced_write_is_told"),
        (
            Missing::ErasedEvidence,
            "evidence::erase_removes_the_evidence_and_the_chain_holds",
        ),
        (Missing::OneReceipt, "inbox::one_of_many_deliveries_is_new"),
        (
            Missing::RevealTold,
            "evidence::a_look_at_the_response_is_told",
        ),
        (
            Missing::WalkGoesOn,
            "listing::a_list_looks_at_so_many_and_goes_on",
        ),
        (Missing::LatestCensus, "census::the_latest_census_counts"),
        (
            Missing::SurveyOfAll,
            "census::a_survey_counts_every_operation_once",
        ),
        (
            Missing::WholeKey,
            "census::a_key_is_found_under_known_callers",
        ),
        (
            Missing::ParkedSchedule,
            "inbox::claim_parked_follows_the_backoff",
        ),
        (
            Missing::NamedResource,
            "resources::a_named_resource_survives_a_verdict_without_one",
        ),
        (
            Missing::OthersOperations,
            "claims::claim_due_leaves_out_what_others_ask_for",
        ),
        (
            Missing::AbandonedCommand,
            "abandoned::a_completer_is_given_only_its_command",
        ),
        (
            Missing::AbandonedAttempt,
            "abandoned::an_owner_is_fenced_after_a_claim",
        ),
        (
            Missing::ResumeBeforeSweep,
            "abandoned::sweep_waits_for_whoever_resumes",
        ),
    ];
    for (missing, case) in rules {
        let failures = conformance::failures(Without(missing)).await;
        let failed: BTreeSet<_> = failures.iter().map(|failure| failure.case).collect();
        assert!(
            failed.contains(case),
            "without {missing:?} only {failed:?} failed"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_of_the_outbox_is_found_out_by_its_case() {
    hush_the_cases();
    let rules = [
        (
            Missing::HeldBack,
            "outbox::a_refused_event_holds_back_its_aggregate",
        ),
        (
            Missing::OneRelay,
            "outbox::one_relay_has_the_outbox_until_its_lease_is_over",
        ),
        (
            Missing::SentIsGone,
            "outbox::an_event_is_handed_out_until_it_is_sent",
        ),
        (
            Missing::DeadLetsGoOn,
            "outbox::what_is_set_aside_lets_the_rest_go_on",
        ),
        (
            Missing::OwnTries,
            "outbox::a_refused_event_holds_back_its_aggregate",
        ),
        (Missing::RevivedOnce, "outbox::a_dead_event_is_revived_once"),
    ];
    for (missing, case) in rules {
        let failures = conformance::outbox::failures(Without(missing)).await;
        let failed: BTreeSet<_> = failures.iter().map(|failure| failure.case).collect();
        assert!(
            failed.contains(case),
            "without {missing:?} only {failed:?} failed"
        );
    }
}

#[test]
fn histories_find_what_is_missing() {
    for missing in [
        Missing::FenceOnComplete,
        Missing::HistoryEntry,
        Missing::ErasedEvidence,
        Missing::NamedResource,
        Missing::OthersOperations,
        Missing::AbandonedCommand,
        Missing::AbandonedAttempt,
        Missing::ResumeBeforeSweep,
    ] {
        let found = std::panic::catch_unwind(|| {
            semel_testkit::histories::agree(&Without(missing), 4096);
        });
        let panic = found.expect_err(&format!("{missing:?}"));
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("SEMEL_HISTORY_SEED=1"), "{missing:?}: {text}");
    }
}
