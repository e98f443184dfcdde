//! The store or the process fails while an operation is in progress.

use std::pin::{Pin, pin};

use futures_util::future::join;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::interrupted::{Fault, Moment, answer_before, judge_after_fault, long_running_case};
use super::outcomes::judge_effect_before_fault;
use crate::client::ProbeClient;
use crate::counter::EffectBaseline;
use crate::operation::{Operation, RequestVariant};
use crate::probe_log::{ProbeLog, Stop};
use crate::response::{describe, difference};
use crate::response_kind::ResponseKind;
use crate::wire::Response;

/// Interval between two attempts to connect.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn failed_completion(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let commands = &client.target.commands;
    let (Some(break_store), Some(heal_store)) = (&commands.break_store, &commands.heal_store)
    else {
        return fail_by_case(client, log).await;
    };
    let Some((case, moment)) = long_running_case(client) else {
        return Err(Stop::NotSeen(
            "needs an operation that is in progress while the store breaks: --case \
             linger='HEADER: VALUE' (works at once, responds late) or --case slow"
                .to_owned(),
        ));
    };
    let operation = client.operation();
    let variant = RequestVariant::case(Some(case));
    log.sent(format!(
        "{}, the store broken before it ended and healed afterwards, then retries",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let sent = Instant::now();
    let mut first = pin!(client.send(&operation, variant));
    let early = answer_before(first.as_mut(), client, &operation, &baseline, moment).await?;
    if early.is_some() {
        return Err(ended_too_early());
    }
    let (early, broken) = run_during(first.as_mut(), run_command(client, break_store)).await;
    let answer = match (early, &broken) {
        (None, Ok(())) => Some(first.await),
        // The broken store ended it; a success may have been recorded before.
        (Some(early), Ok(())) if client.success(&early).is_none() => Some(early),
        (Some(_) | None, _) => None,
    };
    // In any case, so that no broken store is left behind.
    run_command(client, heal_store).await?;
    broken?;
    let Some(first) = answer else {
        return Err(ended_too_early());
    };
    log.observe_response("first", &first);
    let mut fault = Fault::new(&operation, variant, &baseline);
    fault.acknowledged = client.success(&first);
    fault.may_lose_record = true;
    if fault.acknowledged.is_some() {
        log.note("the server reported success while the store was broken");
    } else {
        fault = fault.cut(client, log, sent);
        let effects = client.effects_after_lag(&operation, &baseline, log).await?;
        judge_effect_before_fault(log, effects);
    }
    judge_after_fault(client, log, &fault).await?;
    Ok(())
}

fn ended_too_early() -> Stop {
    let reason = "the operation ended before the store was broken: make it slower";
    Stop::NotSeen(reason.to_owned())
}

/// The application fails to record one request, by a case.
async fn fail_by_case(client: &ProbeClient<'_>, log: &mut ProbeLog) -> Result<(), Stop> {
    let Some(case) = &client.target.cases.store_failure else {
        return Err(Stop::NotSeen(
            "needs --break-store-command and --heal-store-command, or a request whose recording \
             fails: --case store_failure='HEADER: VALUE'"
                .to_owned(),
        ));
    };
    let operation = client.operation();
    let variant = RequestVariant::case(Some(case));
    log.sent(format!(
        "{} with a store that fails after the effect, then retries",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let first = client.send(&operation, variant).await;
    log.observe_response("first", &first);
    if first.as_ref().is_ok_and(Response::is_refusal) {
        let seen = describe(&first);
        return Err(Stop::NotSeen(format!("the case was refused: {seen}")));
    }
    let mut fault = Fault::new(&operation, variant, &baseline);
    fault.acknowledged = client.success(&first);
    fault.may_lose_record = true;
    if fault.acknowledged.is_none() {
        let effects = client.effects_after_lag(&operation, &baseline, log).await?;
        judge_effect_before_fault(log, effects);
    }
    let settled = judge_after_fault(client, log, &fault).await?;
    let replayed = |success| {
        settled
            .success()
            .is_some_and(|retry| difference(success, retry).is_none())
    };
    if fault.acknowledged.is_some_and(replayed) {
        log.inconclusive(
            "it succeeded, and its retry got the same response: the case may have had no effect",
        );
    }
    Ok(())
}

pub(super) async fn crash_and_restart(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let Some(crash) = &client.target.commands.crash else {
        return Err(Stop::NotSeen(
            "needs --crash-command, which kills the server at once and starts it again".to_owned(),
        ));
    };
    let before = client.operation();
    let (case, moment) = match long_running_case(client) {
        Some((case, moment)) => (Some(case), moment),
        None => (None, Moment::After(Duration::ZERO)),
    };
    let variant = RequestVariant::case(case);
    let operation = client.operation();
    log.sent(format!(
        "{}; then {}, killed while it was in progress; then both again",
        client.describe_request(&before, RequestVariant::default()),
        client.describe_request(&operation, variant)
    ));
    let baseline_before = client
        .effect_baseline(&before, RequestVariant::default())
        .await?;
    let answered = client
        .send_first(&before, RequestVariant::default(), log)
        .await?;
    let counted_before = client
        .effects_after_lag(&before, &baseline_before, log)
        .await?;

    let baseline = client.effect_baseline(&operation, variant).await?;
    let sent = Instant::now();
    let first = crash_during(client, &operation, variant, &baseline, moment, crash).await?;
    log.observe_response("in progress", &first);
    if client.kind(&first) != ResponseKind::Inconclusive {
        log.inconclusive("nothing was in progress when it was killed: add --case linger or slow");
    } else if case.is_none() {
        log.note("how far the operation had got when it was killed was left to chance");
    }
    wait_until_reachable(client).await?;

    let retry = client
        .retry_until_final(&before, RequestVariant::default())
        .await;
    log.observe_final("retry of what was answered before the crash", &retry);
    client.judge_retry(log, &before, &answered, &retry).await;
    // A counter without placeholders includes the other operation.
    if client.counts_each() {
        let counted = client
            .effects_after_lag(&before, &baseline_before, log)
            .await?;
        if counted > counted_before {
            log.fail("a request that was answered before the crash was executed again");
        }
    }
    let mut fault = Fault::new(&operation, variant, &baseline);
    fault.acknowledged = client.success(&first);
    if fault.acknowledged.is_none() {
        fault = fault.cut(client, log, sent);
    }
    judge_after_fault(client, log, &fault).await?;
    Ok(())
}

/// Runs the command while the operation is in progress, and returns the operation's response.
async fn crash_during(
    client: &ProbeClient<'_>,
    operation: &Operation,
    variant: RequestVariant<'_>,
    baseline: &EffectBaseline,
    moment: Moment,
    crash: &str,
) -> Result<Result<Response, String>, Stop> {
    let connection = client.connect().await.map_err(Stop::NotSeen)?;
    let mut first = pin!(client.send_on(connection, operation, variant));
    let early = answer_before(first.as_mut(), client, operation, baseline, moment).await?;
    if let Some(answer) = early {
        run_command(client, crash).await?;
        return Ok(answer);
    }
    // The operation continues while the command runs: a process takes a moment to die.
    let (answer, crashed) = join(first, run_command(client, crash)).await;
    crashed.map(|()| answer)
}

/// Waits until the target accepts connections again.
async fn wait_until_reachable(client: &ProbeClient<'_>) -> Result<(), Stop> {
    let end = Instant::now() + client.target.operation_timeout;
    loop {
        match client.connect().await {
            Ok(_) => return Ok(()),
            Err(reason) if Instant::now() >= end => {
                return Err(Stop::NotSeen(format!(
                    "the target did not come back: {reason}"
                )));
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

async fn run_command(client: &ProbeClient<'_>, command: &str) -> Result<(), Stop> {
    let limit = client.target.operation_timeout;
    match timeout(limit, client.environment.run(command)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Stop::NotSeen(format!("{command}: {error}"))),
        Err(_) => Err(Stop::NotSeen(format!(
            "{command}: did not end within {limit:?}"
        ))),
    }
}

/// Runs a future while `first` continues. Returns the response of `first` if it came earlier.
async fn run_during<F, R>(mut first: Pin<&mut F>, running: R) -> (Option<F::Output>, R::Output)
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
