//! The store or the process fails while an operation is under way.

use std::pin::pin;

use tokio::time::{Duration, Instant, sleep, timeout};

use super::interrupted::{Moment, judge_after_fault, under_way, until};
use crate::caller::{Caller, Shape};
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
    let counting = caller.counting(&operation).await?;
    let mut first = pin!(caller.ask(&operation, shape));
    let early = until(first.as_mut(), caller, &operation, &counting, moment).await?;
    if early.is_some() {
        let reason = "the operation ended before the store could be broken: make it slower";
        return Err(Stop::NotSeen(reason.to_owned()));
    }
    let broken = run(caller, break_store).await;
    let first = match broken {
        Ok(()) => Some(first.await),
        Err(_) => None,
    };
    // In any case: nobody wants a broken store to be left behind.
    run(caller, heal_store).await?;
    broken?;
    let Some(first) = first else { return Ok(()) };
    record.saw_answer("first", &first);
    let first = first.ok().filter(Answer::is_success);
    judge_after_fault(caller, record, &operation, shape, &counting, first.as_ref()).await
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
    let counting = caller.counting(&operation).await?;
    let first = caller.ask(&operation, shape).await;
    record.saw_answer("first", &first);
    let first = first.ok().filter(Answer::is_success);
    judge_after_fault(caller, record, &operation, shape, &counting, first.as_ref()).await
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
    let counting_before = caller.counting(&before).await?;
    let answered = caller.first(&before, Shape::default(), record).await?;
    let counted_before = caller.effects_since(&before, &counting_before).await?;

    let counting = caller.counting(&operation).await?;
    let first = {
        let mut first = pin!(caller.ask(&operation, shape));
        let early = until(first.as_mut(), caller, &operation, &counting, moment).await?;
        if early.is_some() {
            record
                .note("the operation under way ended before the crash: give --case linger or slow");
        }
        run(caller, crash).await?;
        match early {
            Some(answer) => answer,
            None => first.await,
        }
    };
    record.saw_answer("under way", &first);
    back(caller).await?;

    let retry = caller.settle(&before, Shape::default()).await;
    record.saw_settled("answered before the crash, again", &retry);
    caller.judge_retry(record, &answered, &retry);
    // A counter of everything has moved by the other operation, too.
    if caller.target.counter.as_ref().is_some_and(per_operation) {
        let counted = caller.effects_since(&before, &counting_before).await?;
        if counted > counted_before {
            record.fail("what was answered before the crash was executed again");
        }
    }
    let first = first.ok().filter(Answer::is_success);
    judge_after_fault(caller, record, &operation, shape, &counting, first.as_ref()).await
}

fn per_operation(counter: &crate::Counter) -> bool {
    let text = match counter {
        crate::Counter::Url { url, .. } => url,
        crate::Counter::Command(command) => command,
    };
    text.contains("{reference}") || text.contains("{key}")
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
