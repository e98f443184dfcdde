//! The store or the process fails while an operation is under way.

use std::pin::{Pin, pin};

use futures_util::future::join;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::interrupted::{Fault, Moment, judge_after_fault, under_way, until};
use super::outcomes::happened;
use crate::answers::{difference, tell};
use crate::caller::Caller;
use crate::counter::Counting;
use crate::kind::Kind;
use crate::operation::{Operation, Shape};
use crate::record::{Record, Stop};
use crate::wire::Answer;

/// Between two looks whether the target is back.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn failed_completion(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let commands = &caller.target.commands;
    let (Some(break_store), Some(heal_store)) = (&commands.break_store, &commands.heal_store)
    else {
        return by_case(caller, record).await;
    };
    let Some((case, moment)) = under_way(caller) else {
        return Err(Stop::NotSeen(
            "needs an operation that is under way while the store breaks: --case \
             linger='HEADER: VALUE' (works at once, answers late) or --case slow"
                .to_owned(),
        ));
    };
    let operation = caller.operation();
    let shape = Shape::case(Some(case));
    record.sent(format!(
        "{}, the store broken before it ended and healed afterwards, then retries",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation, shape).await?;
    let sent = Instant::now();
    let mut first = pin!(caller.ask(&operation, shape));
    let early = until(first.as_mut(), caller, &operation, &counting, moment).await?;
    if early.is_some() {
        return Err(too_early());
    }
    let (early, broken) = beside(first.as_mut(), run(caller, break_store)).await;
    let answer = match (early, &broken) {
        (None, Ok(())) => Some(first.await),
        // What broke off meanwhile was broken by it; a success may have been recorded before.
        (Some(early), Ok(())) if caller.success(&early).is_none() => Some(early),
        (Some(_) | None, _) => None,
    };
    // In any case: nobody wants a broken store to be left behind.
    run(caller, heal_store).await?;
    broken?;
    let Some(first) = answer else {
        return Err(too_early());
    };
    record.saw_answer("first", &first);
    let mut fault = Fault::new(&operation, shape, &counting);
    fault.told = caller.success(&first);
    fault.forgivable = true;
    if fault.told.is_some() {
        record.note("it was answered with success while the store was broken");
    } else {
        fault = fault.cut(caller, record, sent);
        let effects = caller
            .effects_at_last(&operation, &counting, record)
            .await?;
        happened(record, effects);
    }
    judge_after_fault(caller, record, &fault).await?;
    Ok(())
}

fn too_early() -> Stop {
    let reason = "the operation ended before the store could be broken: make it slower";
    Stop::NotSeen(reason.to_owned())
}

/// The application breaks its own store for one request.
async fn by_case(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let Some(case) = &caller.target.cases.store_failure else {
        return Err(Stop::NotSeen(
            "needs --break-store-command and --heal-store-command, or a request whose recording \
             fails: --case store_failure='HEADER: VALUE'"
                .to_owned(),
        ));
    };
    let operation = caller.operation();
    let shape = Shape::case(Some(case));
    record.sent(format!(
        "{} with a store that fails after the effect, then retries",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation, shape).await?;
    let first = caller.ask(&operation, shape).await;
    record.saw_answer("first", &first);
    if first.as_ref().is_ok_and(Answer::is_refusal) {
        let seen = tell(&first);
        return Err(Stop::NotSeen(format!("the case was refused: {seen}")));
    }
    let mut fault = Fault::new(&operation, shape, &counting);
    fault.told = caller.success(&first);
    fault.forgivable = true;
    if fault.told.is_none() {
        let effects = caller
            .effects_at_last(&operation, &counting, record)
            .await?;
        happened(record, effects);
    }
    let settled = judge_after_fault(caller, record, &fault).await?;
    let replayed = |told| {
        settled
            .success()
            .is_some_and(|retry| difference(told, retry).is_none())
    };
    if fault.told.is_some_and(replayed) {
        record.blind(
            "it succeeded, and its retry was given the same: perhaps the case was not heeded, and \
             nothing failed",
        );
    }
    Ok(())
}

pub(super) async fn crash_and_restart(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let Some(crash) = &caller.target.commands.crash else {
        return Err(Stop::NotSeen(
            "needs --crash-command, which kills the server at once and starts it again".to_owned(),
        ));
    };
    let before = caller.operation();
    let (case, moment) = match under_way(caller) {
        Some((case, moment)) => (Some(case), moment),
        None => (None, Moment::After(Duration::ZERO)),
    };
    let shape = Shape::case(case);
    let operation = caller.operation();
    record.sent(format!(
        "{}; then {}, killed while it was under way; then both again",
        caller.told(&before, Shape::default()),
        caller.told(&operation, shape)
    ));
    let counting_before = caller.counting(&before, Shape::default()).await?;
    let answered = caller.first(&before, Shape::default(), record).await?;
    let counted_before = caller
        .effects_at_last(&before, &counting_before, record)
        .await?;

    let counting = caller.counting(&operation, shape).await?;
    let sent = Instant::now();
    let first = killed(caller, &operation, shape, &counting, moment, crash).await?;
    record.saw_answer("under way", &first);
    if caller.kind(&first) != Kind::Silent {
        record.blind("nothing was under way when it was killed: give --case linger or slow");
    } else if case.is_none() {
        record.note("how far the operation under way had come was left to chance");
    }
    back(caller).await?;

    let retry = caller.settle(&before, Shape::default()).await;
    record.saw_settled("answered before the crash, again", &retry);
    caller.judge_retry(record, &before, &answered, &retry).await;
    // A counter of everything has moved by the other operation, too.
    if caller.counts_each() {
        let counted = caller
            .effects_at_last(&before, &counting_before, record)
            .await?;
        if counted > counted_before {
            record.fail("what was answered before the crash was executed again");
        }
    }
    let mut fault = Fault::new(&operation, shape, &counting);
    fault.told = caller.success(&first);
    if fault.told.is_none() {
        fault = fault.cut(caller, record, sent);
    }
    judge_after_fault(caller, record, &fault).await?;
    Ok(())
}

/// Runs the command while the operation is under way, and gives the operation's answer.
async fn killed(
    caller: &Caller<'_>,
    operation: &Operation,
    shape: Shape<'_>,
    counting: &Counting,
    moment: Moment,
    crash: &str,
) -> Result<Result<Answer, String>, Stop> {
    let connection = caller.connect().await.map_err(Stop::NotSeen)?;
    let mut first = pin!(caller.ask_on(connection, operation, shape));
    let early = until(first.as_mut(), caller, operation, counting, moment).await?;
    if let Some(answer) = early {
        run(caller, crash).await?;
        return Ok(answer);
    }
    // It goes on while the command runs: a process takes a moment to die.
    let (answer, crashed) = join(first, run(caller, crash)).await;
    crashed.map(|()| answer)
}

/// Waits until somebody listens again.
async fn back(caller: &Caller<'_>) -> Result<(), Stop> {
    let end = Instant::now() + caller.target.operation_timeout;
    loop {
        match caller.connect().await {
            Ok(_) => return Ok(()),
            Err(reason) if Instant::now() >= end => {
                return Err(Stop::NotSeen(format!("it did not come back: {reason}")));
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

async fn run(caller: &Caller<'_>, command: &str) -> Result<(), Stop> {
    let limit = caller.target.operation_timeout;
    match timeout(limit, caller.world.run(command)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Stop::NotSeen(format!("{command}: {error}"))),
        Err(_) => Err(Stop::NotSeen(format!("{command}: not over in {limit:?}"))),
    }
}

/// Runs something while `first` goes on; its answer where that came before the other's end.
async fn beside<F, R>(mut first: Pin<&mut F>, running: R) -> (Option<F::Output>, R::Output)
where
    F: Future,
    R: Future,
{
    let mut running = pin!(running);
    tokio::select! {
        biased;
        ran = &mut running => (None, ran),
        answer = &mut first => (Some(answer), running.await),
    }
}
