//! A key that is reused with a different body.

use futures_util::future::join;
use tokio::time::{Duration, sleep};

use crate::client::{FinalResponse, ProbeClient};
use crate::json;
use crate::judge::mark_unjudged;
use crate::operation::{Operation, RequestVariant};
use crate::probe_log::{ProbeLog, Stop};
use crate::response::difference;
use crate::response_kind::{ResponseKind, is_doubtful, is_own};
use crate::target::{Case, Dialect};
use crate::wire::Response;

/// Rounds of a race, since one may succeed by chance.
const ROUNDS: usize = 5;
/// After this delay a slow operation has started.
const BEGUN: Duration = Duration::from_millis(300);

pub(super) async fn different_body(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let operation = client.operation();
    let other = other_body(client, &operation, RequestVariant::default())?;
    log.sent(format!(
        "{}, then the same key with {other}, then the first again",
        client.describe_request(&operation, RequestVariant::default())
    ));
    let baseline = client
        .effect_baseline(&operation, RequestVariant::default())
        .await?;
    let first = client
        .send_first(&operation, RequestVariant::default(), log)
        .await?;
    let misused = client.send(&operation, RequestVariant::body(&other)).await;
    log.observe_response("other body", &misused);
    judge(client, log, &first, &misused);
    let retry = client
        .retry_until_final(&operation, RequestVariant::default())
        .await;
    log.observe_final("first body again", &retry);
    client.judge_retry(log, &operation, &first, &retry).await;
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_one_effect(effects);
    Ok(())
}

pub(super) async fn different_body_in_flight(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    for round in 0..ROUNDS {
        race(client, log, round == 0).await?;
        if log.failed() {
            return Ok(());
        }
    }
    if let Some(slow) = &client.target.cases.slow {
        misuse_during_slow_operation(client, log, slow).await?;
    }
    Ok(())
}

/// Sends two bodies at the same time: the second one must be refused.
async fn race(client: &ProbeClient<'_>, log: &mut ProbeLog, log_sent: bool) -> Result<(), Stop> {
    let operation = client.operation();
    let other = other_body(client, &operation, RequestVariant::default())?;
    if log_sent {
        log.sent(format!(
            "{}, and at the same time the same key with {other}",
            client.describe_request(&operation, RequestVariant::default())
        ));
    }
    let baseline = client
        .effect_baseline(&operation, RequestVariant::default())
        .await?;
    let variants = [RequestVariant::default(), RequestVariant::body(&other)];
    let (one, two) = join(client.connect(), client.connect()).await;
    let (Ok(one), Ok(two)) = (one, two) else {
        return Err(Stop::NotSeen(
            "could not open two connections at once".to_owned(),
        ));
    };
    let (one, two) = join(
        client.send_on(one, &operation, variants[0]),
        client.send_on(two, &operation, variants[1]),
    )
    .await;
    log.observe_response("one", &one);
    log.observe_response("other", &two);
    let other_won = client.success(&one).is_none() && client.success(&two).is_some();
    let (raced, variants) = if other_won {
        ([two, one], [variants[1], variants[0]])
    } else {
        ([one, two], variants)
    };
    let settled = client.retry_until_final(&operation, variants[0]).await;
    // The loser retries. Where the first succeeded, the response is about the key.
    let later = match settled.success() {
        Some(_) => client.send(&operation, variants[1]).await,
        None => {
            client
                .retry_until_final(&operation, variants[1])
                .await
                .answer
        }
    };
    judge_race(client, log, &operation, &raced, &settled, &later).await;
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_at_most_one_effect(effects);
    if settled.success().is_some() {
        log.expect_one_effect(effects);
    }
    if effects.is_none() && raced.iter().any(is_doubtful) {
        log.inconclusive(
            "one of the two got no response that shows whether it was executed: add --count-url or \
             --count-command",
        );
    } else if !raced.iter().all(is_own) {
        log.inconclusive("one of the two did not reach the API, so there was no race");
    }
    Ok(())
}

/// Judges the responses during the race, the winner's first, and the response to each afterwards.
async fn judge_race(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    operation: &Operation,
    raced: &[Result<Response, String>; 2],
    settled: &FinalResponse,
    later: &Result<Response, String>,
) {
    match (client.success(&raced[0]), client.success(&raced[1])) {
        (Some(one), Some(two)) => {
            return log.fail(match difference(one, two) {
                None => "two different requests got the same success",
                Some(_) => "two different requests succeeded under one key",
            });
        }
        // A success that was sent must not be withdrawn because of the other request.
        (Some(first), None) => client.judge_retry(log, operation, first, settled).await,
        (None, Some(_) | None) => {}
    }
    match (settled.success(), client.success(later)) {
        (Some(first), _) => judge(client, log, first, later),
        (None, Some(first)) => judge(client, log, first, &settled.answer),
        (None, None) => log.inconclusive("neither of the two succeeded"),
    }
}

/// Sends the other body while the first request runs.
async fn misuse_during_slow_operation(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    slow: &Case,
) -> Result<(), Stop> {
    let operation = client.operation();
    let variant = RequestVariant::case(Some(slow));
    let other = other_body(client, &operation, variant)?;
    log.sent(format!(
        "{} as a slow operation, and meanwhile the same key with {other}",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let later = async {
        sleep(BEGUN).await;
        client.send(&operation, RequestVariant::body(&other)).await
    };
    let (first, misused) = join(client.send(&operation, variant), later).await;
    log.observe_response("slow", &first);
    log.observe_response("other body during it", &misused);
    let Some(first) = client.success(&first) else {
        log.inconclusive("the slow operation did not succeed, so nothing was in progress");
        return Ok(());
    };
    // The server need not compare bodies before the first request ends.
    let misused = match client.kind(&misused) {
        ResponseKind::Pending => {
            let misused = client.send(&operation, RequestVariant::body(&other)).await;
            log.observe_response("other body afterwards", &misused);
            misused
        }
        ResponseKind::Success | ResponseKind::Refusal | ResponseKind::Inconclusive => misused,
    };
    judge(client, log, first, &misused);
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_one_effect(effects);
    Ok(())
}

fn other_body(
    client: &ProbeClient<'_>,
    operation: &Operation,
    variant: RequestVariant<'_>,
) -> Result<String, Stop> {
    let given = client.target.other_body.as_deref();
    let given = given.map(|other| client.body(operation, RequestVariant::body(other)));
    let other = given.or_else(|| json::other(&client.body(operation, variant)));
    other.ok_or_else(|| {
        Stop::NotSeen("the body has no number to change: add --other-body".to_owned())
    })
}

/// Judges the response to a key that was reused with a different body.
fn judge(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    first: &Response,
    misused: &Result<Response, String>,
) {
    match (client.kind(misused), misused) {
        (ResponseKind::Success, Ok(answer)) => log.fail(match difference(first, answer) {
            None => "a different request got the first one's success",
            Some(_) => "a different request succeeded under the same key",
        }),
        (ResponseKind::Refusal | ResponseKind::Pending, Ok(answer)) if answer.is_refusal() => {
            note_misuse_status(client.profile.dialect, answer.status, log);
        }
        (
            ResponseKind::Success
            | ResponseKind::Refusal
            | ResponseKind::Pending
            | ResponseKind::Inconclusive,
            _,
        ) => {
            mark_unjudged(log, "the other body", misused);
        }
    }
}

fn note_misuse_status(dialect: Dialect, status: u16, log: &mut ProbeLog) {
    let usual = match dialect {
        Dialect::Ietf => 422,
        Dialect::Stripe => 400,
    };
    if status == 409 {
        log.note("misuse got a 409, which clients retry: they never see the error");
    } else if status != usual {
        log.note(format!(
            "misuse got a {status}; the {} dialect uses {usual}",
            dialect.name()
        ));
    }
}
