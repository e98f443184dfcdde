//! A client as probes need it: it sends what it is told to, and retries as a good client does.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::answers::{difference, is_final, retry_after, tell};
use crate::record::{Record, Stop};
use crate::target::{Case, Dialect, Target};
use crate::text::{cut, fill};
use crate::wire::{Answer, Connection};
use crate::{World, counter};

/// Between two tries where the server does not say: soon at first, then seldom.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A server that asks to be asked at once is not asked in a loop.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Of a request's body, so much is shown.
const SHOWN: usize = 120;

/// One thing to be done, under one key.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) reference: String,
    /// What stands for it in a counter's place for a key.
    pub(crate) key: String,
    /// The values of the key's header lines, as they are sent.
    pub(crate) lines: Vec<Vec<u8>>,
}

impl Operation {
    pub(crate) fn with_lines(lines: Vec<Vec<u8>>) -> Self {
        Self {
            reference: Uuid::new_v4().to_string(),
            key: Uuid::new_v4().to_string(),
            lines,
        }
    }

    /// The same key for something else.
    pub(crate) fn another(&self) -> Self {
        Self {
            reference: Uuid::new_v4().to_string(),
            ..self.clone()
        }
    }
}

/// How a key goes on the wire.
pub(crate) fn line(dialect: Dialect, key: &str) -> Vec<u8> {
    match dialect {
        Dialect::Ietf => format!("\"{key}\"").into_bytes(),
        Dialect::Stripe => key.as_bytes().to_vec(),
    }
}

/// In what a request differs from the usual one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape<'a> {
    pub(crate) body: Option<&'a str>,
    pub(crate) case: Option<&'a Case>,
    pub(crate) other_tenant: bool,
}

impl<'a> Shape<'a> {
    pub(crate) fn body(body: &'a str) -> Self {
        Self {
            body: Some(body),
            ..Self::default()
        }
    }

    pub(crate) fn case(case: Option<&'a Case>) -> Self {
        Self {
            case,
            ..Self::default()
        }
    }

    /// As a retry has it: the same body, and without the header that asked for a behaviour.
    pub(crate) fn retry(self) -> Self {
        let case = match self.case {
            Some(Case::Body(_)) => self.case,
            Some(Case::Header(_)) | None => None,
        };
        Self { case, ..self }
    }
}

/// What an operation came to, as far as retries tell.
pub(crate) struct Settled {
    pub(crate) answer: Result<Answer, String>,
    pub(crate) tries: usize,
}

impl Settled {
    pub(crate) fn success(&self) -> Option<&Answer> {
        self.answer
            .as_ref()
            .ok()
            .filter(|answer| answer.is_success())
    }
}

/// How many effects there were before; none where nobody counts.
pub(crate) struct Counting(Option<u64>);

/// Sends, retries and counts.
pub(crate) struct Caller<'a> {
    pub(crate) target: &'a Target,
    pub(crate) world: &'a dyn World,
    pub(crate) dialect: Dialect,
    /// Whether two executions are never answered alike: an answer that comes back byte for byte
    /// then is a replay, marked or not.
    pub(crate) telling: bool,
}

impl Caller<'_> {
    pub(crate) fn operation(&self) -> Operation {
        let mut operation = Operation::with_lines(Vec::new());
        operation.lines.push(line(self.dialect, &operation.key));
        operation
    }

    pub(crate) fn counts(&self) -> bool {
        self.target.counter.is_some()
    }

    /// The body of a request, filled.
    pub(crate) fn body(&self, operation: &Operation, shape: Shape<'_>) -> String {
        let template = match (shape.body, shape.case) {
            (Some(body), _) => body,
            (None, Some(Case::Body(body))) => body,
            (None, Some(Case::Header(_)) | None) => &self.target.body,
        };
        fill(template, &operation.reference, &operation.key)
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
            let value = fill(&header.value, &operation.reference, &operation.key);
            add(&header.name, value.as_bytes());
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
                (_, Ok(answer)) => Ok(answer),
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
        match answer {
            Ok(answer) if answer.is_success() => Ok(answer),
            Ok(_) | Err(_) => Err(Stop::NotSeen(
                "the first request did not succeed, so that there was nothing to repeat".to_owned(),
            )),
        }
    }

    /// Retries until the answer is final, or for as long as an operation may take.
    pub(crate) async fn settle(&self, operation: &Operation, shape: Shape<'_>) -> Settled {
        let end = Instant::now() + self.target.operation_timeout;
        let mut pause = FIRST_PAUSE;
        let mut tries = 0;
        loop {
            let answer = self.ask(operation, shape).await;
            tries += 1;
            let wait = match &answer {
                Ok(answer) if is_final(answer) => {
                    return Settled {
                        answer: Ok(answer.clone()),
                        tries,
                    };
                }
                Ok(answer) => retry_after(answer).unwrap_or(pause).max(SHORTEST_PAUSE),
                Err(_) => pause,
            };
            if Instant::now() + wait >= end {
                return Settled { answer, tries };
            }
            sleep(wait).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    /// Reads the counter before an operation.
    pub(crate) async fn counting(&self, operation: &Operation) -> Result<Counting, Stop> {
        self.count(operation).await.map(Counting)
    }

    /// How many effects there were since.
    pub(crate) async fn effects(
        &self,
        operation: &Operation,
        since: &Counting,
        record: &mut Record,
    ) -> Result<Option<u64>, Stop> {
        let effects = self.effects_since(operation, since).await?;
        if let Some(effects) = effects {
            record.saw(format!("effects: {effects}"));
        }
        Ok(effects)
    }

    pub(crate) async fn effects_since(
        &self,
        operation: &Operation,
        since: &Counting,
    ) -> Result<Option<u64>, Stop> {
        let now = self.count(operation).await?;
        Ok(now
            .zip(since.0)
            .map(|(now, before)| now.saturating_sub(before)))
    }

    async fn count(&self, operation: &Operation) -> Result<Option<u64>, Stop> {
        let Some(counter) = &self.target.counter else {
            return Ok(None);
        };
        let (reference, key) = (&operation.reference, &operation.key);
        match counter::count(counter, self.target, self.world, reference, key).await {
            Ok(count) => Ok(Some(count)),
            Err(reason) => Err(Stop::NotSeen(format!("the counter failed: {reason}"))),
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
            cut(&self.body(operation, shape), SHOWN)
        )
    }

    /// Judges the answer to a retry of what had succeeded.
    pub(crate) fn judge_retry(&self, record: &mut Record, first: &Answer, retry: &Settled) {
        match &retry.answer {
            Ok(answer) if answer.is_success() => {
                if let Some(difference) = difference(first, answer) {
                    record.fail(format!("a retry was given another answer: {difference}"));
                } else if !self.counts() && !self.telling && !answer.is_marked() {
                    record.blind(
                        "the retry was answered alike, but nothing in the answer says that it was \
                         not executed again: give --count-url or --count-command",
                    );
                }
            }
            Ok(_) | Err(_) => record.fail(format!(
                "a retry was not given the first answer, but {}",
                tell(&retry.answer)
            )),
        }
    }
}
