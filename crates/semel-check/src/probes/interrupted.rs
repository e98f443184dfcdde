//! Operations that are cut off, or take long.

use std::cell::Cell;
use std::pin::Pin;

use futures_util::future::join;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::outcomes::needed;
use crate::answers::tell;
use crate::caller::{Caller, Settled};
use crate::counter::Counting;
use crate::judge::unjudged;
use crate::kind::{Kind, is_doubtful, is_own};
use crate::operation::{Operation, Shape};
use crate::record::{Record, Stop};
use crate::target::Case;
use crate::wire::Answer;

/// Moments at which a client goes away: before anything is read, and while things happen.
const MOMENTS_MS: [u64; 4] = [0, 2, 10, 50];
/// Until then an operation has surely begun.
const BEGUN: Duration = Duration::from_millis(300);
/// Between two duplicates: often beside any lease.
const BETWEEN: Duration = Duration::from_millis(250);
/// Between two looks at the counter.
const LOOK: Duration = Duration::from_millis(20);
/// What is cut off may take longer than what nobody disturbed: so much, and half as long again.
const MARGIN: Duration = Duration::from_millis(500);

pub(super) async fn disconnect_after_effect(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let cases = &caller.target.cases;
    for moment in MOMENTS_MS {
        let moment = Duration::from_millis(moment);
        gone(caller, record, Shape::default(), Moment::After(moment)).await?;
        if record.failed() {
            return Ok(());
        }
    }
    if let Some(slow) = &cases.slow {
        gone(
            caller,
            record,
            Shape::case(Some(slow)),
            Moment::After(BEGUN),
        )
        .await?;
    }
    if let Some(linger) = &cases.linger {
        gone(caller, record, Shape::case(Some(linger)), Moment::Effect).await?;
    }
    if cases.slow.is_none() && cases.linger.is_none() {
        record.note(
            "no --case linger or slow was given: whether the client went away between the effect \
             and its answer was left to chance",
        );
    }
    Ok(())
}

/// When something is done to an operation that is under way.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    After(Duration),
    /// When the counter shows its effect; where nobody counts, a little later than its begin.
    Effect,
}

/// Waits for the moment.
pub(super) async fn wait(
    caller: &Caller<'_>,
    operation: &Operation,
    counting: &Counting,
    moment: Moment,
) -> Result<(), Stop> {
    match moment {
        Moment::After(time) => sleep(time).await,
        Moment::Effect if !caller.counts(operation) => sleep(BEGUN).await,
        Moment::Effect => {
            let limit = caller.target.operation_timeout;
            let end = Instant::now() + limit;
            while caller.effects_since(operation, counting).await? == Some(0) {
                if Instant::now() >= end {
                    let reason = format!("the effect did not show in {limit:?}");
                    return Err(Stop::NotSeen(reason));
                }
                sleep(LOOK).await;
            }
        }
    }
    Ok(())
}

async fn gone(
    caller: &Caller<'_>,
    record: &mut Record,
    shape: Shape<'_>,
    moment: Moment,
) -> Result<(), Stop> {
    let operation = caller.operation();
    let when = match moment {
        Moment::After(time) => format!("after {} ms", time.as_millis()),
        Moment::Effect => "after the effect".to_owned(),
    };
    record.sent(format!(
        "{}, the connection closed {when}, then retries",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation, shape).await?;
    let mut connection = caller.connect().await.map_err(Stop::NotSeen)?;
    let sent = Instant::now();
    let sending = connection.send(&caller.request(&operation, shape)).await;
    sending.map_err(|error| Stop::NotSeen(format!("the request could not be sent: {error}")))?;
    wait(caller, &operation, &counting, moment).await?;
    drop(connection);
    let fault = Fault::new(&operation, shape, &counting).cut(caller, record, sent);
    judge_after_fault(caller, record, &fault).await?;
    Ok(())
}

pub(super) async fn slow_operation(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let cases = &caller.target.cases;
    let slow = cases.slow.as_ref().or(cases.linger.as_ref());
    let slow = needed(slow, "slow", "takes longer than any lock of the server")?;
    let operation = caller.operation();
    let shape = Shape::case(Some(slow));
    record.sent(format!(
        "{} as a slow operation, and duplicates until it ends",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation, shape).await?;
    let sent = Instant::now();
    let (first, duplicates) = beside(caller, &operation, shape).await;
    record.saw_answer("first", &first);
    tally(record, &duplicates);
    if duplicates.is_empty() {
        record.blind("the operation was over before a duplicate could be sent: make it slower");
    }
    let counted = caller.counts(&operation);
    // One without an answer may still be under way.
    let unclear = |answer: &Result<_, _>| answer.is_err() || (!counted && is_doubtful(answer));
    if duplicates.iter().any(unclear) {
        record.blind("a duplicate got no answer that says whether it was executed");
    }
    let told = caller.success(&first);
    for answer in duplicates
        .iter()
        .filter_map(|answer| caller.success(answer))
    {
        match told {
            Some(first) => {
                let what = "a duplicate was given another success";
                caller.differs(record, &operation, first, answer, what);
            }
            None => record.blind(format!(
                "a duplicate succeeded, and the first did not: {}",
                tell(&Ok(answer.clone()))
            )),
        }
    }
    let mut fault = Fault::new(&operation, shape, &counting);
    fault.told = told;
    if told.is_none() {
        fault = fault.cut(caller, record, sent);
    }
    if first.is_err() {
        record.blind("the operation did not end: raise --operation-timeout, or make it quicker");
    }
    judge_after_fault(caller, record, &fault).await?;
    Ok(())
}

/// An operation that takes long, and duplicates until it is over.
async fn beside(
    caller: &Caller<'_>,
    operation: &Operation,
    shape: Shape<'_>,
) -> (Result<Answer, String>, Vec<Result<Answer, String>>) {
    let over = Cell::new(false);
    let first = async {
        let answer = caller.ask(operation, shape).await;
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
            answers.push(caller.ask(operation, shape.retry()).await);
        }
    };
    join(first, duplicates).await
}

fn tally(record: &mut Record, duplicates: &[Result<Answer, String>]) {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for answer in duplicates {
        let kind = answer
            .as_ref()
            .map_or_else(|_| "no answer".to_owned(), |a| a.status.to_string());
        match kinds.iter_mut().find(|(is, _)| *is == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| format!("{count} × {kind}"))
        .collect();
    record.saw(format!("duplicates meanwhile: {}", kinds.join(", ")));
}

/// An operation to which something happened.
pub(super) struct Fault<'a> {
    operation: &'a Operation,
    shape: Shape<'a>,
    counting: &'a Counting,
    /// The success that a client was told of.
    pub(super) told: Option<&'a Answer>,
    /// What the first attempt was answered with, where that was no success.
    pub(super) ended_with: Option<&'a Answer>,
    /// Whether its record may be lost: a refusal then is as good as the answer.
    pub(super) forgivable: bool,
    /// When the first attempt is over, whatever became of it.
    over: Instant,
}

impl<'a> Fault<'a> {
    /// Its first attempt is over.
    pub(super) fn new(operation: &'a Operation, shape: Shape<'a>, counting: &'a Counting) -> Self {
        Self {
            operation,
            shape,
            counting,
            told: None,
            ended_with: None,
            forgivable: false,
            over: Instant::now(),
        }
    }

    /// Its first attempt was cut off, and may go on all the same: that its key was freed too early
    /// shows only when both attempts are over.
    pub(super) fn cut(mut self, caller: &Caller<'_>, record: &mut Record, sent: Instant) -> Self {
        let takes = caller.pace(self.shape).map(|pace| pace.answered + pace.lag);
        if takes.is_none() {
            record.blind(
                "the case was not seen to succeed when nobody disturbed it, so that it is not \
                 known when it is over: raise --operation-timeout, or make it quicker",
            );
        }
        let limit = caller.target.operation_timeout;
        self.over = sent + takes.map_or(limit, |takes| takes * 3 / 2 + MARGIN);
        self
    }
}

/// Asks what became of an operation whose end somebody may not have seen, as its client would,
/// and judges it. Gives what the retries came to.
pub(super) async fn judge_after_fault(
    caller: &Caller<'_>,
    record: &mut Record,
    fault: &Fault<'_>,
) -> Result<Settled, Stop> {
    let (operation, retry) = (fault.operation, fault.shape.retry());
    let settled = caller.settle(operation, retry).await;
    record.saw_settled("retry", &settled);
    sleep_until(fault.over).await;
    match (fault.told, settled.success()) {
        (Some(_), None) if fault.forgivable && settled.kind != Kind::Silent => {}
        (Some(first), _) => caller.judge_retry(record, operation, first, &settled).await,
        // The first attempt may have ended since, and must not have changed the answer.
        (None, Some(success)) => {
            let again = caller.settle(operation, retry).await;
            record.saw_settled("retry after the end of the first", &again);
            caller.judge_retry(record, operation, success, &again).await;
        }
        (None, None) => {}
    }
    let effects = caller.effects(operation, fault.counting, record).await?;
    record.at_most_one(effects);
    judge_end(caller, record, &settled, fault, effects).await;
    Ok(settled)
}

async fn judge_end(
    caller: &Caller<'_>,
    record: &mut Record,
    settled: &Settled,
    fault: &Fault<'_>,
    effects: Option<u64>,
) {
    // A gateway's words that come back to the letter were kept with the key.
    let kept = |first: &Answer| {
        let again = settled.answer.as_ref();
        again.is_ok_and(|again| (again.status, &again.body) == (first.status, &first.body))
    };
    let seen = tell(&settled.answer);
    match (settled.kind, effects) {
        (Kind::Success, Some(0)) => record.fail("success was answered, and nothing happened"),
        (Kind::Success, Some(_)) => {}
        (Kind::Success, None) => {
            let replayed = settled.success().is_some_and(Answer::is_marked) && !settled.doubtful;
            if fault.told.is_none() && !replayed {
                record.blind(
                    "a retry succeeded, and nothing says whether it was the second execution: \
                     give --count-url or --count-command",
                );
            }
        }
        (Kind::Pending | Kind::Refusal, None) if settled.doubtful => record.blind(
            "a try before the refusal got no answer that says whether it was executed: give \
             --count-url or --count-command",
        ),
        (Kind::Pending | Kind::Refusal, Some(0) | None) => {
            record.note(format!("the retry is answered with {seen}"));
        }
        (Kind::Pending | Kind::Refusal, Some(_)) => record.note(unresolved(&seen)),
        // Others are served, so that the retries were heard, and nothing came of them.
        (Kind::Silent, Some(1..))
            if (is_own(&settled.answer) || fault.ended_with.is_some_and(kept))
                && caller.takes_new().await =>
        {
            record.note(unresolved(&seen));
        }
        (Kind::Silent, _) => unjudged(record, "the retry", &settled.answer),
    }
}

fn unresolved(seen: &str) -> String {
    format!(
        "it happened once, and the retry is still answered with {seen}: somebody has to find out"
    )
}

/// Runs until `first` is answered or the moment has come; the answer where it was first.
pub(super) async fn until<F: Future<Output = Result<Answer, String>>>(
    mut first: Pin<&mut F>,
    caller: &Caller<'_>,
    operation: &Operation,
    counting: &Counting,
    moment: Moment,
) -> Result<Option<Result<Answer, String>>, Stop> {
    tokio::select! {
        biased;
        answer = &mut first => Ok(Some(answer)),
        waited = wait(caller, operation, counting, moment) => waited.map(|()| None),
    }
}

/// A case that keeps an operation under way for some time, and when to strike.
pub(super) fn under_way<'a>(caller: &'a Caller<'_>) -> Option<(&'a Case, Moment)> {
    let cases = &caller.target.cases;
    let linger = cases.linger.as_ref().map(|case| (case, Moment::Effect));
    linger.or_else(|| cases.slow.as_ref().map(|case| (case, Moment::After(BEGUN))))
}
