//! What has to be known of a target before anything can be judged.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::answers::{OWN, tell};
use crate::caller::Caller;
use crate::json;
use crate::kind::{self, Kind};
use crate::operation::{Operation, Shape, line};
use crate::secrets::hide;
use crate::target::{Case, Chosen, Dialect, Target};
use crate::wire::Answer;
use crate::{Error, World};

/// So many are asked for the same at once, to see whether their answers differ: a clock of
/// seconds, or one of milliseconds by luck, does not make all of them different.
const ALIKE: usize = 5;
/// So long a counter may take to show an effect. Longer, and every count would have to wait that
/// long.
const COUNTER_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the counter.
const LOOK: Duration = Duration::from_millis(50);

/// How long an operation takes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pace {
    /// From the request to its answer.
    pub(crate) answered: Duration,
    /// From the answer until the counter shows the effect.
    pub(crate) lag: Duration,
}

/// What was learned.
#[derive(Clone, Copy)]
pub(crate) struct Learned {
    pub(crate) dialect: Dialect,
    /// Whether two executions are never answered alike: an answer that comes back byte for byte
    /// then is a replay, marked or not.
    pub(crate) telling: bool,
    /// Whether a new operation is answered with 202 and `Retry-After`.
    pub(crate) accepted: bool,
    pub(crate) usual: Pace,
    /// Of the cases that take long; none where they were not seen to succeed.
    pub(crate) slow: Option<Pace>,
    pub(crate) linger: Option<Pace>,
}

impl Learned {
    fn nothing(dialect: Dialect) -> Self {
        Self {
            dialect,
            telling: false,
            accepted: false,
            usual: Pace::default(),
            slow: None,
            linger: None,
        }
    }
}

impl Caller<'_> {
    /// How long such an operation takes, where that is known.
    pub(crate) fn pace(&self, shape: Shape<'_>) -> Option<Pace> {
        let cases = &self.target.cases;
        match shape.case {
            None => Some(self.learned.usual),
            case if case == cases.slow.as_ref() => self.learned.slow,
            case if case == cases.linger.as_ref() => self.learned.linger,
            Some(_) => None,
        }
    }
}

/// Learns what there is to learn, by a few operations.
///
/// # Errors
/// Where nothing answers, where no first request is taken, or where the counter does not count.
pub(crate) async fn learn(target: &Target, world: &dyn World) -> Result<Learned, Error> {
    let caller = |dialect| Caller {
        target,
        world,
        learned: Learned::nothing(dialect),
    };
    let mut learned = match target.dialect {
        Chosen::Fixed(dialect) => begin(&caller(dialect)).await?.learned,
        Chosen::Auto => either(&caller(Dialect::Ietf), &caller(Dialect::Stripe)).await?,
    };
    let caller = Caller {
        target,
        world,
        learned,
    };
    learned.telling = tells_apart(&caller).await;
    learned.slow = pace_of(&caller, target.cases.slow.as_ref()).await;
    if target.disruptive {
        learned.linger = pace_of(&caller, target.cases.linger.as_ref()).await;
    }
    Ok(learned)
}

/// What a first request came to.
struct Begun {
    learned: Learned,
    operation: Operation,
    answer: Answer,
}

/// A first request: whether it is taken, and whether the counter sees it.
async fn begin(caller: &Caller<'_>) -> Result<Begun, Error> {
    let unreachable = |reason| Error::Unreachable {
        address: caller.target.address.to_string(),
        reason,
    };
    caller.connect().await.map_err(unreachable)?;
    let operation = caller.operation();
    let before = read(caller, &operation).await?;
    let start = Instant::now();
    let answer = match caller.ask(&operation, Shape::default()).await {
        Ok(answer) if answer.is_success() => answer,
        Ok(answer) => return Err(not_accepted(caller.target, &tell(&Ok(answer)))),
        Err(reason) => return Err(unreachable(reason)),
    };
    let answered = start.elapsed();
    let accepted = kind::is_accepted(&answer) && !answer.is_marked();
    let timeout = caller.target.operation_timeout;
    // What was only accepted has yet to happen.
    let patience = if accepted {
        timeout
    } else {
        timeout.min(COUNTER_PATIENCE)
    };
    let (counted, lag) = shown(caller, &operation, before, patience).await?;
    if counted.is_some_and(|counted| counted != 1) {
        return Err(Error::Counter(format!(
            "a single request that succeeded counted as {}; does it count by {{reference}} or \
             {{key}}?",
            counted.unwrap_or_default()
        )));
    }
    let learned = Learned {
        accepted,
        usual: Pace { answered, lag },
        ..caller.learned
    };
    Ok(Begun {
        learned,
        operation,
        answer,
    })
}

fn not_accepted(target: &Target, seen: &str) -> Error {
    Error::NotAccepted {
        seen: crate::text::line(&hide(seen, target.secrets())),
    }
}

async fn read(caller: &Caller<'_>, operation: &Operation) -> Result<Option<u64>, Error> {
    let told = |reason: String| Error::Counter(hide(&reason, caller.target.secrets()));
    caller.count(operation).await.map_err(told)
}

/// Waits until the counter shows an effect: how many, and how long after the answer.
async fn shown(
    caller: &Caller<'_>,
    operation: &Operation,
    before: Option<u64>,
    patience: Duration,
) -> Result<(Option<u64>, Duration), Error> {
    let start = Instant::now();
    let mut lag = Duration::ZERO;
    loop {
        let now = read(caller, operation).await?;
        let counted = now
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        if counted != Some(0) || lag >= patience {
            return Ok((counted, lag));
        }
        sleep(LOOK).await;
        lag = start.elapsed();
    }
}

/// Which dialect it is, by what the target does. Where keys are opaque, quotes are a part of them
/// and taken as well, so that it is not enough that they are.
async fn either(quoting: &Caller<'_>, plain: &Caller<'_>) -> Result<Learned, Error> {
    let quoted = match begin(quoting).await {
        Err(gone @ Error::Unreachable { .. }) => return Err(gone),
        quoted => quoted,
    };
    match (quoted, begin(plain).await) {
        (Ok(quoted), Ok(unquoted)) => {
            let is_stripe = are_opaque(quoting, &quoted, &unquoted).await?;
            Ok(if is_stripe { unquoted } else { quoted }.learned)
        }
        (Ok(begun), Err(_)) | (Err(_), Ok(begun)) => Ok(begun.learned),
        (Err(Error::NotAccepted { seen: one }), Err(Error::NotAccepted { seen: two })) => {
            let seen = format!("{one} with quotes around the key, and {two} without");
            Err(Error::NotAccepted { seen })
        }
        (Err(wrong), Err(_)) => Err(wrong),
    }
}

/// Whether keys are opaque where both ways to write them are taken.
async fn are_opaque(caller: &Caller<'_>, quoted: &Begun, bare: &Begun) -> Result<bool, Error> {
    let mut caller = Caller {
        learned: quoted.learned,
        ..*caller
    };
    caller.learned.telling = caller.target.counter.is_none() && tells_apart(&caller).await;
    let bare_again = is_replayed(&caller, bare, Dialect::Stripe).await?;
    let crossed = is_replayed(&caller, quoted, Dialect::Stripe).await?;
    Ok(match (crossed, bare_again) {
        // With and without quotes it is one key: they are no part of it.
        (Some(true), _) => false,
        // Two keys; unless what has no quotes is taken for no key at all.
        (Some(false), Some(is_key)) => is_key,
        (Some(false) | None, _) => is_misuse_400(&caller, &quoted.operation).await,
    })
}

/// Whether an operation whose key is written in this way is given the first one's answer; none
/// where that does not show.
async fn is_replayed(
    caller: &Caller<'_>,
    first: &Begun,
    written: Dialect,
) -> Result<Option<bool>, Error> {
    let mut again = first.operation.clone();
    let key = again.key.clone().unwrap_or_default();
    again.lines = vec![line(written, &key)];
    let lag = first.learned.usual.lag * 2;
    sleep(lag).await;
    let before = read(caller, &again).await?;
    let retry = caller.settle(&again, Shape::default()).await;
    let Some(answer) = retry.success() else {
        return Ok(None);
    };
    sleep(lag).await;
    let after = read(caller, &again).await?;
    if let Some((after, before)) = after.zip(before) {
        return Ok(Some(after == before));
    }
    if answer.is_marked() {
        return Ok(Some(true));
    }
    if blank(&again, &first.answer) != blank(&again, answer) {
        return Ok(Some(false));
    }
    Ok(caller.learned.telling.then_some(true))
}

/// Whether another body under a key is answered as at Stripe.
async fn is_misuse_400(caller: &Caller<'_>, operation: &Operation) -> bool {
    let given = caller.target.other_body.as_ref();
    let given = given.map(|other| operation.fill(other));
    let other = given.or_else(|| json::other(&caller.body(operation, Shape::default())));
    let Some(other) = other else { return false };
    let answer = caller.ask(operation, Shape::body(&other)).await;
    answer.is_ok_and(|answer| answer.status == 400)
}

/// Whether executions are never answered alike. They are asked for the same at the same time, so
/// that neither the request nor a clock makes the difference.
async fn tells_apart(caller: &Caller<'_>) -> bool {
    let reference = caller.operation().reference;
    let alike = || Operation {
        reference: reference.clone(),
        ..caller.operation()
    };
    let operations: Vec<Operation> = (0..ALIKE).map(|_| alike()).collect();
    let asked = operations
        .iter()
        .map(|operation| caller.ask(operation, Shape::default()));
    let answers = join_all(asked).await;
    let mut said = Vec::new();
    for (operation, answer) in operations.iter().zip(&answers) {
        // Perhaps a reference is good for one operation only: then nothing is learned.
        let Some(answer) = caller.success(answer) else {
            return false;
        };
        let answer = blank(operation, answer);
        if said.contains(&answer) {
            return false;
        }
        said.push(answer);
    }
    true
}

/// What an answer says without what it repeats of the request.
fn blank(operation: &Operation, answer: &Answer) -> String {
    let own = OWN.map(|name| answer.text_of(name).unwrap_or_default());
    let body = String::from_utf8_lossy(&answer.body);
    let key = operation.key.as_deref().unwrap_or_default();
    format!("{}\n{body}", own.join("\n"))
        .replace(&operation.reference, "")
        .replace(key, "")
}

/// How long a case takes when nobody disturbs it: one that is cut off may go on for as long.
async fn pace_of(caller: &Caller<'_>, case: Option<&Case>) -> Option<Pace> {
    let shape = Shape::case(Some(case?));
    let operation = caller.operation();
    caller.until_quiet().await;
    let before = caller.count(&operation).await.ok()?;
    let start = Instant::now();
    let answer = caller.ask(&operation, shape).await;
    let answered = start.elapsed();
    if caller.kind(&answer) != Kind::Success {
        return None;
    }
    let patience = caller.target.operation_timeout;
    let (counted, lag) = shown(caller, &operation, before, patience).await.ok()?;
    // The work of an operation may hide how slow the counter is.
    let lag = lag.max(caller.learned.usual.lag);
    (counted != Some(0)).then_some(Pace { answered, lag })
}
