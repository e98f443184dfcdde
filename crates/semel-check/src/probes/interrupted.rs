//! Operations that are cut off, or take long.

use std::cell::Cell;
use std::pin::Pin;

use futures_util::future::join;
use tokio::time::{Duration, Instant, sleep};

use super::outcomes::needed;
use crate::answers::{difference, is_pending, tell};
use crate::caller::{Caller, Counting, Operation, Settled, Shape};
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
        Moment::Effect if !caller.counts() => sleep(BEGUN).await,
        Moment::Effect => {
            let end = Instant::now() + caller.target.operation_timeout;
            while caller.effects_since(operation, counting).await? == Some(0)
                && Instant::now() < end
            {
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
    let counting = caller.counting(&operation).await?;
    let mut connection = caller.connect().await.map_err(Stop::NotSeen)?;
    let sent = connection.send(&caller.request(&operation, shape)).await;
    sent.map_err(|error| Stop::NotSeen(format!("the request could not be sent: {error}")))?;
    wait(caller, &operation, &counting, moment).await?;
    drop(connection);
    judge_after_fault(caller, record, &operation, shape, &counting, None).await
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
    let counting = caller.counting(&operation).await?;
    let over = Cell::new(false);
    let first = async {
        let answer = caller.ask(&operation, shape).await;
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
            answers.push(caller.ask(&operation, shape.retry()).await);
        }
    };
    let (first, duplicates) = join(first, duplicates).await;
    record.saw_answer("first", &first);
    tally(record, &duplicates);
    if duplicates.is_empty() {
        record.blind("the operation was over before a duplicate could be sent: make it slower");
    }
    let first = first.ok().filter(Answer::is_success);
    let early = duplicates
        .iter()
        .flatten()
        .filter(|a| a.is_success() && !is_pending(a));
    for answer in early {
        match &first {
            Some(first) => {
                if let Some(difference) = difference(first, answer) {
                    record.fail(format!(
                        "a duplicate was given another success: {difference}"
                    ));
                }
            }
            None => record.note(format!(
                "a duplicate succeeded: {}",
                tell(&Ok(answer.clone()))
            )),
        }
    }
    judge_after_fault(caller, record, &operation, shape, &counting, first.as_ref()).await
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

/// Asks what became of an operation whose end somebody may not have seen, as its client would,
/// and judges it. `first` is the success that a client was told of.
pub(super) async fn judge_after_fault(
    caller: &Caller<'_>,
    record: &mut Record,
    operation: &Operation,
    shape: Shape<'_>,
    counting: &Counting,
    first: Option<&Answer>,
) -> Result<(), Stop> {
    let settled = caller.settle(operation, shape.retry()).await;
    record.saw_settled("retry", &settled);
    match (first, settled.success()) {
        (Some(first), _) => caller.judge_retry(record, first, &settled),
        (None, Some(success)) => {
            let again = caller.settle(operation, shape.retry()).await;
            caller.judge_retry(record, success, &again);
        }
        (None, None) => {}
    }
    let effects = caller.effects(operation, counting, record).await?;
    record.at_most_one(effects);
    judge_end(record, &settled, first.is_some(), effects);
    Ok(())
}

fn judge_end(record: &mut Record, settled: &Settled, told: bool, effects: Option<u64>) {
    match (settled.success(), effects) {
        (Some(_), Some(0)) => record.fail("success was answered, and nothing happened"),
        (Some(_), Some(_)) => {}
        (Some(success), None) if told || success.is_marked() => {}
        (Some(_), None) => record.blind(
            "a retry succeeded, and nothing says whether it was the second execution: give \
             --count-url or --count-command",
        ),
        (None, Some(1..)) => record.note(format!(
            "it happened once, and the retry is still answered with {}: somebody has to find out",
            tell(&settled.answer)
        )),
        (None, Some(0) | None) => record.note(format!(
            "the retry is answered with {}",
            tell(&settled.answer)
        )),
    }
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
