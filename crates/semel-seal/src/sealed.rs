//! A store behind a seal.

use std::time::Duration;

use bytes::Bytes;
use semel_core::history::MAX_EVIDENCE;
use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::store::{Result, Which};
use semel_core::transition::Grant;
use semel_core::{
    Backoff, Completion, Decision, Fence, Figures, Held, Identity, Inbox, Inspect, Maintain,
    OperationId, Outbox, Owner, Record, RecoveryPoint, Reserve, Resolution, Resolve, Response,
    State, Store, Verdict, headers,
};

use crate::Keyring;
use crate::envelope::{MOST_OVERHEAD, Place, broken, is_envelope, open};

/// The one header line of a sealed response. No header can be called that: neither HTTP nor the
/// function for applications in SQL lets a name hold a colon.
const SEALED: &str = ":sealed";

/// Why an abandoned operation is not gone on with.
const UNREADABLE: &str = "recovery_unreadable";

/// A store whose answers are sealed. Without keys it passes everything as it is, and refuses what
/// is sealed.
#[derive(Clone, Debug)]
pub struct Sealed<S> {
    inner: S,
    keyring: Option<Keyring>,
}

impl<S> Sealed<S> {
    /// Puts a seal before a store.
    pub fn new(inner: S, keyring: Option<Keyring>) -> Self {
        Self { inner, keyring }
    }

    /// The store behind the seal.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn seal_response(&self, id: OperationId, response: Response) -> Result<Response> {
        let Some(keyring) = &self.keyring else {
            return Ok(response);
        };
        let place = |part| Place::in_operation(&id, part);
        let lines = headers::encode(&response.headers);
        let body = response.body.as_deref();
        Ok(Response {
            headers: vec![(SEALED.into(), keyring.seal(&place("headers"), &lines)?)],
            body: body
                .map(|body| keyring.seal(&place("body"), body))
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
        let place = |part| Place::in_operation(&id, part);
        let keyring = self.keyring.as_ref();
        let lines = open(keyring, &place("headers"), envelope)?;
        let body = response.body.as_deref();
        Ok(Response {
            headers: headers::decode(lines).ok_or_else(|| broken("sealed headers are none"))?,
            body: body
                .map(|body| open(keyring, &place("body"), body))
                .transpose()?,
            ..response
        })
    }

    /// What phases found holds what the client sent and what others answered, so it is sealed like
    /// an answer.
    fn seal_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        let Some(keyring) = &self.keyring else {
            return Ok(point);
        };
        let data = keyring.seal(&recovery(&recovery_name(id, &point)), &point.data)?;
        Ok(RecoveryPoint { data, ..point })
    }

    fn open_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        // What was stored before there were keys, or by SQL.
        if !is_envelope(&point.data) {
            return Ok(point);
        }
        let place = recovery_name(id, &point);
        let data = open(self.keyring.as_ref(), &recovery(&place), &point.data)?;
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

    fn open_found(&self, found: Option<Record>) -> Result<Option<Record>> {
        found.map(|record| self.open_record(record)).transpose()
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
            | Decision::Expired(_)) => decision,
        })
    }

    /// Cut before it is sealed: half a ciphertext is worth nothing.
    fn seal_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        let Some(keyring) = &self.keyring else {
            return Ok(evidence);
        };
        let place = Place::in_operation(&id, "evidence");
        let length = evidence.len().min(MAX_EVIDENCE - MOST_OVERHEAD);
        keyring.seal(&place, &evidence[..length])
    }
}

impl<S: Store> Store for Sealed<S> {
    semel_core::forward!([inner] clock epoch watch release evict mark_unknown heartbeat);

    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        self.open_decision(self.inner.reserve(request).await?)
    }

    fn glance(&self, request: &Reserve) -> Option<Decision> {
        // What does not open is for `reserve` to report.
        self.open_decision(self.inner.glance(request)?).ok()
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let completion = self.prepare(fence.id, completion)?;
        self.inner.complete(fence, completion).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        let point = self.prepare_point(fence.id, point)?;
        self.inner.advance(fence, point).await
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.inner.prepare_point(id, self.seal_point(id, point)?)
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        let response = self.seal_response(id, completion.response)?;
        self.inner.prepare(
            id,
            Completion {
                response,
                ..completion
            },
        )
    }
}

impl<S: Maintain + Store> Maintain for Sealed<S> {
    semel_core::forward!([inner] sweep dead_letter expire drop_bodies purge erase revealed);

    /// What does not open is not gone on with. It becomes unknown: handed over it would be taken
    /// for data, and with an error it would take all others with it, again and again.
    async fn claim_abandoned(
        &self,
        operation: &str,
        owner: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let claimed = self.inner.claim_abandoned(operation, owner, lease, limit);
        let mut opened = Vec::new();
        for record in claimed.await? {
            let fence = record.fence();
            if let Ok(record) = self.open_record(record) {
                opened.push(record);
                continue;
            }
            // Where this fails the lease runs out, and the next claim comes here again.
            let lost = self.inner.mark_unknown(fence, UNREADABLE.into(), None);
            drop(lost.await);
        }
        Ok(opened)
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        let mut claimed = self.inner.claim_due(which, backoff, limit).await?;
        for record in &mut claimed {
            // Whoever looks executes nothing, so one that does not open is handed over as it is:
            // it must not hold up the others.
            if let Ok(opened) = self.open_record(record.clone()) {
                *record = opened;
            }
        }
        Ok(claimed)
    }

    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        let id = verdict.fence.id;
        let found = match verdict.verdict {
            Verdict::Completed(completion) => Verdict::Completed(self.prepare(id, completion)?),
            other @ (Verdict::NotExecuted(_) | Verdict::StillUnknown(..)) => other,
        };
        let evidence = verdict.evidence;
        let verdict = Resolve {
            verdict: found,
            evidence: evidence
                .map(|evidence| self.seal_evidence(id, evidence))
                .transpose()?,
            ..verdict
        };
        self.inner.resolve(verdict).await
    }
}

impl<S: Inspect> Inspect for Sealed<S> {
    semel_core::forward!([inner] history standing list);

    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        self.open_found(self.inner.find(id).await?)
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        self.open_found(self.inner.find_identity(identity).await?)
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        self.open_found(self.inner.find_resource(resource_id).await?)
    }

    fn reveal(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        let evidence = self.inner.reveal(id, evidence)?;
        if !is_envelope(&evidence) {
            return Ok(evidence);
        }
        let place = Place::in_operation(&id, "evidence");
        open(self.keyring.as_ref(), &place, &evidence)
    }
}

impl<S: Inbox> Inbox for Sealed<S> {
    semel_core::forward!([inner] settle forget);

    async fn receive(&self, message: Message, handling: Handling) -> Result<Receipt> {
        let payload = match &self.keyring {
            Some(keyring) => keyring.seal(&event(&name(&message)), &message.payload)?,
            None => message.payload,
        };
        let message = Message { payload, ..message };
        self.inner.receive(message, handling).await
    }

    async fn claim_parked(&self, backoff: Backoff, limit: usize) -> Result<Vec<Parked>> {
        let mut claimed = self.inner.claim_parked(backoff, limit).await?;
        for Parked { message, .. } in &mut claimed {
            let name = name(message);
            let opened = is_envelope(&message.payload)
                .then(|| open(self.keyring.as_ref(), &event(&name), &message.payload));
            // One that does not open is handed over as it is: it must not hold up the others.
            if let Some(Ok(opened)) = opened {
                message.payload = opened;
            }
        }
        Ok(claimed)
    }
}

/// Events are written in transactions of the application, so they do not pass here.
impl<S: Outbox> Outbox for Sealed<S> {
    semel_core::forward!([inner] claim_events mark_sent hold_back set_aside);
    semel_core::forward!([inner] dead_events revive backlog stand_down);
}

/// Nothing is sealed: besides names of tenants and commands there are only numbers.
impl<S: Figures> Figures for Sealed<S> {
    semel_core::forward!([inner] count activity misuses survey meet count_alone);
    semel_core::forward!([inner] publish_census census find_key forget_activity forget_misuses);
}

fn name(message: &Message) -> Vec<u8> {
    [message.source.as_bytes(), message.id.as_bytes()].join(&0)
}

/// The operation and the point: what one phase found is not what another did.
fn recovery_name(id: OperationId, point: &RecoveryPoint) -> Vec<u8> {
    [id.as_bytes(), point.name.as_bytes()].concat()
}

fn recovery(name: &[u8]) -> Place<'_> {
    Place {
        of: name,
        part: "recovery",
    }
}

fn event(name: &[u8]) -> Place<'_> {
    Place {
        of: name,
        part: "event",
    }
}
