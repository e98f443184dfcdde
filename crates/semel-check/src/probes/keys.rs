//! Keys that are none, and no key at all.

use uuid::Uuid;

use crate::answers::{difference, tell};
use crate::caller::{Caller, Operation, Shape, line};
use crate::record::{Record, Stop};
use crate::target::Dialect;
use crate::wire::Answer;

/// The draft leaves the limit open; 255 is common, and a key of this length is over all of them
/// that are meant for keys.
const TOO_LONG: usize = 300;

pub(super) async fn missing_key(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let (one, two) = (
        Operation::with_lines(Vec::new()),
        Operation::with_lines(Vec::new()),
    );
    let shape = Shape::default();
    record.sent(format!(
        "{}, then another without a key",
        caller.told(&one, shape)
    ));
    let counting = caller.counting(&one).await?;
    let first = caller.ask(&one, shape).await;
    record.saw_answer("without a key", &first);
    let effects = caller.effects(&one, &counting, record).await?;
    match &first {
        Ok(answer) if answer.is_success() => {}
        Ok(answer) if answer.is_refusal() => {
            record.none(effects);
            if answer.status != 400 {
                record.note(format!(
                    "refused with {}, where the draft has 400",
                    answer.status
                ));
            }
            return Ok(());
        }
        Ok(_) | Err(_) => {
            record.none(effects);
            let seen = tell(&first);
            return Err(Stop::NotSeen(format!(
                "neither refused nor executed: {seen}"
            )));
        }
    }
    record.note("keys are optional here: a client that forgets its key is not protected");
    let counting = caller.counting(&two).await?;
    let second = caller.ask(&two, shape).await;
    record.saw_answer("another without a key", &second);
    let effects = caller.effects(&two, &counting, record).await?;
    if let (Ok(first), Ok(second)) = (&first, &second)
        && second.is_success()
    {
        let alike = difference(first, second).is_none() && caller.telling;
        if alike || second.is_marked() || effects == Some(0) {
            record.fail("a request without a key was given the answer to another");
        }
    }
    Ok(())
}

pub(super) async fn malformed_key(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    for (name, lines) in malformed(caller.dialect) {
        let operation = Operation::with_lines(lines);
        unprotected(caller, record, name, &operation).await?;
    }
    Ok(())
}

/// The header lines of keys that are none.
fn malformed(dialect: Dialect) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let key = || Uuid::new_v4().to_string();
    let with = |end: &[u8]| vec![[key().as_bytes(), end].concat()];
    let quoted = |end: &[u8]| vec![[b"\"", key().as_bytes(), end, b"\""].concat()];
    let two = vec![line(dialect, &key()), line(dialect, &key())];
    let mut malformed = vec![("an empty key", vec![Vec::new()]), ("two keys", two)];
    // Where keys are opaque, quotes are part of them.
    malformed.extend(match dialect {
        Dialect::Ietf => vec![
            ("an empty string", vec![b"\"\"".to_vec()]),
            ("blanks", vec![b"\"   \"".to_vec()]),
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
    let mut long = Uuid::new_v4().to_string();
    while long.len() < TOO_LONG {
        long.push('x');
    }
    let operation = Operation::with_lines(vec![line(caller.dialect, &long)]);
    let name = format!("a key of {TOO_LONG} characters");
    let Some(first) = unprotected(caller, record, &name, &operation).await? else {
        return Ok(());
    };
    // Taken: then all of it counts.
    long.pop();
    long.push('y');
    let mut other = operation.another();
    other.lines = vec![line(caller.dialect, &long)];
    let counting = caller.counting(&other).await?;
    let answer = caller.ask(&other, Shape::default()).await;
    record.saw_answer("another key, which differs at its end", &answer);
    let effects = caller.effects(&other, &counting, record).await?;
    match &answer {
        Ok(answer) if answer.is_success() => {
            let alike = caller.telling && difference(&first, answer).is_none();
            if alike || answer.is_marked() || effects == Some(0) {
                record.fail("two keys with the same beginning were taken for one");
            }
        }
        Ok(_) | Err(_) => record.fail(format!(
            "a long key was taken, and another with the same beginning was not: {}",
            tell(&answer)
        )),
    }
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
    let counting = caller.counting(operation).await?;
    let first = caller.ask(operation, shape).await;
    let second = caller.ask(operation, shape).await;
    record.saw(format!(
        "{name}: {} and {}",
        status(&first),
        status(&second)
    ));
    let effects = caller.effects_since(operation, &counting).await?;
    if let Some(effects @ 2..) = effects {
        record.fail(format!("{name}: ignored, and executed {effects} times"));
        return Ok(None);
    }
    let (Ok(first), Ok(second)) = (first, second) else {
        return Ok(None);
    };
    if first.is_success() && second.is_success() {
        if let Some(difference) = difference(&first, &second) {
            record.fail(format!("{name}: ignored, and answered anew: {difference}"));
        } else if effects.is_none() && !caller.telling && !second.is_marked() {
            record.blind(format!(
                "{name}: answered alike, and nobody counts what was executed"
            ));
        } else {
            record.note(format!("{name}: taken as it is, and protected by it"));
        }
        return Ok(Some(first));
    }
    if first.is_refusal() && second.is_refusal() && effects == Some(1) {
        record.fail(format!("{name}: refused, and executed all the same"));
    }
    Ok(None)
}

fn status(answer: &Result<Answer, String>) -> String {
    match answer {
        Ok(answer) if answer.is_marked() => format!("{} (replayed)", answer.status),
        Ok(answer) => answer.status.to_string(),
        Err(_) => "no answer".to_owned(),
    }
}
