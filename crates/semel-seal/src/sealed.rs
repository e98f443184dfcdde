//! A store behind a seal.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::history::{Entry, MAX_EVIDENCE};
use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::store::{Epoch, Hearing, Page, Query, Result, Standing, Which};
use semel_core::{
    Backoff, By, Clock, Code, Completion, Decision, Fence, Held, Identity, Inbox, Inspect,
    Maintain, OperationId, Record, RecoveryPoint, Reserve, Resolution, Resolve, Resource, Response,
    State, Store, Verdict, headers,
};

use crate::Keyring;
use crate::envelope::{MOST_OVERHEAD, Place, broken, is_envelope, open};

/// The one header line of a sealed response. No header can be called that: neither HTTP nor the
/// function for applications in SQL lets a name hold a colon.
const SEALED: &str = ":sealed";

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

    fn open_record(&self, record: Record) -> Result<Record> {
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
        Ok(Record { state, ..record })
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
            decision @ (Decision::Execute(_)
            | Decision::Resume(_)
            | Decision::InProgress(_)
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
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        self.open_decision(self.inner.reserve(request).await?)
    }

    fn glance(&self, request: &Reserve) -> Option<Decision> {
        // What does not open is for `reserve` to report.
        self.open_decision(self.inner.glance(request)?).ok()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.inner.epoch()
    }

    async fn watch(&self, fence: Fence) -> Option<Hearing> {
        self.inner.watch(fence).await
    }

    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Held> {
        let completion = self.prepare(fence.id, completion)?;
        self.inner.complete(fence, completion).await
    }

    async fn release(&self, fence: Fence, code: Code) -> Result<Held> {
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
        self.inner.mark_unknown(fence, code, resource).await
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

    async fn heartbeat(&self, fence: Fence, lease: Duration) -> Result<Held> {
        self.inner.heartbeat(fence, lease).await
    }

    async fn advance(&self, fence: Fence, point: RecoveryPoint) -> Result<Held> {
        self.inner.advance(fence, point).await
    }
}

impl<S: Maintain + Store> Maintain for Sealed<S> {
    async fn sweep(&self, limit: usize) -> Result<Vec<Fence>> {
        self.inner.sweep(limit).await
    }

    async fn claim_due(&self, which: Which, backoff: Backoff, limit: usize) -> Result<Vec<Record>> {
        // What is unknown has no answer yet.
        self.inner.claim_due(which, backoff, limit).await
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

    async fn dead_letter(&self, fence: Fence, code: Code) -> Result<Resolution> {
        self.inner.dead_letter(fence, code).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        self.inner.expire(limit).await
    }

    async fn drop_bodies(&self, limit: usize) -> Result<usize> {
        self.inner.drop_bodies(limit).await
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        self.inner.purge(limit).await
    }

    async fn erase(&self, id: OperationId, by: By) -> Result<bool> {
        self.inner.erase(id, by).await
    }
}

impl<S: Inspect> Inspect for Sealed<S> {
    async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        self.open_found(self.inner.find(id).await?)
    }

    async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        self.open_found(self.inner.find_identity(identity).await?)
    }

    async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        self.open_found(self.inner.find_resource(resource_id).await?)
    }

    async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        self.inner.history(id).await
    }

    fn reveal(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        let evidence = self.inner.reveal(id, evidence)?;
        if !is_envelope(&evidence) {
            return Ok(evidence);
        }
        let place = Place::in_operation(&id, "evidence");
        open(self.keyring.as_ref(), &place, &evidence)
    }

    async fn standing(&self) -> Result<Vec<Standing>> {
        self.inner.standing().await
    }

    async fn list(&self, query: Query) -> Result<Page> {
        self.inner.list(query).await
    }
}

impl<S: Inbox> Inbox for Sealed<S> {
    async fn receive(&self, message: Message, handling: Handling) -> Result<Receipt> {
        let payload = match &self.keyring {
            Some(keyring) => keyring.seal(&event(&name(&message)), &message.payload)?,
            None => message.payload,
        };
        let message = Message { payload, ..message };
        self.inner.receive(message, handling).await
    }

    async fn settle(&self, source: &str, id: &str) -> Result<()> {
        self.inner.settle(source, id).await
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

    async fn forget(&self, limit: usize) -> Result<usize> {
        self.inner.forget(limit).await
    }
}

fn name(message: &Message) -> Vec<u8> {
    [message.source.as_bytes(), message.id.as_bytes()].join(&0)
}

fn event(name: &[u8]) -> Place<'_> {
    Place {
        of: name,
        part: "event",
    }
}
