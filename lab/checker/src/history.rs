//! What a campaign writes down, one JSON object a line, while it happens.

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
    /// A request that reached the application.
    Execution(Execution),
    /// The status of an operation was asked for.
    Peek(Peek),
    /// An operator erased the answer of an operation.
    Erasure(Erasure),
    /// Something was broken on purpose.
    Fault(Fault),
    /// An operator's verdict on an operation whose outcome could not be found otherwise.
    Decision(Decision),
    /// What became of a message, when everything has been healed.
    Message(Message),
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
    /// Whether every operation that had ended was asked for again in the phase `heal`.
    #[serde(default)]
    pub all_replayed: bool,
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
    /// In the ledger's entry. A tenant has one operation of it; twins of other tenants may have
    /// the same, and each of them is to be executed once.
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
    /// How.
    #[serde(default)]
    pub transport: Transport,
    /// What was sent.
    pub sent: Sent,
    /// What the client may conclude from it alone.
    pub outcome: Outcome,
    /// The status, where there was an answer and all of it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The `code` of a problem, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Whether the answer said that it was a replay.
    #[serde(default)]
    pub replayed: bool,
    /// The answer's body, where all of it came, whatever it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The answer's header lines in their order, with names in lower case, without those that may
    /// differ from one answer to the next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How the call itself was spoilt, or why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a gateway was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// HTTP/1.1 without TLS.
    #[default]
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
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
    /// The outcome is not known from this call: no answer, a timeout, in progress, unknown.
    Indeterminate,
}

/// A request that reached the application, as the network in front of it saw. Only there is an
/// execution seen that leaves no charge behind, or whose charge the provider recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// Milliseconds since the run began.
    pub at_ms: u64,
    /// Whose operation it is.
    pub tenant: String,
    /// Its idempotency key.
    pub key: String,
    /// The operation's id in the store.
    pub id: String,
    /// Which attempt of the operation it is.
    pub attempt: u32,
}

/// The status of an operation was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peek {
    /// Milliseconds since the run began.
    pub at_ms: u64,
    /// The operation.
    pub op: u64,
    /// Whether its own tenant asked, who does so only after its end.
    pub own: bool,
    /// The status of the answer.
    pub status: u16,
}

/// An operator erased the answer of an operation, or tried to. Written after its last call before
/// that, and before its next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// The operation.
    pub op: u64,
    /// When the store said that it is erased, in milliseconds since the run began. Without it, it may
    /// or may not be.
    pub acknowledged_ms: Option<u64>,
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
    /// The [route](Operation::route) of the operation, where it is known.
    #[serde(default)]
    pub route: String,
}

/// An unfinished operation at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// The operation's id in the store.
    pub id: String,
    /// Its status there.
    pub status: String,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The id that all its deliveries have.
    pub id: String,
    /// Whether the transaction that published it was committed.
    pub is_committed: bool,
    /// How often the consumer got it.
    pub deliveries: u64,
    /// How often it had its effect.
    pub effects: u64,
}
