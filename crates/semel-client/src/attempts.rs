//! One call from its first request to its end: which request is next, when, or why there is none.
//!
//! Without I/O: answers, time and random numbers come in, steps go out.

use std::time::Duration;

use http::HeaderMap;
use semel_core::Timestamp;
use url::Url;

use crate::decision::{Answer, Poll, Verdict, decide, decide_poll};
use crate::delay::{http_date, until};
use crate::error::{Error, GaveUp};
use crate::journal::Entry;
use crate::profile::{Backoff, Profile};
use crate::quota::Quota;
use crate::request::Response;

/// A longer address of a status resource is not polled: some libraries refuse longer ones.
const LONGEST_LOCATION: usize = 8 * 1024;

const KEY_EXPIRES: &str = "idempotency-key-expires";

/// Which request is sent next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The caller's request.
    Request,
    /// The operation's status.
    StatusResource(Url),
}

/// What follows an answer.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send the next request, after a delay if there is one.
    Next(Option<Duration>),
    /// The response ends the intent, as a result or as a typed error.
    Finished {
        response: Response,
        /// Unless another process sent the intent, too: it would say nothing of their request.
        unless_shared: bool,
    },
    /// The call ends, and the intent stays open.
    Ended(Error),
}

/// What a journal remembers of an intent that is not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// When the key expires, if a response said so.
    pub(crate) expires_at: Option<Timestamp>,
    /// Whether the outcome is unknown.
    pub(crate) is_unknown: bool,
    /// Of which operation.
    pub(crate) operation_id: Option<String>,
}

/// The state of a call.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    profile: &'a Profile,
    url: &'a Url,
    call_ends: Timestamp,
    /// When the last request was sent.
    sent_at: Timestamp,
    /// The end of the key's lifetime; `None` without an entry.
    key_ends: Option<Timestamp>,
    /// Whether an earlier request with the key may have reached the server, in this call or before it.
    pub(crate) is_repeated: bool,
    delays: u32,
    has_paid: bool,
    last: Option<String>,
    pub(crate) target: Target,
    pub(crate) note: Note,
}

/// What kind of delay comes next.
enum Pause {
    /// After a failure: costs quota.
    Failure,
    /// The server asked for it.
    Wait,
    /// The outcome is unknown.
    Slow,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(
        profile: &'a Profile,
        url: &'a Url,
        call_ends: Timestamp,
        entry: Option<&Entry>,
    ) -> Self {
        Self {
            profile,
            url,
            call_ends,
            sent_at: call_ends,
            key_ends: entry.map(|entry| entry.expires_at),
            is_repeated: entry.is_some_and(|entry| entry.is_sent),
            delays: 0,
            has_paid: false,
            last: None,
            target: Target::Request,
            note: entry.map(|entry| entry.note.clone()).unwrap_or_default(),
        }
    }

    /// Why nothing may be sent at `now`, if so.
    pub(crate) fn check_deadline(&mut self, now: Timestamp) -> Result<(), Error> {
        self.sent_at = now;
        if self.key_ends.is_some_and(|ends| now >= ends) {
            Err(self.give_up(GaveUp::KeyLifetime))
        } else if now >= self.call_ends {
            Err(self.give_up(GaveUp::Deadline))
        } else {
            Ok(())
        }
    }

    /// The end of the call and of the key's lifetime, the earlier of both.
    pub(crate) fn deadline(&self) -> Timestamp {
        self.key_ends
            .map_or(self.call_ends, |ends| ends.min(self.call_ends))
    }

    /// What follows the answer to the request of `target`.
    pub(crate) fn advance(
        &mut self,
        answer: Answer,
        now: Timestamp,
        random: f64,
        quota: &mut Quota,
    ) -> Step {
        self.last = Some(match &answer {
            Answer::Response(response) => format!("status {}", response.status),
            Answer::Nothing(why) | Answer::NotSent(why) => why.clone(),
        });
        let headers = match &answer {
            Answer::Response(response) => response.headers.clone(),
            Answer::Nothing(_) | Answer::NotSent(_) => HeaderMap::new(),
        };
        self.read_expiry(&headers);
        let is_repeated = self.is_repeated;
        self.is_repeated |= may_be_executed(&answer);
        let mut verdict = decide(self.profile, &answer, is_repeated);
        if verdict == Verdict::Unprotected && self.key_ends.is_none() {
            // Without an intent there is no key to give up.
            verdict = Verdict::Final;
        }
        let pause = match self.target {
            Target::Request => match verdict {
                Verdict::Final
                | Verdict::KeyReused
                | Verdict::KeyExpired
                | Verdict::ResponseNotStored => {
                    let unless_shared = decide(self.profile, &answer, true) != verdict;
                    return match answer {
                        Answer::Response(response) => Step::Finished {
                            response,
                            unless_shared,
                        },
                        Answer::Nothing(why) | Answer::NotSent(why) => {
                            Step::Ended(Error::Failed(why))
                        }
                    };
                }
                Verdict::Refused => return Step::Ended(self.give_up(GaveUp::Refused)),
                Verdict::Unprotected => {
                    self.note_unknown(None);
                    self.end_key(now);
                    return Step::Ended(self.give_up(GaveUp::KeyLifetime));
                }
                Verdict::Unknown { operation_id } => {
                    self.note_unknown(operation_id);
                    Pause::Slow
                }
                Verdict::Wait { status_resource } => {
                    if let Some(url) = status_resource.and_then(|to| self.same_origin(&to)) {
                        self.target = Target::StatusResource(url);
                    }
                    Pause::Wait
                }
                Verdict::Failure => Pause::Failure,
            },
            Target::StatusResource(_) => match decide_poll(&answer) {
                Poll::InProgress => Pause::Wait,
                Poll::Unknown { operation_id } => {
                    self.note_unknown(operation_id);
                    Pause::Slow
                }
                Poll::Over => {
                    self.target = Target::Request;
                    return Step::Next(None);
                }
                Poll::Failure => {
                    self.target = Target::Request;
                    Pause::Failure
                }
            },
        };
        self.pause(&pause, &headers, now, random, quota)
    }

    /// The call ended with a response: the server works.
    pub(crate) fn give_back(&self, quota: &mut Quota) {
        quota.give_back(self.has_paid);
    }

    fn pause(
        &mut self,
        pause: &Pause,
        headers: &HeaderMap,
        now: Timestamp,
        random: f64,
        quota: &mut Quota,
    ) -> Step {
        let backoff: &Backoff = match pause {
            Pause::Slow => &self.profile.slow,
            Pause::Failure | Pause::Wait => &self.profile.backoff,
        };
        let asked = self.profile.retry_after.read(headers, now);
        let delay = backoff
            .delay(self.delays, random)
            .max(asked.unwrap_or_default());
        if now.saturating_add(delay) >= self.deadline() {
            return Step::Ended(self.give_up(GaveUp::Deadline));
        }
        if matches!(pause, Pause::Failure) {
            if !quota.take(now) {
                return Step::Ended(self.give_up(GaveUp::Quota));
            }
            self.has_paid = true;
        }
        self.delays += 1;
        Step::Next(Some(delay))
    }

    fn read_expiry(&mut self, headers: &HeaderMap) {
        let date = |name: &str| http_date(headers.get(name)?.to_str().ok()?);
        if let Some(expires_at) = date(KEY_EXPIRES) {
            // The server's clock may be another. Between its two dates is how long it knows the key, from a moment after the request
            // was sent: the response may have taken long.
            let expires_at = date("date").map_or(expires_at, |dated| {
                self.sent_at.saturating_add(until(expires_at, dated))
            });
            self.end_key(expires_at);
        }
    }

    /// The key is not sent after this time, or an earlier one.
    fn end_key(&mut self, at: Timestamp) {
        self.note.expires_at = Some(self.note.expires_at.map_or(at, |known| known.min(at)));
        self.key_ends = self.key_ends.map(|ends| ends.min(at));
    }

    fn note_unknown(&mut self, operation_id: Option<String>) {
        self.note.is_unknown = true;
        if operation_id.is_some() {
            self.note.operation_id = operation_id;
        }
    }

    /// `Location` relative to the request, where the caller's credentials may go.
    fn same_origin(&self, location: &str) -> Option<Url> {
        let url = self.url.join(location).ok()?;
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.as_str().len() <= LONGEST_LOCATION;
        let url = Some(url).filter(|_| is_plain)?;
        (url.origin() == self.url.origin()).then_some(url)
    }

    /// A call that ends without an answer about the operation leaves its outcome as it was.
    fn give_up(&self, reason: GaveUp) -> Error {
        if self.note.is_unknown {
            return Error::Unknown {
                operation_id: self.note.operation_id.clone(),
            };
        }
        Error::GaveUp {
            reason,
            last: self.last.clone(),
        }
    }
}

/// Whether the operation may run, or have run, after this answer that is not final. A server that sends 425 or 429 refused the
/// request, and 408 says that it did not receive it.
fn may_be_executed(answer: &Answer) -> bool {
    match answer {
        Answer::Response(response) => !matches!(response.status, 408 | 425 | 429),
        Answer::Nothing(_) => true,
        Answer::NotSent(_) => false,
    }
}
