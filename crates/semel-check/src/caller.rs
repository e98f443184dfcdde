//! A client as probes need it: it sends what it is told to, and retries as a good client does.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::World;
use crate::answers::{retry_after, veiled};
use crate::kind::{self, Kind};
use crate::learn::Learned;
use crate::operation::{Operation, Shape};
use crate::record::{Record, Stop};
use crate::secrets::hide;
use crate::target::{Case, Target};
use crate::text::cut;
use crate::wire::{Answer, Connection};

/// Between two tries where the server does not say: soon at first, then seldom.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A server that asks to be asked at once is not asked in a loop.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Of a request's body, so much is shown.
const SHOWN: usize = 120;

/// What an operation came to, as far as retries tell.
pub(crate) struct Settled {
    pub(crate) answer: Result<Answer, String>,
    pub(crate) kind: Kind,
    pub(crate) tries: usize,
    /// Whether a try before the last may have been executed, for all that its answer says.
    pub(crate) doubtful: bool,
}

impl Settled {
    pub(crate) fn success(&self) -> Option<&Answer> {
        self.answer
            .as_ref()
            .ok()
            .filter(|_| self.kind == Kind::Success)
    }
}

/// Sends and retries. How it counts is in `counter`, and how it judges in `judge`.
pub(crate) struct Caller<'a> {
    pub(crate) target: &'a Target,
    pub(crate) world: &'a dyn World,
    pub(crate) learned: Learned,
}

impl Caller<'_> {
    pub(crate) fn operation(&self) -> Operation {
        Operation::new(self.learned.dialect)
    }

    pub(crate) fn kind(&self, answer: &Result<Answer, String>) -> Kind {
        kind::of(answer, self.learned.accepted)
    }

    /// The answer where it is a success.
    pub(crate) fn success<'s>(&self, answer: &'s Result<Answer, String>) -> Option<&'s Answer> {
        let succeeded = self.kind(answer) == Kind::Success;
        answer.as_ref().ok().filter(|_| succeeded)
    }

    /// The body of a request, filled.
    pub(crate) fn body(&self, operation: &Operation, shape: Shape<'_>) -> String {
        let template = match (shape.body, shape.case) {
            (Some(body), _) => body,
            (None, Some(Case::Body(body))) => body,
            (None, Some(Case::Header(_)) | None) => &self.target.body,
        };
        operation.fill(template)
    }

    pub(crate) fn request(&self, operation: &Operation, shape: Shape<'_>) -> Vec<u8> {
        let target = self.target;
        let body = self.body(operation, shape);
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
            shape.other_tenant
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
        if shape.other_tenant {
            headers.extend(&target.other_headers);
        }
        if let Some(Case::Header(header)) = shape.case {
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
        let connecting = self.world.connect(&self.target.address);
        match timeout(self.target.operation_timeout, connecting).await {
            Ok(Ok(stream)) => Ok(Connection::new(stream)),
            Ok(Err(error)) => Err(format!("cannot connect: {error}")),
            Err(_) => Err("cannot connect in time".to_owned()),
        }
    }

    /// One request on a connection of its own, and its answer.
    pub(crate) async fn ask(
        &self,
        operation: &Operation,
        shape: Shape<'_>,
    ) -> Result<Answer, String> {
        let connection = self.connect().await?;
        self.ask_on(connection, operation, shape).await
    }

    pub(crate) async fn ask_on(
        &self,
        mut connection: Connection,
        operation: &Operation,
        shape: Shape<'_>,
    ) -> Result<Answer, String> {
        let request = self.request(operation, shape);
        let asking = async {
            // A server may refuse a request before it has read all of it.
            let sent = connection.send(&request).await;
            let answer = connection.read().await;
            match (sent, answer) {
                (_, Ok(answer)) => Ok(veiled(answer, self.target)),
                (Err(error), Err(_)) | (Ok(()), Err(error)) => Err(error.to_string()),
            }
        };
        match timeout(self.target.operation_timeout, asking).await {
            Ok(answered) => answered,
            Err(_) => Err(format!("no answer in {:?}", self.target.operation_timeout)),
        }
    }

    /// The first request of an operation, which must succeed for a probe to learn anything.
    pub(crate) async fn first(
        &self,
        operation: &Operation,
        shape: Shape<'_>,
        record: &mut Record,
    ) -> Result<Answer, Stop> {
        let answer = self.ask(operation, shape).await;
        record.saw_answer("first", &answer);
        self.success(&answer).cloned().ok_or_else(|| {
            Stop::NotSeen(
                "the first request did not succeed, so that there was nothing to repeat".to_owned(),
            )
        })
    }

    /// Asks, and does not ask again.
    pub(crate) async fn once(&self, operation: &Operation, shape: Shape<'_>) -> Settled {
        let answer = self.ask(operation, shape).await;
        Settled {
            kind: self.kind(&answer),
            answer,
            tries: 1,
            doubtful: false,
        }
    }

    /// Retries until the answer is final, or for as long as an operation may take.
    pub(crate) async fn settle(&self, operation: &Operation, shape: Shape<'_>) -> Settled {
        let end = Instant::now() + self.target.operation_timeout;
        let mut pause = FIRST_PAUSE;
        let (mut tries, mut doubtful) = (0, false);
        loop {
            let answer = self.ask(operation, shape).await;
            tries += 1;
            let wait = match &answer {
                Ok(answer) => retry_after(answer).unwrap_or(pause).max(SHORTEST_PAUSE),
                Err(_) => pause,
            };
            let last = kind::is_final(&answer, self.learned.accepted);
            if last || Instant::now() + wait >= end {
                return Settled {
                    kind: self.kind(&answer),
                    answer,
                    tries,
                    doubtful,
                };
            }
            doubtful |= kind::is_doubtful(&answer);
            sleep(wait).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    /// What is said of a request.
    pub(crate) fn told(&self, operation: &Operation, shape: Shape<'_>) -> String {
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
                &hide(&self.body(operation, shape), self.target.secrets()),
                SHOWN
            )
        )
    }
}
