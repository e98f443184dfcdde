//! The store that encrypts what it passes to the inner store.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::history::MAX_EVIDENCE;
use semel_core::inbox::{Message, Parked};
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::transition::Grant;
use semel_core::{
    Clock, Completion, Decision, OperationId, Record, RecoveryPoint, Reserve, Resolve, Response,
    State, Store as _, Verdict, headers,
};

use crate::Keyring;
use crate::envelope::{MAX_OVERHEAD, SealedField, corrupt, is_envelope, open};

/// The only header of a sealed response. No other header can have this name: neither HTTP nor the
/// SQL function for applications allows a colon in a name.
const SEALED: &str = ":sealed";

/// The error code of an abandoned record whose recovery point does not decrypt.
const UNREADABLE: &str = "recovery_unreadable";

/// A store that encrypts answers. Without keys it passes everything on unchanged, and returns an
/// error for sealed data.
#[derive(Clone, Debug)]
pub struct Sealed<S> {
    inner: S,
    keyring: Option<Keyring>,
}

impl<S> Sealed<S> {
    /// Wraps a store.
    pub fn new(inner: S, keyring: Option<Keyring>) -> Self {
        Self { inner, keyring }
    }

    /// The inner store.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn seal_response(&self, id: OperationId, response: Response) -> Result<Response> {
        let Some(keyring) = &self.keyring else {
            return Ok(response);
        };
        let field = |name| SealedField::of_operation(&id, name);
        let lines = headers::encode(&response.headers);
        let body = response.body.as_deref();
        Ok(Response {
            headers: vec![(SEALED.into(), keyring.seal(&field("headers"), &lines)?)],
            body: body
                .map(|body| keyring.seal(&field("body"), body))
                .transpose()?,
            ..response
        })
    }

    fn open_response(&self, id: OperationId, response: Response) -> Result<Response> {
        let [(name, envelope)] = &response.headers[..] else {
            return Ok(response);
        };
        if **name != *SEALED {
            return Ok(response);
        }
        let field = |name| SealedField::of_operation(&id, name);
        let keyring = self.keyring.as_ref();
        let lines = open(keyring, &field("headers"), envelope)?;
        let body = response.body.as_deref();
        Ok(Response {
            headers: headers::decode(lines).ok_or_else(|| corrupt("sealed headers are none"))?,
            body: body
                .map(|body| open(keyring, &field("body"), body))
                .transpose()?,
            ..response
        })
    }

    /// The data of a recovery point contains what the client sent and downstream services answered,
    /// so it is sealed like an answer.
    fn seal_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        let Some(keyring) = &self.keyring else {
            return Ok(point);
        };
        let data = keyring.seal(&recovery_field(&recovery_owner(id, &point)), &point.data)?;
        Ok(RecoveryPoint { data, ..point })
    }

    fn open_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        // Data that was stored before there were keys, or by SQL.
        if !is_envelope(&point.data) {
            return Ok(point);
        }
        let owner = recovery_owner(id, &point);
        let data = open(self.keyring.as_ref(), &recovery_field(&owner), &point.data)?;
        Ok(RecoveryPoint { data, ..point })
    }

    fn open_grant(&self, grant: Grant) -> Result<Grant> {
        let id = grant.fence.id;
        let recovery = grant.recovery.map(|point| self.open_point(id, point));
        Ok(Grant {
            recovery: recovery.transpose()?,
            ..grant
        })
    }

    fn open_record(&self, record: Record) -> Result<Record> {
        let id = record.id;
        let recovery = record.recovery.map(|point| self.open_point(id, point));
        let state = match record.state {
            State::Completed(mut completed) => {
                completed.response = self.open_response(record.id, completed.response)?;
                State::Completed(completed)
            }
            state @ (State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. }) => state,
        };
        Ok(Record {
            state,
            recovery: recovery.transpose()?,
            ..record
        })
    }

    fn open_found(&self, found: Option<Record>) -> Result<Reply> {
        let opened = found.map(|record| self.open_record(record)).transpose()?;
        Ok(opened.into())
    }

    fn open_decision(&self, decision: Decision) -> Result<Decision> {
        Ok(match decision {
            Decision::Replay(mut replay) => {
                replay.response = self.open_response(replay.id, replay.response)?;
                Decision::Replay(replay)
            }
            Decision::Execute(grant) => Decision::Execute(self.open_grant(grant)?),
            Decision::Resume(grant) => Decision::Resume(self.open_grant(grant)?),
            decision @ (Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::OtherRules { .. }
            | Decision::Expired(_)) => decision,
        })
    }

    /// Truncates the evidence before sealing: a truncated ciphertext does not decrypt.
    fn seal_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        let Some(keyring) = &self.keyring else {
            return Ok(evidence);
        };
        let field = SealedField::of_operation(&id, "evidence");
        let length = evidence.len().min(MAX_EVIDENCE - MAX_OVERHEAD);
        keyring.seal(&field, &evidence[..length])
    }
}

impl<S: Backend> Sealed<S> {
    /// A claimed record that does not decrypt is not resumed and becomes unknown: resumed, its
    /// ciphertext would be treated as data, and an error would fail the other records of every
    /// batch.
    async fn open_abandoned(&self, claimed: Vec<Record>) -> Vec<Record> {
        let mut opened = Vec::new();
        for record in claimed {
            let fence = record.fence();
            if let Ok(record) = self.open_record(record) {
                opened.push(record);
                continue;
            }
            // If this fails, the lease expires and the next claim tries again.
            let marked = self.inner.mark_unknown(fence, UNREADABLE.into(), None);
            drop(marked.await);
        }
        opened
    }

    /// A reconciler executes nothing, so a record that does not decrypt is returned sealed: it must
    /// not delay the others.
    fn open_due(&self, mut claimed: Vec<Record>) -> Vec<Record> {
        for record in &mut claimed {
            if let Ok(opened) = self.open_record(record.clone()) {
                *record = opened;
            }
        }
        claimed
    }

    fn seal_verdict(&self, verdict: Resolve) -> Result<Resolve> {
        let id = verdict.fence.id;
        let sealed = match verdict.verdict {
            Verdict::Completed(completion) => Verdict::Completed(self.prepare(id, completion)?),
            other @ (Verdict::NotExecuted(_) | Verdict::StillUnknown(..)) => other,
        };
        let evidence = verdict.evidence;
        Ok(Resolve {
            verdict: sealed,
            evidence: evidence
                .map(|evidence| self.seal_evidence(id, evidence))
                .transpose()?,
            ..verdict
        })
    }

    fn seal_message(&self, message: Message) -> Result<Message> {
        let payload = match &self.keyring {
            Some(keyring) => {
                keyring.seal(&event_field(&event_owner(&message)), &message.payload)?
            }
            None => message.payload,
        };
        Ok(Message { payload, ..message })
    }

    /// A message that does not decrypt is returned sealed: it must not delay the others.
    fn open_parked(&self, mut claimed: Vec<Parked>) -> Vec<Parked> {
        for Parked { message, .. } in &mut claimed {
            let owner = event_owner(message);
            let opened = is_envelope(&message.payload).then(|| {
                open(
                    self.keyring.as_ref(),
                    &event_field(&owner),
                    &message.payload,
                )
            });
            if let Some(Ok(opened)) = opened {
                message.payload = opened;
            }
        }
        claimed
    }
}

impl<S: Backend> Backend for Sealed<S> {
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => {
                let decision = self.inner.reserve(request).await?;
                self.open_decision(decision).map(Into::into)
            }
            Request::Complete { fence, completion } => {
                let completion = self.prepare(fence.id, completion)?;
                let complete = Request::Complete { fence, completion };
                self.inner.call(complete).await
            }
            Request::Advance { fence, point } => {
                let point = self.prepare_point(fence.id, point)?;
                self.inner.call(Request::Advance { fence, point }).await
            }
            Request::Resolve { verdict } => {
                let verdict = self.seal_verdict(verdict)?;
                self.inner.call(Request::Resolve { verdict }).await
            }
            Request::ReceiveMessage { message, handling } => {
                let message = self.seal_message(message)?;
                let receive = Request::ReceiveMessage { message, handling };
                self.inner.call(receive).await
            }
            Request::ClaimAbandoned {
                operation,
                owner,
                lease,
                limit,
            } => {
                let claimed = self.inner.claim_abandoned(&operation, owner, lease, limit);
                Ok(self.open_abandoned(claimed.await?).await.into())
            }
            Request::ClaimDue {
                filter,
                backoff,
                limit,
            } => {
                let claimed = self.inner.claim_due(filter, backoff, limit).await?;
                Ok(self.open_due(claimed).into())
            }
            Request::ClaimParked { backoff, limit } => {
                let claimed = self.inner.claim_parked(backoff, limit).await?;
                Ok(self.open_parked(claimed).into())
            }
            Request::Find { id } => self.open_found(self.inner.find(id).await?),
            Request::FindIdentity { identity } => {
                self.open_found(self.inner.find_identity(&identity).await?)
            }
            Request::FindResource { resource_id } => {
                self.open_found(self.inner.find_resource(&resource_id).await?)
            }
            // These carry no response, recovery point, evidence or message. A history is read
            // sealed, since it is verified in that form. The application writes events in its own
            // transactions, which do not pass through this store.
            request @ (Request::Release { .. }
            | Request::Evict { .. }
            | Request::MarkUnknown { .. }
            | Request::Heartbeat { .. }
            | Request::Watch { .. }
            | Request::Sweep { .. }
            | Request::DeadLetter { .. }
            | Request::Expire { .. }
            | Request::DropBodies { .. }
            | Request::Purge { .. }
            | Request::Erase { .. }
            | Request::AuditReveal { .. }
            | Request::History { .. }
            | Request::CountUnfinished { .. }
            | Request::List { .. }
            | Request::SettleMessage { .. }
            | Request::Contracts {}
            | Request::PublishContracts { .. }
            | Request::CountRecords { .. }
            | Request::ForgetMessages { .. }
            | Request::ClaimEvents { .. }
            | Request::MarkSent { .. }
            | Request::HoldBack { .. }
            | Request::DeadLetterEvent { .. }
            | Request::DeadEvents { .. }
            | Request::ReviveEvent { .. }
            | Request::OutboxBacklog { .. }
            | Request::ReleaseRelay { .. }
            | Request::AddCounts { .. }
            | Request::Activity { .. }
            | Request::Misuses { .. }
            | Request::ScanRecords { .. }
            | Request::RecordCallers { .. }
            | Request::AcquireScanLease { .. }
            | Request::PublishRecordCounts { .. }
            | Request::RecordCounts { .. }
            | Request::FindKey { .. }
            | Request::ForgetActivity { .. }
            | Request::ForgetMisuses { .. }) => self.inner.call(request).await,
        }
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        // `reserve` reports the error.
        self.open_decision(self.inner.try_decide(request)?).ok()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        let response = self.seal_response(id, completion.response)?;
        let sealed = Completion {
            response,
            ..completion
        };
        self.inner.prepare(id, sealed)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.inner.prepare_point(id, self.seal_point(id, point)?)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        let evidence = self.inner.decrypt_evidence(id, evidence)?;
        if !is_envelope(&evidence) {
            return Ok(evidence);
        }
        let field = SealedField::of_operation(&id, "evidence");
        open(self.keyring.as_ref(), &field, &evidence)
    }
}

fn event_owner(message: &Message) -> Vec<u8> {
    [message.source.as_bytes(), message.id.as_bytes()].join(&0)
}

/// The operation and the name of the point, so that points of two phases cannot be swapped.
fn recovery_owner(id: OperationId, point: &RecoveryPoint) -> Vec<u8> {
    [id.as_bytes(), point.name.as_bytes()].concat()
}

fn recovery_field(owner: &[u8]) -> SealedField<'_> {
    SealedField {
        owner,
        name: "recovery",
    }
}

fn event_field(owner: &[u8]) -> SealedField<'_> {
    SealedField {
        owner,
        name: "event",
    }
}
