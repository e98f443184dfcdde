//! The same request again: later, serialized differently, and at the same time.

use futures_util::future::join_all;

use crate::client::{FinalResponse, ProbeClient};
use crate::json;
use crate::judge::mark_unjudged;
use crate::operation::RequestVariant;
use crate::probe_log::{ProbeLog, Stop};
use crate::response::{describe, metadata_difference};
use crate::response_kind::{ResponseKind, is_doubtful, is_own};
use crate::wire::Response;

/// Enough to hit the gap between lookup and store; few enough for any server.
const AT_ONCE: usize = 16;
/// Rounds of a race, since one may succeed by chance.
const ROUNDS: usize = 3;

pub(super) async fn replay(client: &ProbeClient<'_>, log: &mut ProbeLog) -> Result<(), Stop> {
    let operation = client.operation();
    let variant = RequestVariant::default();
    log.sent(format!(
        "{}, three times",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let first = client.send_first(&operation, variant, log).await?;
    // Twice: some stores accept the second retry.
    for which in ["retry", "second retry"] {
        let retry = client.retry_until_final(&operation, variant).await;
        log.observe_final(which, &retry);
        client.judge_retry(log, &operation, &first, &retry).await;
        if let Some(difference) = retry
            .success()
            .and_then(|retry| metadata_difference(&first, retry))
        {
            log.fail(format!(
                "a replay differs from the first response: {difference}"
            ));
        }
        if let (Some(cookie), Some(answer)) = (first.header("set-cookie"), retry.success())
            && answer.header("set-cookie") == Some(cookie)
        {
            log.note("the replay sets the first caller's cookie again");
        }
    }
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_one_effect(effects);
    Ok(())
}

pub(super) async fn same_json_reordered(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let operation = client.operation();
    let Some(reordered) = json::reordered(&client.body(&operation, RequestVariant::default()))
    else {
        let reason = "the body is not a JSON object with two or more members";
        return Err(Stop::Skipped(reason.to_owned()));
    };
    let retry = RequestVariant::body(&reordered);
    log.sent(format!(
        "{}, then the same as {reordered}",
        client.describe_request(&operation, RequestVariant::default())
    ));
    let baseline = client
        .effect_baseline(&operation, RequestVariant::default())
        .await?;
    let first = client
        .send_first(&operation, RequestVariant::default(), log)
        .await?;
    let settled = client.retry_until_final(&operation, retry).await;
    log.observe_final("retry", &settled);
    match settled.kind {
        ResponseKind::Refusal | ResponseKind::Pending => log.note(
            "it was refused as a different request: safe, but a client that serializes a retry \
             again gets an error",
        ),
        ResponseKind::Success | ResponseKind::Inconclusive => {
            client.judge_retry(log, &operation, &first, &settled).await;
        }
    }
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_one_effect(effects);
    Ok(())
}

pub(super) async fn concurrent_duplicates(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    for round in 0..ROUNDS {
        race_duplicates(client, log, RequestVariant::default(), round == 0).await?;
        if log.failed() {
            return Ok(());
        }
    }
    if client.target.cases.slow.is_some() {
        race_duplicates(
            client,
            log,
            RequestVariant::case(client.target.cases.slow.as_ref()),
            true,
        )
        .await?;
    }
    Ok(())
}

async fn race_duplicates(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    variant: RequestVariant<'_>,
    log_sent: bool,
) -> Result<(), Stop> {
    let operation = client.operation();
    if log_sent {
        log.sent(format!(
            "{}, {AT_ONCE} times at once",
            client.describe_request(&operation, variant)
        ));
    }
    let baseline = client.effect_baseline(&operation, variant).await?;
    // Connected before, so that only the requests race.
    let opened = join_all((0..AT_ONCE).map(|_| client.connect())).await;
    let asked = opened
        .into_iter()
        .flatten()
        .map(|one| client.send_on(one, &operation, variant));
    let answers = join_all(asked).await;
    let successes: Vec<&Response> = answers.iter().filter_map(|a| client.success(a)).collect();
    tally(client, log, &answers);
    if let Some((first, rest)) = successes.split_first() {
        let what = "duplicates got different successes";
        // Execution and replay may differ in the replay header only.
        rest.iter()
            .any(|other| client.judge_difference(log, &operation, first, other, what));
    }
    let retry = client.retry_until_final(&operation, variant.retry()).await;
    log.observe_final("retry", &retry);
    match successes.first() {
        Some(first) => {
            client.judge_retry(log, &operation, first, &retry).await;
        }
        None => judge_without_success(log, &answers, &retry),
    }
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_at_most_one_effect(effects);
    if !successes.is_empty() || retry.success().is_some() {
        log.expect_one_effect(effects);
    }
    if effects.is_none() {
        judge_without_counter(client, log, &answers, &retry);
    }
    Ok(())
}

/// Logs the responses, and whether there was a race at all.
fn tally(client: &ProbeClient<'_>, log: &mut ProbeLog, answers: &[Result<Response, String>]) {
    let of = |kind| move |answer: &&Result<Response, String>| client.kind(answer) == kind;
    let successes = answers.iter().filter(of(ResponseKind::Success)).count();
    let pending = answers.iter().filter(of(ResponseKind::Pending)).count();
    let others = answers.len() - successes - pending;
    log.observe(format!(
        "{successes} succeeded, {pending} asked to retry later, {others} others"
    ));
    let other = |answer: &&Result<Response, String>| {
        matches!(
            client.kind(answer),
            ResponseKind::Refusal | ResponseKind::Inconclusive
        )
    };
    if let Some(other) = answers.iter().find(other) {
        log.note(format!("a duplicate got {}", describe(other)));
    }
    if answers.len() < AT_ONCE {
        let opened = answers.len();
        log.note(format!(
            "only {opened} of {AT_ONCE} connections could be opened at once"
        ));
    }
    if answers.iter().filter(|answer| is_own(answer)).count() < 2 {
        log.inconclusive(
            "fewer than two of them reached the API, so there was no race: raise the limits of \
             the proxy in front of it",
        );
    }
}

/// Judges a race without a success. If one may have been executed, a refusal of the retry passes.
fn judge_without_success(
    log: &mut ProbeLog,
    answers: &[Result<Response, String>],
    retry: &FinalResponse,
) {
    match retry.kind {
        ResponseKind::Success => {}
        ResponseKind::Pending | ResponseKind::Refusal if !answers.iter().any(is_doubtful) => log
            .fail(format!(
                "none succeeded, nor did a retry: {}",
                describe(&retry.answer)
            )),
        ResponseKind::Pending | ResponseKind::Refusal => {
            log.inconclusive("none succeeded, nor did a retry: there was no response to compare");
        }
        ResponseKind::Inconclusive => {
            mark_unjudged(log, "none succeeded, and the retry", &retry.answer);
        }
    }
}

/// Logs what responses alone do not show.
fn judge_without_counter(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    answers: &[Result<Response, String>],
    retry: &FinalResponse,
) {
    let unclear = if answers.iter().any(is_doubtful) {
        "a duplicate got no response that shows whether it was executed"
    } else {
        let successes = answers.iter().filter_map(|answer| client.success(answer));
        let unmarked = successes.filter(|answer| !answer.is_marked()).count();
        match retry.success() {
            _ if unmarked > 1 && !client.profile.responses_are_unique => {
                "several got the same response, but nothing shows that only one was executed"
            }
            Some(retry) if unmarked == 0 && !retry.is_marked() => {
                "only a retry succeeded, and nothing shows whether one was executed before"
            }
            Some(_) | None => return,
        }
    };
    log.inconclusive(format!("{unclear}: add --count-url or --count-command"));
}
