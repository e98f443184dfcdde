//! A call: journal, requests, journal. The decisions are in [`crate::attempts`].

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderName, HeaderValue, Method};
use semel_core::Timestamp;

use crate::attempts::{Attempts, Step};
use crate::builder::Options;
use crate::coalesce::{Coalescer, Role, follow};
use crate::decision::{Answer, Verdict, decide};
use crate::delay::until;
use crate::environment::Environment;
use crate::error::Error;
use crate::journal::{Entry, Finish, Journal, NewIntent, StoredResponse};
use crate::message::message;
use crate::quota::Quota;
use crate::request::{Request, Response};
use crate::transport::{Transport, TransportError};

/// An intent is a name, not a document. PostgreSQL checks the same.
const MAX_INTENT_BYTES: usize = 255;

/// A client without a transport: middleware and layers bring one with each request.
#[derive(Clone)]
pub(crate) struct Core(Arc<Inner>);

struct Inner {
    journal: Journal,
    options: Options,
    environment: Arc<dyn Environment>,
    quota: Mutex<Quota>,
    running: Coalescer,
}

impl Core {
    pub(crate) fn new(
        journal: Journal,
        options: Options,
        environment: Arc<dyn Environment>,
    ) -> Self {
        Self(Arc::new(Inner {
            quota: Mutex::new(Quota::new(options.quota)),
            journal,
            options,
            environment,
            running: Coalescer::default(),
        }))
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.0.journal
    }

    pub(crate) async fn call(
        &self,
        transport: &dyn Transport,
        intent: &str,
        request: Request,
    ) -> Result<Response, Error> {
        self.check(intent, &request)?;
        let fingerprint = request.fingerprint();
        loop {
            match self.0.running.join(intent, fingerprint) {
                Role::Leader(leader) => {
                    let outcome = self.lead(transport, intent, &request).await;
                    leader.finish(&outcome);
                    return outcome;
                }
                Role::Conflict => return Err(Error::IntentConflict),
                Role::Follower(outcome) => {
                    if let Some(outcome) = follow(outcome).await {
                        return outcome;
                    }
                }
            }
        }
    }

    fn check(&self, intent: &str, request: &Request) -> Result<(), Error> {
        let options = &self.0.options;
        if intent.is_empty() || intent.len() > MAX_INTENT_BYTES || intent.contains('\0') {
            return Err(Error::Request(format!(
                "an intent has 1 to {MAX_INTENT_BYTES} bytes, and none is zero"
            )));
        }
        if request.headers.contains_key(&options.profile.header) {
            return Err(Error::Request(format!(
                "the client sends the header {} itself: remove it from the request",
                options.profile.header
            )));
        }
        if request.body.len() > options.max_request {
            return Err(Error::Request(format!(
                "the body has {} bytes, and at most {} are allowed",
                request.body.len(),
                options.max_request
            )));
        }
        Ok(())
    }

    /// The intent from the journal, then the requests, then the response into the journal.
    async fn lead(
        &self,
        transport: &dyn Transport,
        intent: &str,
        request: &Request,
    ) -> Result<Response, Error> {
        let Inner {
            journal,
            options,
            environment,
            ..
        } = &*self.0;
        let now = environment.now();
        let secret = |name: &HeaderName| {
            options.secret_headers.contains(name) || options.headers.contains_key(name)
        };
        let entry = journal
            .intend(NewIntent {
                intent: intent.to_owned(),
                key: environment.key(),
                fingerprint: request.fingerprint(),
                headers: crate::stored_headers::to_pairs(&request.headers, secret),
                request: request.clone(),
                created_at: now,
                lifetime: options.key_lifetime,
            })
            .await?;
        // The journals check it as well.
        if entry.fingerprint != request.fingerprint() {
            return Err(Error::IntentConflict);
        }
        self.run(transport, request, entry).await
    }

    async fn run(
        &self,
        transport: &dyn Transport,
        request: &Request,
        entry: Entry,
    ) -> Result<Response, Error> {
        if let Some(response) = entry.response {
            return self.result(response, true);
        }
        let answer = self.send(transport, request, Some(&entry)).await?;
        let is_kept = answer.body.len() <= self.0.options.max_response;
        let stored = self
            .0
            .journal
            .finish(Finish {
                intent: entry.intent,
                key: entry.key,
                response: StoredResponse {
                    status: answer.status,
                    headers: answer.headers.clone(),
                    body: is_kept.then(|| answer.body.clone()),
                },
                now: self.0.environment.now(),
            })
            .await?;
        if is_kept {
            self.result(stored, false)
        } else {
            typed(&self.0.options.profile, answer)
        }
    }

    /// A stored response as the result of a call.
    fn result(&self, stored: StoredResponse, replayed: bool) -> Result<Response, Error> {
        let Some(body) = stored.body else {
            return Err(Error::ResponseNotStored(None));
        };
        let response = Response {
            status: stored.status,
            headers: stored.headers,
            body,
            replayed_from_journal: replayed,
        };
        typed(&self.0.options.profile, response)
    }

    /// Sends a request until an answer ends the call. Without an entry it has no key.
    pub(crate) async fn send(
        &self,
        transport: &dyn Transport,
        request: &Request,
        entry: Option<&Entry>,
    ) -> Result<Response, Error> {
        let Inner {
            journal,
            options,
            environment,
            quota,
            ..
        } = &*self.0;
        let now = environment.now();
        let call_ends = now.saturating_add(options.deadline);
        let key_ends = entry.map_or(call_ends, |entry| entry.expires_at);
        let note = entry.map(|entry| entry.note.clone()).unwrap_or_default();
        let mut noted = note.clone();
        let mut attempts = Attempts::new(
            &options.profile,
            &request.url,
            call_ends.min(key_ends),
            note,
        );
        attempts.check_deadline(now)?;
        let has_key = entry.is_some() || request.headers.contains_key(&options.profile.header);
        let is_retried = has_key || request.method == Method::GET;
        loop {
            let answer = self.send_once(transport, request, entry, &attempts).await?;
            if !is_retried {
                return match answer {
                    Answer::Response(response) => Ok(response),
                    Answer::Nothing(why) => Err(Error::Failed(why)),
                };
            }
            let step = {
                let mut quota = quota.lock().unwrap_or_else(PoisonError::into_inner);
                attempts.advance(answer, environment.now(), environment.random(), &mut quota)
            };
            if let (Some(entry), false) = (entry, matches!(step, Step::Finished(_)))
                && attempts.note != noted
            {
                noted = attempts.note.clone();
                journal
                    .note(&entry.intent, &entry.key, noted.clone())
                    .await?;
            }
            match step {
                Step::Finished(response) => return Ok(response),
                Step::Ended(error) => return Err(error),
                Step::Next(delay) => {
                    if let Some(delay) = delay {
                        environment.sleep(delay).await;
                    }
                }
            }
        }
    }

    async fn send_once(
        &self,
        transport: &dyn Transport,
        request: &Request,
        entry: Option<&Entry>,
        attempts: &Attempts<'_>,
    ) -> Result<Answer, Error> {
        let options = &self.0.options;
        let now: Timestamp = self.0.environment.now();
        let key = entry.map(|entry| &*entry.key);
        let message = message(options, request, key, &attempts.target)?;
        let patience = options.attempt_timeout.min(until(attempts.deadline(), now));
        let received = tokio::time::timeout(patience, transport.send(message)).await;
        let (head, body) = match received {
            Ok(Ok(response)) => response.into_parts(),
            Ok(Err(TransportError::Failed(why))) => return Ok(Answer::Nothing(why)),
            Ok(Err(TransportError::Invalid(why))) => return Err(Error::Request(why)),
            Ok(Err(TransportError::TooLong(head))) => {
                self.finish_too_long(entry, &head).await?;
                return Err(Error::ResponseNotStored(None));
            }
            Err(_) => {
                let why = format!("no response within {patience:?}");
                return Ok(Answer::Nothing(why));
            }
        };
        Ok(Answer::Response(Response {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            replayed_from_journal: false,
        }))
    }

    async fn finish_too_long(
        &self,
        entry: Option<&Entry>,
        head: &http::Response<()>,
    ) -> Result<(), Error> {
        let Some(entry) = entry else {
            return Ok(());
        };
        let response = StoredResponse {
            status: head.status().as_u16(),
            headers: head.headers().clone(),
            body: None,
        };
        let finish = Finish {
            intent: entry.intent.clone(),
            key: entry.key.clone(),
            response,
            now: self.0.environment.now(),
        };
        self.0.journal.finish(finish).await?;
        Ok(())
    }

    /// A stored request has no credentials. Sent without them it would be refused, and the refusal would end the intent, although the
    /// operation may have happened.
    fn check_credentials(&self, stored: &Request) -> Result<(), Error> {
        let options = &self.0.options;
        let missing = options.secret_headers.iter().find(|name| {
            let is_left_out = stored.headers.get(*name).is_some_and(HeaderValue::is_empty);
            is_left_out && !options.headers.contains_key(*name)
        });
        match missing {
            None => Ok(()),
            Some(name) => Err(Error::Request(format!(
                "the journal does not keep the header {name}: give it to the client itself, so that it can be resumed"
            ))),
        }
    }

    pub(crate) async fn resume(
        &self,
        transport: &dyn Transport,
    ) -> Result<Vec<(String, Result<Response, Error>)>, Error> {
        let mut results = Vec::new();
        for open in self.0.journal.list().await? {
            let result = match self.finish(transport, &open.intent).await {
                Ok(Some(response)) => Ok(response),
                // Another process forgot it meanwhile.
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            results.push((open.intent, result));
        }
        Ok(results)
    }

    pub(crate) async fn finish(
        &self,
        transport: &dyn Transport,
        intent: &str,
    ) -> Result<Option<Response>, Error> {
        let Some(entry) = self.0.journal.find(intent).await? else {
            return Ok(None);
        };
        let Some(request) = entry.request.clone() else {
            return self.run(transport, &placeholder()?, entry).await.map(Some);
        };
        self.check_credentials(&request)?;
        self.call(transport, intent, request).await.map(Some)
    }
}

/// For a finished intent, whose request is not stored any more and is not sent.
fn placeholder() -> Result<Request, Error> {
    Request::get("http://finished.invalid/")
}

/// A response that ended an intent, as the caller gets it.
fn typed(profile: &crate::Profile, response: Response) -> Result<Response, Error> {
    let answer = Answer::Response(response.clone());
    match decide(profile, &answer) {
        Verdict::KeyReused => Err(Error::KeyReused(Box::new(response))),
        Verdict::KeyExpired => Err(Error::KeyExpired(Box::new(response))),
        Verdict::ResponseNotStored => Err(Error::ResponseNotStored(Some(Box::new(response)))),
        // The profile may have changed since it was stored: it stays final.
        Verdict::Final | Verdict::Unknown { .. } | Verdict::Wait { .. } | Verdict::Failure => {
            Ok(response)
        }
    }
}
