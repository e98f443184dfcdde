//! Operations that are interrupted or slow.

use std::cell::Cell;
use std::pin::Pin;

use futures_util::future::join;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::outcomes::required_case;
use crate::client::{FinalResponse, ProbeClient};
use crate::counter::EffectBaseline;
use crate::judge::mark_unjudged;
use crate::operation::{Operation, RequestVariant};
use crate::probe_log::{ProbeLog, Stop};
use crate::response::describe;
use crate::response_kind::{ResponseKind, is_doubtful, is_own};
use crate::target::Case;
use crate::wire::Response;

/// Delays after which a client disconnects: before anything is read, and during execution.
const MOMENTS_MS: [u64; 4] = [0, 2, 10, 50];
/// After this delay an operation has started.
const BEGUN: Duration = Duration::from_millis(300);
/// Interval between duplicates: several within any lease.
const BETWEEN: Duration = Duration::from_millis(250);
/// Interval between two reads of the counter.
const LOOK: Duration = Duration::from_millis(20);
/// An interrupted operation may take longer than an undisturbed one: by half, plus this margin.
const MARGIN: Duration = Duration::from_millis(500);

pub(super) async fn disconnect_after_effect(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let cases = &client.target.cases;
    for moment in MOMENTS_MS {
        let moment = Duration::from_millis(moment);
        disconnect_and_retry(
            client,
            log,
            RequestVariant::default(),
            Moment::After(moment),
        )
        .await?;
        if log.failed() {
            return Ok(());
        }
    }
    if let Some(slow) = &cases.slow {
        disconnect_and_retry(
            client,
            log,
            RequestVariant::case(Some(slow)),
            Moment::After(BEGUN),
        )
        .await?;
    }
    if let Some(linger) = &cases.linger {
        disconnect_and_retry(
            client,
            log,
            RequestVariant::case(Some(linger)),
            Moment::Effect,
        )
        .await?;
    }
    if cases.slow.is_none() && cases.linger.is_none() {
        log.note(
            "without --case linger or slow, it is left to chance whether the client disconnected \
             between the effect and its response",
        );
    }
    Ok(())
}

/// When a fault hits an operation that is in progress.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    After(Duration),
    /// When the counter shows its effect; without a counter, shortly after its start.
    Effect,
}

/// Waits for the moment.
pub(super) async fn wait_for_moment(
    client: &ProbeClient<'_>,
    operation: &Operation,
    baseline: &EffectBaseline,
    moment: Moment,
) -> Result<(), Stop> {
    match moment {
        Moment::After(time) => sleep(time).await,
        Moment::Effect if !client.counts(operation) => sleep(BEGUN).await,
        Moment::Effect => {
            let limit = client.target.operation_timeout;
            let end = Instant::now() + limit;
            while client.effects_since(operation, baseline).await? == Some(0) {
                if Instant::now() >= end {
                    let reason = format!("the effect did not show within {limit:?}");
                    return Err(Stop::NotSeen(reason));
                }
                sleep(LOOK).await;
            }
        }
    }
    Ok(())
}

async fn disconnect_and_retry(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    variant: RequestVariant<'_>,
    moment: Moment,
) -> Result<(), Stop> {
    let operation = client.operation();
    let when = match moment {
        Moment::After(time) => format!("after {} ms", time.as_millis()),
        Moment::Effect => "after the effect".to_owned(),
    };
    log.sent(format!(
        "{}, the connection closed {when}, then retries",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let mut connection = client.connect().await.map_err(Stop::NotSeen)?;
    let sent = Instant::now();
    let sending = connection
        .send(&client.encode_request(&operation, variant))
        .await;
    sending.map_err(|error| Stop::NotSeen(format!("the request could not be sent: {error}")))?;
    wait_for_moment(client, &operation, &baseline, moment).await?;
    drop(connection);
    let fault = Fault::new(&operation, variant, &baseline).cut(client, log, sent);
    judge_after_fault(client, log, &fault).await?;
    Ok(())
}

pub(super) async fn slow_operation(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let cases = &client.target.cases;
    let slow = cases.slow.as_ref().or(cases.linger.as_ref());
    let slow = required_case(slow, "slow", "takes longer than any lease of the server")?;
    let operation = client.operation();
    let variant = RequestVariant::case(Some(slow));
    log.sent(format!(
        "{} as a slow operation, and duplicates until it ends",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let sent = Instant::now();
    let (first, duplicates) = send_duplicates_during(client, &operation, variant).await;
    log.observe_response("first", &first);
    tally(log, &duplicates);
    if duplicates.is_empty() {
        log.inconclusive("the operation ended before a duplicate was sent: make it slower");
    }
    let counted = client.counts(&operation);
    // One without a response may still be in progress.
    let unclear = |answer: &Result<_, _>| answer.is_err() || (!counted && is_doubtful(answer));
    if duplicates.iter().any(unclear) {
        log.inconclusive("a duplicate got no response that shows whether it was executed");
    }
    let acknowledged = client.success(&first);
    for answer in duplicates
        .iter()
        .filter_map(|answer| client.success(answer))
    {
        match acknowledged {
            Some(first) => {
                let what = "a duplicate got a different success";
                client.judge_difference(log, &operation, first, answer, what);
            }
            None => log.inconclusive(format!(
                "a duplicate succeeded, and the first did not: {}",
                describe(&Ok(answer.clone()))
            )),
        }
    }
    let mut fault = Fault::new(&operation, variant, &baseline);
    fault.acknowledged = acknowledged;
    if acknowledged.is_none() {
        fault = fault.cut(client, log, sent);
    }
    if first.is_err() {
        log.inconclusive("the operation did not end: raise --operation-timeout, or make it faster");
    }
    judge_after_fault(client, log, &fault).await?;
    Ok(())
}

/// Sends a slow operation, and duplicates until it ends.
async fn send_duplicates_during(
    client: &ProbeClient<'_>,
    operation: &Operation,
    variant: RequestVariant<'_>,
) -> (Result<Response, String>, Vec<Result<Response, String>>) {
    let over = Cell::new(false);
    let first = async {
        let answer = client.send(operation, variant).await;
        over.set(true);
        answer
    };
    let duplicates = async {
        let mut answers = Vec::new();
        loop {
            sleep(BETWEEN).await;
            if over.get() {
                return answers;
            }
            answers.push(client.send(operation, variant.retry()).await);
        }
    };
    join(first, duplicates).await
}

fn tally(log: &mut ProbeLog, duplicates: &[Result<Response, String>]) {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for answer in duplicates {
        let kind = answer
            .as_ref()
            .map_or_else(|_| "no response".to_owned(), |a| a.status.to_string());
        match kinds.iter_mut().find(|(is, _)| *is == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| format!("{count} × {kind}"))
        .collect();
    log.observe(format!("duplicates during it: {}", kinds.join(", ")));
}

/// An operation that was hit by a fault.
pub(super) struct Fault<'a> {
    operation: &'a Operation,
    variant: RequestVariant<'a>,
    baseline: &'a EffectBaseline,
    /// The success that the first client got.
    pub(super) acknowledged: Option<&'a Response>,
    /// The response to the first attempt, if it was not a success.
    pub(super) first_error: Option<&'a Response>,
    /// Whether the server may lose its record: a refusal is then as good as the response.
    pub(super) may_lose_record: bool,
    /// When the first attempt has ended.
    first_ends_at: Instant,
}

impl<'a> Fault<'a> {
    /// A fault after which the first attempt has ended.
    pub(super) fn new(
        operation: &'a Operation,
        variant: RequestVariant<'a>,
        baseline: &'a EffectBaseline,
    ) -> Self {
        Self {
            operation,
            variant,
            baseline,
            acknowledged: None,
            first_error: None,
            may_lose_record: false,
            first_ends_at: Instant::now(),
        }
    }

    /// The first attempt was interrupted and may still run: whether its key was freed too early
    /// shows only when both attempts have ended.
    pub(super) fn cut(
        mut self,
        client: &ProbeClient<'_>,
        log: &mut ProbeLog,
        sent: Instant,
    ) -> Self {
        let takes = client
            .timing(self.variant)
            .map(|timing| timing.answered + timing.lag);
        if takes.is_none() {
            log.inconclusive(
                "the case did not succeed without a fault, so its duration is not known: raise \
                 --operation-timeout, or make it faster",
            );
        }
        let limit = client.target.operation_timeout;
        self.first_ends_at = sent + takes.map_or(limit, |takes| takes * 3 / 2 + MARGIN);
        self
    }
}

/// Retries an operation whose outcome its client may not know, as that client would, and judges
/// the result. Returns the response that the retries ended with.
pub(super) async fn judge_after_fault(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    fault: &Fault<'_>,
) -> Result<FinalResponse, Stop> {
    let (operation, retry) = (fault.operation, fault.variant.retry());
    let settled = client.retry_until_final(operation, retry).await;
    log.observe_final("retry", &settled);
    sleep_until(fault.first_ends_at).await;
    match (fault.acknowledged, settled.success()) {
        (Some(_), None) if fault.may_lose_record && settled.kind != ResponseKind::Inconclusive => {}
        (Some(first), _) => client.judge_retry(log, operation, first, &settled).await,
        // The first attempt may have ended since, and must not have changed the response.
        (None, Some(success)) => {
            let again = client.retry_until_final(operation, retry).await;
            log.observe_final("retry after the first attempt ended", &again);
            client.judge_retry(log, operation, success, &again).await;
        }
        (None, None) => {}
    }
    let effects = client.effects(operation, fault.baseline, log).await?;
    log.expect_at_most_one_effect(effects);
    judge_end(client, log, &settled, fault, effects).await;
    Ok(settled)
}

async fn judge_end(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    settled: &FinalResponse,
    fault: &Fault<'_>,
    effects: Option<u64>,
) {
    // A gateway error that comes back byte for byte was stored with the key.
    let kept = |first: &Response| {
        let again = settled.answer.as_ref();
        again.is_ok_and(|again| (again.status, &again.body) == (first.status, &first.body))
    };
    let seen = describe(&settled.answer);
    match (settled.kind, effects) {
        (ResponseKind::Success, Some(0)) => {
            log.fail("the server reported success, and nothing was executed");
        }
        (ResponseKind::Success, Some(_)) => {}
        (ResponseKind::Success, None) => {
            let replayed = settled.success().is_some_and(Response::is_marked) && !settled.doubtful;
            if fault.acknowledged.is_none() && !replayed {
                log.inconclusive(
                    "a retry succeeded, and nothing shows whether it was a second execution: \
                     give --count-url or --count-command",
                );
            }
        }
        (ResponseKind::Pending | ResponseKind::Refusal, None) if settled.doubtful => log
            .inconclusive(
                "a try before the refusal got no response that shows whether it was executed: add \
             --count-url or --count-command",
            ),
        (ResponseKind::Pending | ResponseKind::Refusal, Some(0) | None) => {
            log.note(format!("the retry gets {seen}"));
        }
        (ResponseKind::Pending | ResponseKind::Refusal, Some(_)) => log.note(unresolved(&seen)),
        // Other requests succeed, so the server received the retries and keeps refusing them.
        (ResponseKind::Inconclusive, Some(1..))
            if (is_own(&settled.answer) || fault.first_error.is_some_and(kept))
                && client.accepts_new_operation().await =>
        {
            log.note(unresolved(&seen));
        }
        (ResponseKind::Inconclusive, _) => mark_unjudged(log, "the retry", &settled.answer),
    }
}

fn unresolved(seen: &str) -> String {
    format!("it was executed once, and the retry still gets {seen}: an operator has to resolve it")
}

/// Waits for the moment. Returns the response of `first` if it came earlier.
pub(super) async fn answer_before<F: Future<Output = Result<Response, String>>>(
    mut first: Pin<&mut F>,
    client: &ProbeClient<'_>,
    operation: &Operation,
    baseline: &EffectBaseline,
    moment: Moment,
) -> Result<Option<Result<Response, String>>, Stop> {
    tokio::select! {
        biased;
        answer = &mut first => Ok(Some(answer)),
        waited = wait_for_moment(client, operation, baseline, moment) => waited.map(|()| None),
    }
}

/// A case that keeps an operation in progress, and the moment for the fault.
pub(super) fn long_running_case<'a>(client: &'a ProbeClient<'_>) -> Option<(&'a Case, Moment)> {
    let cases = &client.target.cases;
    let linger = cases.linger.as_ref().map(|case| (case, Moment::Effect));
    linger.or_else(|| cases.slow.as_ref().map(|case| (case, Moment::After(BEGUN))))
}
