//! Keys that are none, and no key at all.

use uuid::Uuid;

use crate::answers::{brief, difference, tell};
use crate::caller::Caller;
use crate::judge::unjudged;
use crate::kind::Kind;
use crate::operation::{Operation, Shape, line};
use crate::record::{Record, Stop};
use crate::target::Dialect;
use crate::wire::Answer;

/// The draft leaves the limit open; 255 is common, and a key of this length is over all of them
/// that are meant for keys.
const TOO_LONG: usize = 300;

pub(super) async fn missing_key(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let one = Operation::with_lines(Vec::new());
    let shape = Shape::default();
    record.sent(format!(
        "{}, then another without a key",
        caller.told(&one, shape)
    ));
    let counting = caller.counting(&one, shape).await?;
    let first = caller.ask(&one, shape).await;
    record.saw_answer("without a key", &first);
    let effects = caller.effects(&one, &counting, record).await?;
    match (caller.kind(&first), &first) {
        (Kind::Success, Ok(answer)) => {
            record.note("keys are optional here: a client that forgets its key is not protected");
            record.exactly_one(effects);
            let name = "another request without a key";
            apart(caller, record, name, &one.another(), answer).await?;
        }
        (Kind::Refusal, Ok(answer)) => {
            record.none(effects);
            if answer.status != 400 {
                let status = answer.status;
                record.note(format!("refused with {status}, where the draft has 400"));
            }
        }
        (Kind::Success | Kind::Refusal | Kind::Pending | Kind::Silent, _) => {
            let seen = tell(&first);
            return Err(Stop::NotSeen(format!(
                "neither refused nor a success: {seen}"
            )));
        }
    }
    Ok(())
}

/// Another operation under what need not be the first one's key: it is neither given the first
/// one's answer nor refused because of it.
async fn apart(
    caller: &Caller<'_>,
    record: &mut Record,
    name: &str,
    other: &Operation,
    first: &Answer,
) -> Result<(), Stop> {
    if second(caller, record, name, other, first).await? == Some(Second::Refused) {
        record.fail(format!(
            "{name} was refused where the one before it succeeded: they are taken for one"
        ));
    }
    Ok(())
}

/// What became of another operation under the same key, or under none.
#[derive(PartialEq)]
enum Second {
    Executed,
    Refused,
}

/// Sends another operation. None where what became of it is judged already.
async fn second(
    caller: &Caller<'_>,
    record: &mut Record,
    name: &str,
    other: &Operation,
    first: &Answer,
) -> Result<Option<Second>, Stop> {
    let shape = Shape::default();
    let counting = caller.counting(other, shape).await?;
    let answer = caller.ask(other, shape).await;
    record.saw_answer(name, &answer);
    let effects = caller.effects_at_last(other, &counting, record).await?;
    let answer = match (caller.kind(&answer), answer) {
        (Kind::Success, Ok(answer)) => answer,
        (Kind::Refusal | Kind::Pending, _) => return Ok(Some(Second::Refused)),
        (Kind::Success | Kind::Silent, answer) => {
            unjudged(record, name, &answer);
            return Ok(None);
        }
    };
    let alike = difference(first, &answer).is_none();
    if effects == Some(0) || answer.is_marked() || (alike && caller.learned.telling) {
        record.fail(format!(
            "{name} was given the answer to the one before it: they are taken for one"
        ));
        return Ok(None);
    }
    if alike && effects.is_none() {
        record.blind(format!(
            "{name} was answered like the one before it, and nobody counts what was executed: \
             give --count-url or --count-command"
        ));
        return Ok(None);
    }
    Ok(Some(Second::Executed))
}

pub(super) async fn malformed_key(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    for (name, lines) in blank(caller.learned.dialect) {
        everybodys(caller, record, name, &Operation::with_lines(lines)).await?;
    }
    for (name, lines) in malformed(caller.learned.dialect) {
        unprotected(caller, record, name, &Operation::with_lines(lines)).await?;
    }
    Ok(())
}

type Lines = Vec<Vec<u8>>;

/// The header lines of keys that are the same for everybody.
fn blank(dialect: Dialect) -> Vec<(&'static str, Lines)> {
    let mut blank = vec![("an empty key", vec![Vec::new()])];
    // Where keys are opaque, quotes are part of them.
    if dialect == Dialect::Ietf {
        blank.push(("an empty string", vec![b"\"\"".to_vec()]));
        blank.push(("blanks", vec![b"\"   \"".to_vec()]));
    }
    blank
}

/// The header lines of keys that are none.
fn malformed(dialect: Dialect) -> Vec<(&'static str, Lines)> {
    let key = || Uuid::new_v4().to_string();
    let with = |end: &[u8]| vec![[key().as_bytes(), end].concat()];
    let quoted = |end: &[u8]| vec![[b"\"", key().as_bytes(), end, b"\""].concat()];
    let mut malformed = vec![(
        "two keys",
        vec![line(dialect, &key()), line(dialect, &key())],
    )];
    malformed.extend(match dialect {
        Dialect::Ietf => vec![
            ("an open quote", vec![format!("\"{}", key()).into_bytes()]),
            ("a byte that is no text", quoted(b"\xe9")),
            ("a control character", quoted(b"\x01")),
        ],
        Dialect::Stripe => vec![
            (
                "two keys in one",
                vec![format!("{}, {}", key(), key()).into_bytes()],
            ),
            ("a byte that is no text", with(b"\xe9")),
            ("a control character", with(b"\x01")),
        ],
    });
    malformed
}

pub(super) async fn oversized_key(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let dialect = caller.learned.dialect;
    let mut long = Uuid::new_v4().to_string();
    while long.len() < TOO_LONG {
        long.push('x');
    }
    let operation = Operation::under(dialect, long.clone());
    let name = format!("a key of {TOO_LONG} characters");
    let Some(first) = unprotected(caller, record, &name, &operation).await? else {
        return Ok(());
    };
    // Taken: then all of it counts.
    long.pop();
    long.push('y');
    let name = "a long key that differs at its end";
    apart(
        caller,
        record,
        name,
        &Operation::under(dialect, long),
        &first,
    )
    .await
}

/// Two operations under a key that anybody may have used before. Refused is good; taken, it must
/// be a key: another operation is refused, and the first one's answer is kept.
async fn everybodys(
    caller: &Caller<'_>,
    record: &mut Record,
    name: &str,
    operation: &Operation,
) -> Result<(), Stop> {
    let shape = Shape::default();
    record.sent(format!(
        "{name}, for two operations: {}",
        caller.told(operation, shape)
    ));
    let counting = caller.counting(operation, shape).await?;
    let first = caller.ask(operation, shape).await;
    record.saw(format!("{name}: {}", brief(&first)));
    let effects = caller.effects_at_last(operation, &counting, record).await?;
    let answer = match (caller.kind(&first), &first) {
        (Kind::Success, Ok(answer)) => answer,
        (Kind::Refusal, _) => {
            record.none(effects);
            return Ok(());
        }
        (Kind::Success | Kind::Pending | Kind::Silent, _) => {
            unjudged(record, name, &first);
            return Ok(());
        }
    };
    if effects == Some(0) || answer.is_marked() {
        record.fail(format!("{name} was given somebody else's answer"));
        return Ok(());
    }
    let (other, otherwise) = (operation.another(), format!("{name} for something else"));
    let judged = second(caller, record, &otherwise, &other, answer).await?;
    if judged.is_some() {
        again(caller, record, name, operation, answer).await?;
    }
    Ok(())
}

/// The first operation under a key that was taken, once more: it is protected by it.
async fn again(
    caller: &Caller<'_>,
    record: &mut Record,
    name: &str,
    operation: &Operation,
    first: &Answer,
) -> Result<(), Stop> {
    let counting = caller.counting(operation, Shape::default()).await?;
    let retry = caller.settle(operation, Shape::default()).await;
    record.saw_settled(&format!("{name}, again"), &retry);
    let effects = caller.effects_at_last(operation, &counting, record).await?;
    if let Some(effects @ 1..) = effects {
        let times = effects + 1;
        record.fail(format!("{name}: ignored, and executed {times} times"));
        return Ok(());
    }
    caller.judge_retry(record, operation, first, &retry).await;
    record.note(format!(
        "{name}: taken as it is, and shared by all who send it"
    ));
    Ok(())
}

/// The same request twice under a key that is hard to take. Refused is good; else it must be a
/// key like any other. Gives the answer where it was taken.
async fn unprotected(
    caller: &Caller<'_>,
    record: &mut Record,
    name: &str,
    operation: &Operation,
) -> Result<Option<Answer>, Stop> {
    let shape = Shape::default();
    record.sent(format!("{name}, twice: {}", caller.told(operation, shape)));
    let counting = caller.counting(operation, shape).await?;
    let first = caller.ask(operation, shape).await;
    let second = match caller.kind(&first) {
        Kind::Success => caller.settle(operation, shape).await,
        // Nobody waits for an outcome of what was not taken.
        Kind::Refusal | Kind::Pending | Kind::Silent => caller.once(operation, shape).await,
    };
    record.saw(format!(
        "{name}: {} and {}",
        brief(&first),
        brief(&second.answer)
    ));
    let effects = caller.effects_at_last(operation, &counting, record).await?;
    if let Some(effects @ 2..) = effects {
        record.fail(format!("{name}: ignored, and executed {effects} times"));
        return Ok(None);
    }
    match (caller.kind(&first), first) {
        (Kind::Success, Ok(first)) => {
            record.exactly_one(effects);
            caller.judge_retry(record, operation, &first, &second).await;
            let taken = second.success().is_some();
            if taken && !record.failed() {
                record.note(format!("{name}: taken as it is, and protected by it"));
            }
            return Ok(taken.then_some(first));
        }
        (Kind::Refusal, _) if second.kind == Kind::Refusal => record.none(effects),
        (Kind::Refusal, _) => unjudged(record, name, &second.answer),
        (Kind::Success | Kind::Pending | Kind::Silent, first) => unjudged(record, name, &first),
    }
    Ok(None)
}
