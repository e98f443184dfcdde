//! A call: journal, requests, journal. The decisions are in [`crate::attempts`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method};

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
        self.share(intent, fingerprint, || {
            self.lead(transport, intent, &request)
        })
        .await
    }

    /// Concurrent calls with one intent share one.
    pub(crate) async fn share<F>(
        &self,
        intent: &str,
        fingerprint: [u8; 32],
        lead: impl Fn() -> F,
    ) -> Result<Response, Error>
    where
        F: Future<Output = Result<Response, Error>>,
    {
        loop {
            match self.0.running.join(intent, fingerprint) {
                Role::Leader(leader) => {
                    let outcome = lead().await;
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
        if !request.url.username().is_empty() || request.url.password().is_some() {
            return Err(Error::Request(
                "the URL has credentials, and the journal keeps none: send them in a header"
                    .to_owned(),
            ));
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
                key_form: options.profile.key_form(),
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

    pub(crate) async fn run(
        &self,
        transport: &dyn Transport,
        request: &Request,
        entry: Entry,
    ) -> Result<Response, Error> {
        if let Some(response) = entry.response {
            return self.result(response, true);
        }
        self.send(transport, request, Some(&entry)).await
    }

    /// A stored response as the result of a call.
    pub(crate) fn result(&self, stored: StoredResponse, replayed: bool) -> Result<Response, Error> {
        let is_kept = stored.body.is_some();
        let response = Response {
            status: stored.status,
            headers: stored.headers,
            body: stored.body.unwrap_or_default(),
            replayed_from_journal: replayed,
        };
        if !is_kept {
            return Err(Error::ResponseNotStored(Box::new(response)));
        }
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
        // In another form, such as without quotes, it would be another key: the first one stays.
        let with_form = |form: &String| {
            let profile = options.profile.with_key_form(form);
            let profile = profile.ok_or_else(|| Error::Request(format!("no header: {form}")))?;
            Ok::<_, Error>(Options {
                profile,
                ..options.clone()
            })
        };
        let form = entry.and_then(|entry| entry.key_form.as_ref());
        let other = form.filter(|form| **form != options.profile.key_form());
        let adapted = other.map(with_form).transpose()?;
        let options = adapted.as_ref().unwrap_or(options);
        let call_ends = environment.now().saturating_add(options.deadline);
        let mut attempts = Attempts::new(&options.profile, &request.url, call_ends, entry);
        let mut noted = attempts.note.clone();
        let has_key = entry.is_some() || request.headers.contains_key(&options.profile.header);
        let is_retried = has_key || request.method == Method::GET;
        loop {
            // Also after each delay and poll: the machine may have slept meanwhile.
            let now = environment.now();
            attempts.check_deadline(now)?;
            let patience = options.attempt_timeout.min(until(attempts.deadline(), now));
            let key = entry.map(|entry| &*entry.key);
            let message = message(options, request, key, &attempts.target)?;
            let (answer, is_too_long) = send_once(transport, message, patience).await?;
            if !is_retried {
                return match answer {
                    Answer::Response(response) if is_too_long => {
                        Err(Error::ResponseNotStored(Box::new(response)))
                    }
                    Answer::Response(response) => Ok(response),
                    Answer::Nothing(why) | Answer::NotSent(why) => Err(Error::Failed(why)),
                };
            }
            let lock = || quota.lock().unwrap_or_else(PoisonError::into_inner);
            let step = loop {
                let now = environment.now();
                let answer = answer.clone();
                let step = attempts.advance(answer, now, environment.random(), &mut lock());
                let Step::Finished {
                    response,
                    unless_shared,
                } = step
                else {
                    break step;
                };
                let ended = self.end(entry, response, is_too_long, unless_shared);
                if let Some(result) = ended.await? {
                    attempts.give_back(&mut lock());
                    return result;
                }
                // Another process found the intent meanwhile: its request may have been the first.
                attempts.is_repeated = true;
            };
            if let Some(entry) = entry
                && attempts.note != noted
            {
                noted = attempts.note.clone();
                journal
                    .note(&entry.intent, &entry.key, noted.clone())
                    .await?;
            }
            match step {
                Step::Ended(error) => return Err(error),
                Step::Next(Some(delay)) => environment.sleep(delay).await,
                Step::Next(None) | Step::Finished { .. } => {}
            }
        }
    }

    /// The end of a call, and of its intent if it has one. `None`: the response ends no intent that another process may have sent.
    async fn end(
        &self,
        entry: Option<&Entry>,
        response: Response,
        is_too_long: bool,
        unless_shared: bool,
    ) -> Result<Option<Result<Response, Error>>, Error> {
        let is_kept = !is_too_long && response.body.len() <= self.0.options.max_response;
        let Some(entry) = entry else {
            let result = if is_too_long {
                Err(Error::ResponseNotStored(Box::new(response)))
            } else {
                Ok(response)
            };
            return Ok(Some(result));
        };
        let finish = Finish {
            intent: entry.intent.clone(),
            key: entry.key.clone(),
            response: StoredResponse {
                status: response.status,
                headers: response.headers.clone(),
                body: is_kept.then(|| response.body.clone()),
            },
            unless_shared,
            now: self.0.environment.now(),
        };
        let stored = self.0.journal.finish(finish).await?;
        Ok(stored.map(|stored| {
            if is_kept || is_too_long {
                self.result(stored, false)
            } else {
                typed(&self.0.options.profile, response)
            }
        }))
    }

    /// The client's own headers and those that a journal does not keep.
    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }
}

/// One attempt; and whether its response was too long to be read, so that only its status and headers decide.
async fn send_once(
    transport: &dyn Transport,
    message: http::Request<Bytes>,
    patience: Duration,
) -> Result<(Answer, bool), Error> {
    let received = tokio::time::timeout(patience, transport.send(message)).await;
    let ((head, body), is_too_long) = match received {
        Ok(Ok(response)) => (response.into_parts(), false),
        Ok(Err(TransportError::TooLong(head))) => (head.map(|()| Bytes::new()).into_parts(), true),
        Ok(Err(TransportError::Failed(why))) => return Ok((Answer::Nothing(why), false)),
        Ok(Err(TransportError::NotConnected(why))) => return Ok((Answer::NotSent(why), false)),
        Ok(Err(TransportError::Invalid(why))) => return Err(Error::Request(why)),
        Err(_) => {
            let why = format!("no response within {patience:?}");
            return Ok((Answer::Nothing(why), false));
        }
    };
    let response = Response {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
        replayed_from_journal: false,
    };
    Ok((Answer::Response(response), is_too_long))
}

/// A response that ended an intent, as the caller gets it.
fn typed(profile: &crate::Profile, response: Response) -> Result<Response, Error> {
    let answer = Answer::Response(response.clone());
    match decide(profile, &answer, false) {
        Verdict::KeyReused => Err(Error::KeyReused(Box::new(response))),
        Verdict::KeyExpired => Err(Error::KeyExpired(Box::new(response))),
        Verdict::ResponseNotStored => Err(Error::ResponseNotStored(Box::new(response))),
        // The profile may have changed since it was stored: it stays final.
        Verdict::Final
        | Verdict::Unknown { .. }
        | Verdict::Wait { .. }
        | Verdict::Failure
        | Verdict::Refused
        | Verdict::Unprotected => Ok(response),
    }
}
