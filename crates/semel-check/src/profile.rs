//! Measures what the probes need to know about a target: dialect, timing, and whether responses
//! distinguish executions.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::client::ProbeClient;
use crate::json;
use crate::operation::{Operation, RequestVariant, line};
use crate::response::{IDENTIFYING_HEADERS, describe};
use crate::response_kind::{self, ResponseKind};
use crate::secrets::hide;
use crate::target::{Case, Dialect, DialectChoice, Target};
use crate::wire::Response;
use crate::{Environment, Error};

/// Concurrent equal requests that must all get different responses. With five, timestamps in
/// seconds or milliseconds do not make all of them differ by chance.
const ALIKE: usize = 5;
/// How long a counter may take to show an effect: every count waits a multiple of its lag.
const COUNTER_PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two reads of the counter.
const LOOK: Duration = Duration::from_millis(50);

/// The duration of an operation.
#[derive(Clone, Copy, Default)]
pub(crate) struct Timing {
    /// From the request to its response.
    pub(crate) answered: Duration,
    /// From the response until the counter shows the effect.
    pub(crate) lag: Duration,
}

/// What the first requests revealed about the target.
#[derive(Clone, Copy)]
pub(crate) struct TargetProfile {
    pub(crate) dialect: Dialect,
    /// Whether two executions never get the same response: an identical response is then a replay,
    /// marked or not.
    pub(crate) responses_are_unique: bool,
    /// Whether a new operation gets a 202 with `Retry-After`.
    pub(crate) accepted: bool,
    pub(crate) usual: Timing,
    /// Timing of the long cases; `None` where they did not succeed.
    pub(crate) slow: Option<Timing>,
    pub(crate) linger: Option<Timing>,
}

impl TargetProfile {
    fn unknown(dialect: Dialect) -> Self {
        Self {
            dialect,
            responses_are_unique: false,
            accepted: false,
            usual: Timing::default(),
            slow: None,
            linger: None,
        }
    }
}

impl ProbeClient<'_> {
    /// How long such an operation takes, if known.
    pub(crate) fn timing(&self, variant: RequestVariant<'_>) -> Option<Timing> {
        let cases = &self.target.cases;
        match variant.case {
            None => Some(self.profile.usual),
            case if case == cases.slow.as_ref() => self.profile.slow,
            case if case == cases.linger.as_ref() => self.profile.linger,
            Some(_) => None,
        }
    }
}

/// Profiles the target with a few operations.
///
/// # Errors
/// If the target does not respond, refuses a first request, or the counter does not count.
pub(crate) async fn profile_target(
    target: &Target,
    environment: &dyn Environment,
) -> Result<TargetProfile, Error> {
    let client = |dialect| ProbeClient {
        target,
        environment,
        profile: TargetProfile::unknown(dialect),
    };
    let mut profile = match target.dialect {
        DialectChoice::Fixed(dialect) => send_first_request(&client(dialect)).await?.profile,
        DialectChoice::Auto => {
            detect_dialect(&client(Dialect::Ietf), &client(Dialect::Stripe)).await?
        }
    };
    let client = ProbeClient {
        target,
        environment,
        profile,
    };
    profile.responses_are_unique = check_unique_responses(&client).await;
    profile.slow = measure_case(&client, target.cases.slow.as_ref()).await;
    if target.disruptive {
        profile.linger = measure_case(&client, target.cases.linger.as_ref()).await;
    }
    Ok(profile)
}

/// A first request and its response.
struct FirstRequest {
    profile: TargetProfile,
    operation: Operation,
    answer: Response,
}

/// Sends a first request: it must succeed, and the counter must show its effect.
async fn send_first_request(client: &ProbeClient<'_>) -> Result<FirstRequest, Error> {
    let unreachable = |reason| Error::Unreachable {
        address: client.target.address.to_string(),
        reason,
    };
    client.connect().await.map_err(unreachable)?;
    let operation = client.operation();
    let before = read_counter(client, &operation).await?;
    let start = Instant::now();
    let answer = match client.send(&operation, RequestVariant::default()).await {
        Ok(answer) if answer.is_success() => answer,
        Ok(answer) => return Err(not_accepted(client.target, &describe(&Ok(answer)))),
        Err(reason) => return Err(unreachable(reason)),
    };
    let answered = start.elapsed();
    let accepted = response_kind::is_accepted(&answer) && !answer.is_marked();
    let timeout = client.target.operation_timeout;
    // An accepted operation is executed later.
    let patience = if accepted {
        timeout
    } else {
        timeout.min(COUNTER_PATIENCE)
    };
    let (counted, lag) = wait_for_effect(client, &operation, before, patience).await?;
    if counted.is_some_and(|counted| counted != 1) {
        return Err(Error::Counter(format!(
            "it counted {} effects for one successful request; make it count by {{reference}} or \
             {{key}}",
            counted.unwrap_or_default()
        )));
    }
    let profile = TargetProfile {
        accepted,
        usual: Timing { answered, lag },
        ..client.profile
    };
    Ok(FirstRequest {
        profile,
        operation,
        answer,
    })
}

fn not_accepted(target: &Target, seen: &str) -> Error {
    Error::NotAccepted {
        seen: crate::text::line(&hide(seen, target.secrets())),
    }
}

async fn read_counter(
    client: &ProbeClient<'_>,
    operation: &Operation,
) -> Result<Option<u64>, Error> {
    let failed = |reason: String| Error::Counter(hide(&reason, client.target.secrets()));
    client.count(operation).await.map_err(failed)
}

/// Waits until the counter shows an effect. Returns how many, and how long after the response.
async fn wait_for_effect(
    client: &ProbeClient<'_>,
    operation: &Operation,
    before: Option<u64>,
    patience: Duration,
) -> Result<(Option<u64>, Duration), Error> {
    let start = Instant::now();
    let mut lag = Duration::ZERO;
    loop {
        let now = read_counter(client, operation).await?;
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

/// Detects the dialect from the target's behaviour. Where keys are opaque, the target accepts quoted
/// keys as well, so accepting them is not enough.
async fn detect_dialect(
    quoting: &ProbeClient<'_>,
    plain: &ProbeClient<'_>,
) -> Result<TargetProfile, Error> {
    let quoted = match send_first_request(quoting).await {
        Err(gone @ Error::Unreachable { .. }) => return Err(gone),
        quoted => quoted,
    };
    match (quoted, send_first_request(plain).await) {
        (Ok(quoted), Ok(unquoted)) => {
            let is_stripe = are_opaque(quoting, &quoted, &unquoted).await?;
            Ok(if is_stripe { unquoted } else { quoted }.profile)
        }
        (Ok(begun), Err(_)) | (Err(_), Ok(begun)) => Ok(begun.profile),
        (Err(Error::NotAccepted { seen: one }), Err(Error::NotAccepted { seen: two })) => {
            let seen = format!("{one} with quotes around the key, and {two} without");
            Err(Error::NotAccepted { seen })
        }
        (Err(wrong), Err(_)) => Err(wrong),
    }
}

/// Whether keys are opaque, for a target that accepts both quoted and unquoted ones.
async fn are_opaque(
    client: &ProbeClient<'_>,
    quoted: &FirstRequest,
    bare: &FirstRequest,
) -> Result<bool, Error> {
    let mut client = ProbeClient {
        profile: quoted.profile,
        ..*client
    };
    client.profile.responses_are_unique =
        client.target.counter.is_none() && check_unique_responses(&client).await;
    let bare_again = is_replayed(&client, bare, Dialect::Stripe).await?;
    let crossed = is_replayed(&client, quoted, Dialect::Stripe).await?;
    Ok(match (crossed, bare_again) {
        // With and without quotes it is one key: quotes are not part of it.
        (Some(true), _) => false,
        // Two keys; unless the target ignores a key without quotes.
        (Some(false), Some(is_key)) => is_key,
        (Some(false) | None, _) => is_misuse_400(&client, &quoted.operation).await,
    })
}

/// Whether a retry whose key is written in this way gets the first response; `None` where that does
/// not show.
async fn is_replayed(
    client: &ProbeClient<'_>,
    first: &FirstRequest,
    written: Dialect,
) -> Result<Option<bool>, Error> {
    let mut again = first.operation.clone();
    let key = again.key.clone().unwrap_or_default();
    again.lines = vec![line(written, &key)];
    let lag = first.profile.usual.lag * 2;
    sleep(lag).await;
    let before = read_counter(client, &again).await?;
    let retry = client
        .retry_until_final(&again, RequestVariant::default())
        .await;
    let Some(answer) = retry.success() else {
        return Ok(None);
    };
    sleep(lag).await;
    let after = read_counter(client, &again).await?;
    if let Some((after, before)) = after.zip(before) {
        return Ok(Some(after == before));
    }
    if answer.is_marked() {
        return Ok(Some(true));
    }
    if without_echo(&again, &first.answer) != without_echo(&again, answer) {
        return Ok(Some(false));
    }
    Ok(client.profile.responses_are_unique.then_some(true))
}

/// Whether a different body under a key gets a 400, as at Stripe.
async fn is_misuse_400(client: &ProbeClient<'_>, operation: &Operation) -> bool {
    let given = client.target.other_body.as_ref();
    let given = given.map(|other| operation.fill(other));
    let other = given.or_else(|| json::other(&client.body(operation, RequestVariant::default())));
    let Some(other) = other else { return false };
    let answer = client.send(operation, RequestVariant::body(&other)).await;
    answer.is_ok_and(|answer| answer.status == 400)
}

/// Whether executions never get the same response. The requests are equal and concurrent, so that
/// neither the request nor a clock makes the difference.
async fn check_unique_responses(client: &ProbeClient<'_>) -> bool {
    let reference = client.operation().reference;
    let alike = || Operation {
        reference: reference.clone(),
        ..client.operation()
    };
    let operations: Vec<Operation> = (0..ALIKE).map(|_| alike()).collect();
    let asked = operations
        .iter()
        .map(|operation| client.send(operation, RequestVariant::default()));
    let answers = join_all(asked).await;
    let mut seen = Vec::new();
    for (operation, answer) in operations.iter().zip(&answers) {
        // The target may accept a reference only once: then this shows nothing.
        let Some(answer) = client.success(answer) else {
            return false;
        };
        let answer = without_echo(operation, answer);
        if seen.contains(&answer) {
            return false;
        }
        seen.push(answer);
    }
    true
}

/// A response without what it echoes from the request.
fn without_echo(operation: &Operation, answer: &Response) -> String {
    let own = IDENTIFYING_HEADERS.map(|name| answer.text_of(name).unwrap_or_default());
    let body = String::from_utf8_lossy(&answer.body);
    let key = operation.key.as_deref().unwrap_or_default();
    format!("{}\n{body}", own.join("\n"))
        .replace(&operation.reference, "")
        .replace(key, "")
}

/// Measures how long a case takes without a fault: after a disconnect it may run for as long.
async fn measure_case(client: &ProbeClient<'_>, case: Option<&Case>) -> Option<Timing> {
    let variant = RequestVariant::case(Some(case?));
    let operation = client.operation();
    client.wait_for_lag().await;
    let before = client.count(&operation).await.ok()?;
    let start = Instant::now();
    let answer = client.send(&operation, variant).await;
    let answered = start.elapsed();
    if client.kind(&answer) != ResponseKind::Success {
        return None;
    }
    let patience = client.target.operation_timeout;
    let (counted, lag) = wait_for_effect(client, &operation, before, patience)
        .await
        .ok()?;
    // The duration of an operation may hide the counter's lag.
    let lag = lag.max(client.profile.usual.lag);
    (counted != Some(0)).then_some(Timing { answered, lag })
}
