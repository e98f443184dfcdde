//! What a campaign writes down, one JSON object a line, while it happens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A line of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The first line: what run this is.
    Run(Run),
    /// Something a client wants done once. Written before its first call.
    Operation(Operation),
    /// A call that ended, however it ended.
    Call(Call),
    /// Something was broken on purpose.
    Fault(Fault),
    /// What an operator decided about an operation that nobody could find the truth of.
    Decision(Decision),
    /// An operation that is not finished in the store when everything has been healed.
    Leftover(Leftover),
}

/// What run this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Everything random in the schedule comes from it.
    pub seed: u64,
    /// Whether it was the short one.
    pub short: bool,
}

/// Something a client wants done once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its number in this history.
    pub op: u64,
    /// Whose it is. Tenants use each other's keys on purpose.
    pub tenant: String,
    /// The idempotency key.
    pub key: String,
    /// Unique to the operation, and in the ledger's entry.
    pub reference: String,
    /// In minor units.
    pub amount: i64,
    /// Which kind of application it goes to.
    pub route: String,
    /// Whether it is meant to be refused whatever happens: malformed, oversized, without a key.
    #[serde(default)]
    pub refusable: bool,
}

/// A call that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The operation.
    pub op: u64,
    /// Milliseconds since the run began.
    pub began_ms: u64,
    /// When it ended, likewise.
    pub ended_ms: u64,
    /// The phase of the campaign in which it began.
    pub phase: String,
    /// Which gateway was asked.
    pub gateway: String,
    /// What was sent.
    pub sent: Sent,
    /// What the client may conclude from it alone.
    pub outcome: Outcome,
    /// The status, where there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The `code` of a problem, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Whether the answer said that it was a replay.
    #[serde(default)]
    pub replayed: bool,
    /// The answer's body, where the outcome is [`Outcome::Ok`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The answer's headers that have to be the same on every replay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// How the call itself was spoilt, or why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sent {
    /// The operation's own request.
    Same,
    /// Its key with another amount: misuse, which must never be answered with a success.
    OtherBody,
    /// Something no server should take.
    Malformed,
}

/// What a client may conclude from one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A final answer about the operation: made or declined.
    Ok,
    /// Certainly nothing was executed by this call.
    Failed,
    /// Nobody can tell from this call: no answer, a timeout, in progress, unknown.
    Indeterminate,
}

/// Something was broken on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Milliseconds since the run began.
    pub at_ms: u64,
    /// The phase.
    pub phase: String,
    /// What was done, such as `kill` or `cut_after_commit`.
    pub name: String,
    /// To whom.
    pub target: String,
}

/// What an operator decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The operation's id in the store.
    pub id: String,
    /// `completed` or `not_executed`.
    pub verdict: String,
}

/// An unfinished operation at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// The operation's id in the store.
    pub id: String,
    /// Its status there.
    pub status: String,
}
