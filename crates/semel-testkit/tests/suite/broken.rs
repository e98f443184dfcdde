//! The conformance suite detects a store without one rule, by the expected case.
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
use semel_core::history::{Entry, EntryKind};
use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::outbox::{Event, EventId, Waiting};
use semel_core::statistics::{RecordCounts, RecordScan};
use semel_core::store::{
    Backend, ErasureEpoch, MAX_BATCH, OperationFilter, Page, Query, Reply, Request, Result, Summary,
};
use semel_core::transition::{InProgress, Replay};
use semel_core::{
    Actor, Backoff, Clock, Code, Completion, Decision, Fence, Held, Identity, Key, Memory,
    OperationId, Owner, Policy, Record, RecoveryPoint, Reserve, Resolution, Resolve, Resource,
    Stale, State, Status, Store as _, Verdict,
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
    RevealEntry,
    ListCursor,
    LatestRecordCounts,
    ScanOfEveryStatus,
    WholeKey,
    ParkedSchedule,
    NamedResource,
    ExcludedOperations,
    AbandonedOperation,
    AbandonedAttempt,
    ResumeBeforeSweep,
    HeldBack,
    OneRelay,
    MarkSent,
    DeadEventReleasesAggregate,
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
    /// The record's current fence, instead of the caller's.
    async fn any_fence(&self, fence: Fence) -> Result<Fence> {
        let found = self.inner.find(fence.id).await?;
        Ok(found.map_or(fence, |record| record.fence()))
    }
}

/// The verbs from which a rule is missing.
impl Broken {
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
                // Reads, then writes without checking again.
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

    async fn mark_unknown(
        &self,
        fence: Fence,
        code: Code,
        resource: Option<Resource>,
    ) -> Result<Held> {
        let resource = resource.filter(|_| self.missing != Missing::NamedResource);
        self.inner.mark_unknown(fence, code, resource).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        if self.missing == Missing::RecoveryPoint {
            return self.inner.heartbeat(fence, Duration::ZERO).await;
        }
        self.inner.advance(fence, point).await
    }
}

impl Broken {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        let limit = match self.missing {
            Missing::SweepLimit => MAX_BATCH,
            _ => limit,
        };
        let mut swept = self.inner.sweep(limit).await?;
        if self.missing == Missing::ResumeBeforeSweep {
            // A sweeper that ignores resumable records.
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
            Missing::AbandonedOperation => {
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

    async fn claim_due(
        &self,
        which: OperationFilter,
        backoff: Backoff,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let backoff = match self.missing {
            Missing::ClaimSchedule => Backoff {
                every: Duration::ZERO,
                max_every: Duration::ZERO,
            },
            _ => backoff,
        };
        let which = match (self.missing, which) {
            (Missing::ExcludedOperations, OperationFilter::AllBut(_)) => OperationFilter::All,
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

    async fn erase(&self, id: OperationId, by: Actor) -> Result<bool> {
        if self.missing == Missing::ErasedEvidence {
            let entries = self.inner.history(id).await?;
            let seen = entries.into_iter().map(|entry| entry.note.evidence);
            self.seen.lock().unwrap().insert(id, seen.collect());
        }
        self.inner.erase(id, by).await
    }

    async fn audit_reveal(&self, id: OperationId, by: Actor) -> Result<bool> {
        if self.missing == Missing::RevealEntry {
            return Ok(self.inner.find(id).await?.is_some());
        }
        self.inner.audit_reveal(id, by).await
    }
}

impl Broken {
    async fn scan_records(&self, after: Option<OperationId>, limit: usize) -> Result<RecordScan> {
        let mut scan = self.inner.scan_records(after, limit).await?;
        if self.missing == Missing::ScanOfEveryStatus {
            scan.counts
                .retain(|(_, status, _)| *status != Status::Expired);
        }
        Ok(scan)
    }

    async fn publish_record_counts(&self, mut counts: RecordCounts) -> Result<()> {
        if self.missing == Missing::LatestRecordCounts {
            let latest = self.inner.record_counts().await?;
            let latest = latest.map_or(counts.ended_at, |latest| latest.ended_at);
            counts.ended_at = latest.max(counts.ended_at);
        }
        self.inner.publish_record_counts(counts).await
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
    /// Abandoned resumable records.
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

    /// Deletes an unknown record older than its replay window, like a reaper by age.
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

impl Broken {
    async fn receive_message(&self, message: Message, handling: Handling) -> Result<Receipt> {
        let receipt = self.inner.receive_message(message, handling).await?;
        Ok(match self.missing {
            Missing::OneReceipt => Receipt::New,
            _ => receipt,
        })
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
}

impl Broken {
    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        let mut entries = self.inner.history(id).await?;
        if self.missing == Missing::HistoryEntry {
            // A store that records refused writes in a transaction that it rolls back.
            entries.retain(|entry| entry.note.what != EntryKind::Fenced);
        }
        if let Some(seen) = self.seen.lock().unwrap().get(&id) {
            for (entry, evidence) in entries.iter_mut().zip(seen) {
                entry.note.evidence.clone_from(evidence);
            }
        }
        Ok(entries)
    }

    async fn list(&self, query: Query) -> Result<Page> {
        let size = query.page_size();
        let mut page = self.inner.list(query).await?;
        if self.missing == Missing::ListCursor && page.operations.len() < size {
            page.next = None;
        }
        if self.missing == Missing::PageOrder {
            page.operations.reverse();
        }
        Ok(page)
    }
}

impl Broken {
    async fn claim_events(
        &self,
        relay: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Waiting>> {
        let relay = match self.missing {
            Missing::OneRelay => "shared-relay".into(),
            _ => relay,
        };
        let mut claimed = self.inner.claim_events(relay, lease, limit).await?;
        if self.missing == Missing::OwnTries {
            // A store that counts tries by aggregate.
            let tries = claimed.iter().map(|waiting| waiting.tries).max();
            for waiting in &mut claimed {
                waiting.tries = tries.unwrap_or_default();
            }
        }
        Ok(claimed)
    }

    async fn mark_sent(&self, events: Vec<EventId>) -> Result<()> {
        match self.missing {
            Missing::MarkSent => Ok(()),
            _ => self.inner.mark_sent(events).await,
        }
    }

    async fn hold_back(&self, event: EventId, reason: &str, backoff: Backoff) -> Result<()> {
        match self.missing {
            Missing::HeldBack => Ok(()),
            _ => self.inner.hold_back(event, reason, backoff).await,
        }
    }

    async fn dead_letter_event(&self, event: EventId, reason: &str) -> Result<()> {
        match self.missing {
            Missing::DeadEventReleasesAggregate => {
                let forever = Backoff {
                    every: Duration::MAX,
                    max_every: Duration::MAX,
                };
                self.inner.hold_back(event, reason, forever).await
            }
            _ => self.inner.dead_letter_event(event, reason).await,
        }
    }

    async fn revive_event(&self, event: EventId) -> Result<bool> {
        let revived = self.inner.revive_event(event).await?;
        Ok(revived || self.missing == Missing::RevivedOnce)
    }
}

impl Backend for Broken {
    async fn call(&self, request: Request) -> Result<Reply> {
        Ok(match request {
            Request::Reserve { request } => self.reserve(request).await?.into(),
            Request::Complete { fence, completion } => {
                self.complete(fence, completion).await?.into()
            }
            Request::Release { fence, code } => self.release(fence, code).await?.into(),
            Request::MarkUnknown {
                fence,
                code,
                resource,
            } => self.mark_unknown(fence, code, resource).await?.into(),
            Request::Advance { fence, point } => self.advance(fence, point).await?.into(),
            Request::Sweep { limit } => self.sweep(limit).await?.into(),
            Request::ClaimAbandoned {
                operation,
                owner,
                lease,
                limit,
            } => {
                let claimed = self.claim_abandoned(&operation, owner, lease, limit);
                claimed.await?.into()
            }
            Request::ClaimDue {
                filter,
                backoff,
                limit,
            } => self.claim_due(filter, backoff, limit).await?.into(),
            Request::Resolve { verdict } => self.resolve(verdict).await?.into(),
            Request::Expire { limit } => self.expire(limit).await?.into(),
            Request::Erase { id, by } => self.erase(id, by).await?.into(),
            Request::AuditReveal { id, by } => self.audit_reveal(id, by).await?.into(),
            Request::History { id } => self.history(id).await?.into(),
            Request::List { query } => self.list(query).await?.into(),
            Request::ReceiveMessage { message, handling } => {
                self.receive_message(message, handling).await?.into()
            }
            Request::ClaimParked { backoff, limit } => {
                self.claim_parked(backoff, limit).await?.into()
            }
            Request::ClaimEvents {
                relay,
                lease,
                limit,
            } => self.claim_events(relay, lease, limit).await?.into(),
            Request::MarkSent { events } => self.mark_sent(events).await?.into(),
            Request::HoldBack {
                event,
                reason,
                backoff,
            } => self.hold_back(event, &reason, backoff).await?.into(),
            Request::DeadLetterEvent { event, reason } => {
                self.dead_letter_event(event, &reason).await?.into()
            }
            Request::ReviveEvent { event } => self.revive_event(event).await?.into(),
            Request::ScanRecords { after, limit } => self.scan_records(after, limit).await?.into(),
            Request::PublishRecordCounts { counts } => {
                self.publish_record_counts(counts).await?.into()
            }
            Request::FindKey { key } => self.find_key(&key).await?.into(),
            request => self.inner.call(request).await?,
        })
    }

    /// Every request passes through `call`.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.inner.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.inner.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.inner.decrypt_evidence(id, evidence)
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

/// The cases panic on purpose; prints only the panics of the test itself.
fn silence_case_panics() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("tokio-rt-worker") {
            loud(panic);
        }
    }));
}

#[allow(clippy::too_many_lines, reason = "a list of rules and their cases")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_missing_rule_fails_its_case() {
    silence_case_panics();
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
            "reserve::an_expired_lease_becomes_unknown",
        ),
        (
            Missing::MisuseBeforeInFlight,
            "reserve::misuse_is_checked_first_in_every_state",
        ),
        (
            Missing::PruneGuard,
            "retention::unfinished_records_are_never_pruned",
        ),
        (Missing::AtomicReserve, "races::one_of_many_executes"),
        (
            Missing::ReplayWindow,
            "exact_times::the_replay_window_ends_exactly_on_time",
        ),
        (Missing::KeyCase, "keys::keys_are_case_sensitive"),
        (Missing::Tenant, "keys::tenants_are_isolated"),
        (
            Missing::HeaderOrder,
            "content::headers_keep_lines_and_order",
        ),
        (
            Missing::BodyBytes,
            "content::binary_bodies_come_back_unchanged",
        ),
        (
            Missing::EmptyBody,
            "content::an_empty_body_differs_from_no_body",
        ),
        (
            Missing::ClaimSchedule,
            "claims::claim_due_follows_the_backoff",
        ),
        (
            Missing::SweepLimit,
            "claims::sweep_takes_the_oldest_expired_leases_first",
        ),
        (Missing::PageOrder, "listing::the_newest_comes_first"),
        (
            Missing::RecoveryPoint,
            "reserve::the_recovery_point_survives_into_the_next_grant",
        ),
        (
            Missing::HistoryEntry,
            "history::every_fenced_write_is_recorded",
        ),
        (
            Missing::ErasedEvidence,
            "evidence::erase_removes_the_evidence_and_keeps_the_chain_valid",
        ),
        (Missing::OneReceipt, "inbox::one_of_many_deliveries_is_new"),
        (
            Missing::RevealEntry,
            "evidence::a_reveal_of_the_response_is_recorded",
        ),
        (
            Missing::ListCursor,
            "listing::a_page_scans_a_bounded_number_and_returns_a_cursor",
        ),
        (
            Missing::LatestRecordCounts,
            "record_counts::the_latest_scan_is_returned",
        ),
        (
            Missing::ScanOfEveryStatus,
            "record_counts::a_scan_counts_every_record_once",
        ),
        (
            Missing::WholeKey,
            "record_counts::a_key_is_found_under_known_callers",
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
            Missing::ExcludedOperations,
            "claims::claim_due_excludes_the_operations_of_other_workers",
        ),
        (
            Missing::AbandonedOperation,
            "abandoned::a_completer_claims_only_its_operation",
        ),
        (
            Missing::AbandonedAttempt,
            "abandoned::the_previous_owner_is_fenced_after_a_claim",
        ),
        (
            Missing::ResumeBeforeSweep,
            "abandoned::sweep_waits_for_the_resume_deadline",
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
async fn every_missing_outbox_rule_fails_its_case() {
    silence_case_panics();
    let rules = [
        (
            Missing::HeldBack,
            "outbox::a_refused_event_holds_back_its_aggregate",
        ),
        (
            Missing::OneRelay,
            "outbox::one_relay_holds_the_outbox_until_its_lease_expires",
        ),
        (
            Missing::MarkSent,
            "outbox::an_event_is_claimed_until_it_is_marked_sent",
        ),
        (
            Missing::DeadEventReleasesAggregate,
            "outbox::a_dead_event_does_not_hold_back_its_aggregate",
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
fn random_histories_detect_a_missing_rule() {
    for missing in [
        Missing::FenceOnComplete,
        Missing::HistoryEntry,
        Missing::ErasedEvidence,
        Missing::NamedResource,
        Missing::ExcludedOperations,
        Missing::AbandonedOperation,
        Missing::AbandonedAttempt,
        Missing::ResumeBeforeSweep,
    ] {
        let found = std::panic::catch_unwind(|| {
            semel_testkit::histories::assert_agrees_with_model(&Without(missing), 4096);
        });
        let panic = found.expect_err(&format!("{missing:?}"));
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("SEMEL_HISTORY_SEED=1"), "{missing:?}: {text}");
    }
}
