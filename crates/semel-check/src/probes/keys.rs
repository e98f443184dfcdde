//! Missing, malformed and oversized keys.

use uuid::Uuid;

use crate::client::ProbeClient;
use crate::judge::mark_unjudged;
use crate::operation::{Operation, RequestVariant, line};
use crate::probe_log::{ProbeLog, Stop};
use crate::response::{describe, difference, summarize};
use crate::response_kind::ResponseKind;
use crate::target::Dialect;
use crate::wire::Response;

/// The draft sets no limit; 255 is common, and this length exceeds all limits that are meant for
/// keys.
const TOO_LONG: usize = 300;

pub(super) async fn missing_key(client: &ProbeClient<'_>, log: &mut ProbeLog) -> Result<(), Stop> {
    let one = Operation::with_lines(Vec::new());
    let variant = RequestVariant::default();
    log.sent(format!(
        "{}, then another without a key",
        client.describe_request(&one, variant)
    ));
    let baseline = client.effect_baseline(&one, variant).await?;
    let first = client.send(&one, variant).await;
    log.observe_response("without a key", &first);
    let effects = client.effects(&one, &baseline, log).await?;
    match (client.kind(&first), &first) {
        (ResponseKind::Success, Ok(answer)) => {
            log.note("keys are optional: a client that forgets its key is not protected");
            log.expect_one_effect(effects);
            let name = "another request without a key";
            expect_separate(client, log, name, &one.another(), answer).await?;
        }
        (ResponseKind::Refusal, Ok(answer)) => {
            log.expect_no_effect(effects);
            if answer.status != 400 {
                let status = answer.status;
                log.note(format!("refused with {status}; the draft says 400"));
            }
        }
        (
            ResponseKind::Success
            | ResponseKind::Refusal
            | ResponseKind::Pending
            | ResponseKind::Inconclusive,
            _,
        ) => {
            let seen = describe(&first);
            return Err(Stop::NotSeen(format!(
                "neither refused nor a success: {seen}"
            )));
        }
    }
    Ok(())
}

/// Sends another operation under a key that differs, or without one. It must neither get the first
/// response nor be refused because of the first operation.
async fn expect_separate(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    name: &str,
    other: &Operation,
    first: &Response,
) -> Result<(), Stop> {
    if send_second(client, log, name, other, first).await? == Some(SecondOutcome::Refused) {
        log.fail(format!(
            "{name} was refused because of the one before it: the server treats them as one"
        ));
    }
    Ok(())
}

/// The outcome of another operation under the same key, or without a key.
#[derive(PartialEq)]
enum SecondOutcome {
    Executed,
    Refused,
}

/// Sends another operation. `None` where its outcome is already judged.
async fn send_second(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    name: &str,
    other: &Operation,
    first: &Response,
) -> Result<Option<SecondOutcome>, Stop> {
    let variant = RequestVariant::default();
    let baseline = client.effect_baseline(other, variant).await?;
    let answer = client.send(other, variant).await;
    log.observe_response(name, &answer);
    let effects = client.effects_after_lag(other, &baseline, log).await?;
    let answer = match (client.kind(&answer), answer) {
        (ResponseKind::Success, Ok(answer)) => answer,
        (ResponseKind::Refusal | ResponseKind::Pending, _) => {
            return Ok(Some(SecondOutcome::Refused));
        }
        (ResponseKind::Success | ResponseKind::Inconclusive, answer) => {
            mark_unjudged(log, name, &answer);
            return Ok(None);
        }
    };
    let alike = difference(first, &answer).is_none();
    if effects == Some(0) || answer.is_marked() || (alike && client.profile.responses_are_unique) {
        log.fail(format!(
            "{name} got the response to the one before it: the server treats them as one"
        ));
        return Ok(None);
    }
    if alike && effects.is_none() {
        log.inconclusive(format!(
            "{name} got the same response as the one before it, and effects are not counted: \
             give --count-url or --count-command"
        ));
        return Ok(None);
    }
    Ok(Some(SecondOutcome::Executed))
}

pub(super) async fn malformed_key(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    for (name, lines) in blank_keys(client.profile.dialect) {
        probe_shared_key(client, log, name, &Operation::with_lines(lines)).await?;
    }
    for (name, lines) in malformed_keys(client.profile.dialect) {
        probe_key_twice(client, log, name, &Operation::with_lines(lines)).await?;
    }
    Ok(())
}

type Lines = Vec<Vec<u8>>;

/// Header lines of keys that have the same value for every client.
fn blank_keys(dialect: Dialect) -> Vec<(&'static str, Lines)> {
    let mut blank = vec![("an empty key", vec![Vec::new()])];
    // In opaque keys, quotes are part of the key.
    if dialect == Dialect::Ietf {
        blank.push(("an empty string", vec![b"\"\"".to_vec()]));
        blank.push(("a blank string", vec![b"\"   \"".to_vec()]));
    }
    blank
}

/// Header lines of malformed keys.
fn malformed_keys(dialect: Dialect) -> Vec<(&'static str, Lines)> {
    let key = || Uuid::new_v4().to_string();
    let with = |end: &[u8]| vec![[key().as_bytes(), end].concat()];
    let quoted = |end: &[u8]| vec![[b"\"", key().as_bytes(), end, b"\""].concat()];
    let mut malformed = vec![(
        "two keys",
        vec![line(dialect, &key()), line(dialect, &key())],
    )];
    malformed.extend(match dialect {
        Dialect::Ietf => vec![
            (
                "an unclosed quote",
                vec![format!("\"{}", key()).into_bytes()],
            ),
            ("a byte that is not ASCII", quoted(b"\xe9")),
            ("a control character", quoted(b"\x01")),
        ],
        Dialect::Stripe => vec![
            (
                "two keys in one",
                vec![format!("{}, {}", key(), key()).into_bytes()],
            ),
            ("a byte that is not ASCII", with(b"\xe9")),
            ("a control character", with(b"\x01")),
        ],
    });
    malformed
}

pub(super) async fn oversized_key(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let dialect = client.profile.dialect;
    let mut key = Uuid::new_v4().to_string();
    while key.len() < TOO_LONG {
        key.push('x');
    }
    let operation = Operation::under(dialect, key.clone());
    let name = format!("a key of {TOO_LONG} characters");
    let Some(first) = probe_key_twice(client, log, &name, &operation).await? else {
        return Ok(());
    };
    // Accepted: then all of it must be significant.
    key.pop();
    key.push('y');
    let name = "a long key that differs at its end";
    expect_separate(client, log, name, &Operation::under(dialect, key), &first).await
}

/// Sends two operations under a key that any client may have used before. A refusal passes. If the
/// server accepts the key, it must refuse the second operation and keep the first response.
async fn probe_shared_key(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    name: &str,
    operation: &Operation,
) -> Result<(), Stop> {
    let variant = RequestVariant::default();
    log.sent(format!(
        "{name}, for two operations: {}",
        client.describe_request(operation, variant)
    ));
    let baseline = client.effect_baseline(operation, variant).await?;
    let first = client.send(operation, variant).await;
    log.observe(format!("{name}: {}", summarize(&first)));
    let effects = client.effects_after_lag(operation, &baseline, log).await?;
    let answer = match (client.kind(&first), &first) {
        (ResponseKind::Success, Ok(answer)) => answer,
        (ResponseKind::Refusal, _) => {
            log.expect_no_effect(effects);
            return Ok(());
        }
        (ResponseKind::Success | ResponseKind::Pending | ResponseKind::Inconclusive, _) => {
            mark_unjudged(log, name, &first);
            return Ok(());
        }
    };
    if effects == Some(0) || answer.is_marked() {
        log.fail(format!("{name} got the response of another operation"));
        return Ok(());
    }
    let (other, otherwise) = (operation.another(), format!("{name} for another operation"));
    let judged = send_second(client, log, &otherwise, &other, answer).await?;
    if judged.is_some() {
        retry_first(client, log, name, operation, answer).await?;
    }
    Ok(())
}

/// Retries the first operation under an accepted key: it must not be executed again.
async fn retry_first(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    name: &str,
    operation: &Operation,
    first: &Response,
) -> Result<(), Stop> {
    let baseline = client
        .effect_baseline(operation, RequestVariant::default())
        .await?;
    let retry = client
        .retry_until_final(operation, RequestVariant::default())
        .await;
    log.observe_final(&format!("{name}, again"), &retry);
    let effects = client.effects_after_lag(operation, &baseline, log).await?;
    if let Some(effects @ 1..) = effects {
        let times = effects + 1;
        log.fail(format!("{name}: ignored, and executed {times} times"));
        return Ok(());
    }
    client.judge_retry(log, operation, first, &retry).await;
    log.note(format!(
        "{name}: accepted as it is, and shared by all clients that send it"
    ));
    Ok(())
}

/// Sends the same request twice under an unusual key. A refusal passes; an accepted key must work
/// like any other. Returns the response if the key was accepted.
async fn probe_key_twice(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
    name: &str,
    operation: &Operation,
) -> Result<Option<Response>, Stop> {
    let variant = RequestVariant::default();
    log.sent(format!(
        "{name}, twice: {}",
        client.describe_request(operation, variant)
    ));
    let baseline = client.effect_baseline(operation, variant).await?;
    let first = client.send(operation, variant).await;
    let second = match client.kind(&first) {
        ResponseKind::Success => client.retry_until_final(operation, variant).await,
        // A refused request has no outcome to wait for.
        ResponseKind::Refusal | ResponseKind::Pending | ResponseKind::Inconclusive => {
            client.send_once(operation, variant).await
        }
    };
    log.observe(format!(
        "{name}: {} and {}",
        summarize(&first),
        summarize(&second.answer)
    ));
    let effects = client.effects_after_lag(operation, &baseline, log).await?;
    if let Some(effects @ 2..) = effects {
        log.fail(format!("{name}: ignored, and executed {effects} times"));
        return Ok(None);
    }
    match (client.kind(&first), first) {
        (ResponseKind::Success, Ok(first)) => {
            log.expect_one_effect(effects);
            client.judge_retry(log, operation, &first, &second).await;
            let taken = second.success().is_some();
            if taken && !log.failed() {
                log.note(format!(
                    "{name}: accepted as it is, and the retry was not executed"
                ));
            }
            return Ok(taken.then_some(first));
        }
        (ResponseKind::Refusal, _) if second.kind == ResponseKind::Refusal => {
            log.expect_no_effect(effects);
        }
        (ResponseKind::Refusal, _) => mark_unjudged(log, name, &second.answer),
        (ResponseKind::Success | ResponseKind::Pending | ResponseKind::Inconclusive, first) => {
            mark_unjudged(log, name, &first);
        }
    }
    Ok(None)
}
