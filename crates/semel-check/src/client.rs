//! The HTTP client of the probes: sends exactly the given request, and retries as a good client does.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Environment;
use crate::operation::{Operation, RequestVariant};
use crate::probe_log::{ProbeLog, Stop};
use crate::profile::TargetProfile;
use crate::response::{hide_secrets, retry_after};
use crate::response_kind::{self, ResponseKind};
use crate::secrets::hide;
use crate::target::{Case, Target};
use crate::text::cut;
use crate::wire::{Connection, Response};

/// Pauses between retries without `Retry-After`; they grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest pause, also for `Retry-After: 0`.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Characters of a request's body that reports show.
const SHOWN: usize = 120;

/// The response that retries of an operation ended with.
pub(crate) struct FinalResponse {
    pub(crate) answer: Result<Response, String>,
    pub(crate) kind: ResponseKind,
    pub(crate) tries: usize,
    /// Whether a try before the last may have been executed without its response saying so.
    pub(crate) doubtful: bool,
}

impl FinalResponse {
    pub(crate) fn success(&self) -> Option<&Response> {
        self.answer
            .as_ref()
            .ok()
            .filter(|_| self.kind == ResponseKind::Success)
    }
}

/// Sends and retries requests. `counter` counts effects, `judge` judges responses.
pub(crate) struct ProbeClient<'a> {
    pub(crate) target: &'a Target,
    pub(crate) environment: &'a dyn Environment,
    pub(crate) profile: TargetProfile,
}

impl ProbeClient<'_> {
    pub(crate) fn operation(&self) -> Operation {
        Operation::new(self.profile.dialect)
    }

    pub(crate) fn kind(&self, answer: &Result<Response, String>) -> ResponseKind {
        response_kind::of(answer, self.profile.accepted)
    }

    /// The response, if it is a success.
    pub(crate) fn success<'s>(&self, answer: &'s Result<Response, String>) -> Option<&'s Response> {
        let succeeded = self.kind(answer) == ResponseKind::Success;
        answer.as_ref().ok().filter(|_| succeeded)
    }

    /// The body of a request, with its placeholders filled.
    pub(crate) fn body(&self, operation: &Operation, variant: RequestVariant<'_>) -> String {
        let template = match (variant.body, variant.case) {
            (Some(body), _) => body,
            (None, Some(Case::Body(body))) => body,
            (None, Some(Case::Header(_)) | None) => &self.target.body,
        };
        operation.fill(template)
    }

    pub(crate) fn encode_request(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> Vec<u8> {
        let target = self.target;
        let body = self.body(operation, variant);
        let mut request = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            target.method,
            target.address.path,
            target.address.authority,
            body.len()
        )
        .into_bytes();
        let mut add = |name: &str, value: &[u8]| {
            request.extend_from_slice(name.as_bytes());
            request.extend_from_slice(b": ");
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n");
        };
        let overridden = |name: &str| {
            variant.other_tenant
                && target
                    .other_headers
                    .iter()
                    .any(|other| other.name.eq_ignore_ascii_case(name))
        };
        let mut headers: Vec<_> = target
            .headers
            .iter()
            .filter(|h| !overridden(&h.name))
            .collect();
        if variant.other_tenant {
            headers.extend(&target.other_headers);
        }
        if let Some(Case::Header(header)) = variant.case {
            headers.push(header);
        }
        for header in &headers {
            add(&header.name, operation.fill(&header.value).as_bytes());
        }
        if !headers
            .iter()
            .any(|header| header.name.eq_ignore_ascii_case("content-type"))
        {
            add("Content-Type", b"application/json");
        }
        for line in &operation.lines {
            add(&target.key_header, line);
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body.as_bytes());
        request
    }

    pub(crate) async fn connect(&self) -> Result<Connection, String> {
        let connecting = self.environment.connect(&self.target.address);
        match timeout(self.target.operation_timeout, connecting).await {
            Ok(Ok(stream)) => Ok(Connection::new(stream)),
            Ok(Err(error)) => Err(format!("cannot connect: {error}")),
            Err(_) => Err("connecting timed out".to_owned()),
        }
    }

    /// Sends one request on a new connection and reads its response.
    pub(crate) async fn send(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> Result<Response, String> {
        let connection = self.connect().await?;
        self.send_on(connection, operation, variant).await
    }

    pub(crate) async fn send_on(
        &self,
        mut connection: Connection,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> Result<Response, String> {
        let request = self.encode_request(operation, variant);
        let asking = async {
            // A server may refuse a request before it has read all of it.
            let sent = connection.send(&request).await;
            let answer = connection.read().await;
            match (sent, answer) {
                (_, Ok(answer)) => Ok(hide_secrets(answer, self.target)),
                (Err(error), Err(_)) | (Ok(()), Err(error)) => Err(error.to_string()),
            }
        };
        match timeout(self.target.operation_timeout, asking).await {
            Ok(answered) => answered,
            Err(_) => Err(format!(
                "no response within {:?}",
                self.target.operation_timeout
            )),
        }
    }

    /// Sends the first request of an operation, which must succeed for the probe to go on.
    pub(crate) async fn send_first(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
        log: &mut ProbeLog,
    ) -> Result<Response, Stop> {
        let answer = self.send(operation, variant).await;
        log.observe_response("first", &answer);
        self.success(&answer).cloned().ok_or_else(|| {
            Stop::NotSeen(
                "the first request did not succeed, so there was nothing to retry".to_owned(),
            )
        })
    }

    /// Sends once, without retries.
    pub(crate) async fn send_once(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> FinalResponse {
        let answer = self.send(operation, variant).await;
        FinalResponse {
            kind: self.kind(&answer),
            answer,
            tries: 1,
            doubtful: false,
        }
    }

    /// Retries until the response is final, for at most the operation timeout.
    pub(crate) async fn retry_until_final(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> FinalResponse {
        let end = Instant::now() + self.target.operation_timeout;
        let mut pause = FIRST_PAUSE;
        let (mut tries, mut doubtful) = (0, false);
        loop {
            let answer = self.send(operation, variant).await;
            tries += 1;
            let wait = match &answer {
                Ok(answer) => retry_after(answer).unwrap_or(pause).max(SHORTEST_PAUSE),
                Err(_) => pause,
            };
            let last = response_kind::is_final(&answer, self.profile.accepted);
            if last || Instant::now() + wait >= end {
                return FinalResponse {
                    kind: self.kind(&answer),
                    answer,
                    tries,
                    doubtful,
                };
            }
            doubtful |= response_kind::is_doubtful(&answer);
            sleep(wait).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    /// Describes a request for reports.
    pub(crate) fn describe_request(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> String {
        let keys: Vec<String> = operation
            .lines
            .iter()
            .map(|line| {
                let value = cut(&String::from_utf8_lossy(line), 60);
                format!("{}: {value}", self.target.key_header)
            })
            .collect();
        let keys = match keys.len() {
            0 => "no key".to_owned(),
            _ => keys.join(" and "),
        };
        format!(
            "{} {} with {keys} and {}",
            self.target.method,
            self.target.address.path,
            cut(
                &hide(&self.body(operation, variant), self.target.secrets()),
                SHOWN
            )
        )
    }
}
