//! The probes: what each one checks, and why it matters.

use serde::Serialize;

/// When a probe runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Always: a few small operations.
    Safe,
    /// Only with `--disruptive`: it takes long, or breaks something.
    Disruptive,
}

/// The probes, in the order they run and are reported in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeId {
    /// A retry gets the first response.
    Replay,
    /// The same JSON with other member order and whitespace is the same request.
    SameJsonReordered,
    /// A key is reused with a different body.
    DifferentBody,
    /// The same, while the first request is in progress.
    DifferentBodyInFlight,
    /// Many duplicates at the same time.
    ConcurrentDuplicates,
    /// Two customers use the same key.
    TenantIsolation,
    /// No key.
    MissingKey,
    /// A key that cannot be parsed.
    MalformedKey,
    /// A key that is too long.
    OversizedKey,
    /// A business refusal is a final outcome.
    DeclinedIsFinal,
    /// The client disconnects before the response.
    DisconnectAfterEffect,
    /// A duplicate arrives while the first request outlives its lease.
    SlowOperation,
    /// A response that is too large to store.
    OversizedResponse,
    /// A 504 after the effect.
    TimeoutAfterEffect,
    /// The store fails between effect and completion.
    FailedCompletion,
    /// The process is killed and restarts.
    CrashAndRestart,
}

/// The texts of a probe in reports.
pub(crate) struct ProbeInfo {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    pub(crate) title: &'static str,
    pub(crate) why: &'static str,
    pub(crate) expected: &'static str,
}

impl ProbeId {
    /// All of them, in order.
    pub const ALL: [Self; 16] = [
        Self::Replay,
        Self::SameJsonReordered,
        Self::DifferentBody,
        Self::DifferentBodyInFlight,
        Self::ConcurrentDuplicates,
        Self::TenantIsolation,
        Self::MissingKey,
        Self::MalformedKey,
        Self::OversizedKey,
        Self::DeclinedIsFinal,
        Self::DisconnectAfterEffect,
        Self::SlowOperation,
        Self::OversizedResponse,
        Self::TimeoutAfterEffect,
        Self::FailedCompletion,
        Self::CrashAndRestart,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// When it runs.
    pub fn group(self) -> Group {
        self.info().group
    }

    pub(crate) fn info(self) -> &'static ProbeInfo {
        match self {
            Self::Replay => &REPLAY,
            Self::SameJsonReordered => &SAME_JSON_REORDERED,
            Self::DifferentBody => &DIFFERENT_BODY,
            Self::DifferentBodyInFlight => &DIFFERENT_BODY_IN_FLIGHT,
            Self::ConcurrentDuplicates => &CONCURRENT_DUPLICATES,
            Self::TenantIsolation => &TENANT_ISOLATION,
            Self::MissingKey => &MISSING_KEY,
            Self::MalformedKey => &MALFORMED_KEY,
            Self::OversizedKey => &OVERSIZED_KEY,
            Self::DeclinedIsFinal => &DECLINED_IS_FINAL,
            Self::DisconnectAfterEffect => &DISCONNECT_AFTER_EFFECT,
            Self::SlowOperation => &SLOW_OPERATION,
            Self::OversizedResponse => &OVERSIZED_RESPONSE,
            Self::TimeoutAfterEffect => &TIMEOUT_AFTER_EFFECT,
            Self::FailedCompletion => &FAILED_COMPLETION,
            Self::CrashAndRestart => &CRASH_AND_RESTART,
        }
    }
}

const REPLAY: ProbeInfo = ProbeInfo {
    name: "replay",
    group: Group::Safe,
    title: "A retry gets the first response and is not executed again",
    why: "A client that lost the response can only retry. If the server executes the retry, \
        the customer pays twice; if it responds differently, the client loses the id of the \
        first payment.",
    expected: "the same status, headers and body, byte for byte; one effect",
};

const SAME_JSON_REORDERED: ProbeInfo = ProbeInfo {
    name: "same_json_reordered",
    group: Group::Safe,
    title: "The same JSON in another member order is not executed again",
    why: "A client that serializes a retry again may write the members in another order. If \
        the server executes it, the customer pays twice; if it refuses it, a valid retry \
        fails.",
    expected: "the first response again, or a refusal; one effect",
};

const DIFFERENT_BODY: ProbeInfo = ProbeInfo {
    name: "different_body",
    group: Group::Safe,
    title: "A key that is reused with a different body is refused",
    why: "A client that reuses a key by mistake needs an error. If it gets the first response, \
        it believes that its second payment was made; if the server executes the request, \
        the key protects nothing.",
    expected: "a refusal (422 in the IETF draft, 400 at Stripe), no effect, and the first response \
        for every later retry of the first body",
};

const DIFFERENT_BODY_IN_FLIGHT: ProbeInfo = ProbeInfo {
    name: "different_body_in_flight",
    group: Group::Safe,
    title: "A different body under a key that is in progress is refused",
    why: "Two requests race for one key. The second one must neither be executed nor get the \
        response to the first.",
    expected: "one success, one refusal and one effect",
};

const CONCURRENT_DUPLICATES: ProbeInfo = ProbeInfo {
    name: "concurrent_duplicates",
    group: Group::Safe,
    title: "Of many concurrent duplicates, one is executed",
    why: "Clients, proxies and queues retry while the first attempt still runs. A server that \
        looks a key up, does the work and stores the key afterwards executes every \
        duplicate.",
    expected: "one effect; every success is the same response; the server asks the others to retry \
        later",
};

const TENANT_ISOLATION: ProbeInfo = ProbeInfo {
    name: "tenant_isolation",
    group: Group::Safe,
    title: "Two customers can use the same key independently",
    why: "Clients choose keys, and two customers may choose the same one. If the server's key \
        lookup leaves out the customer, one customer gets the other's payment or learns that \
        it exists.",
    expected: "the second customer's request is executed separately",
};

const MISSING_KEY: ProbeInfo = ProbeInfo {
    name: "missing_key",
    group: Group::Safe,
    title: "Requests without a key are refused, or executed separately",
    why: "Two requests without a key are two payments. If the server treats them as if they \
        shared an empty key, the second one is lost.",
    expected: "a refusal and no effect where keys are required; otherwise one execution for each \
        request",
};

const MALFORMED_KEY: ProbeInfo = ProbeInfo {
    name: "malformed_key",
    group: Group::Safe,
    title: "A malformed key is refused, never ignored",
    why: "A client that sends a key relies on its protection. If the server treats a key that \
        it cannot parse as no key, every retry is a new payment.",
    expected: "a refusal and no effect; or the key is accepted as it is, with one effect for two \
        requests",
};

const OVERSIZED_KEY: ProbeInfo = ProbeInfo {
    name: "oversized_key",
    group: Group::Safe,
    title: "A key that is too long is refused, never ignored or truncated",
    why: "If the server ignores the key, every retry is a new payment. If it truncates the \
        key, two keys with the same prefix become one, and a customer gets another \
        operation's response.",
    expected: "a refusal and no effect; or the whole key is accepted, with one effect for two \
        requests",
};

const DECLINED_IS_FINAL: ProbeInfo = ProbeInfo {
    name: "declined_is_final",
    group: Group::Disruptive,
    title: "A declined operation stays declined under its key",
    why: "The customer saw the payment declined and may have paid in another way. If a retry \
        under the same key charges after all, the customer pays twice.",
    expected: "the same refusal again, and no additional effect",
};

const DISCONNECT_AFTER_EFFECT: ProbeInfo = ProbeInfo {
    name: "disconnect_after_effect",
    group: Group::Disruptive,
    title: "A retry after a disconnect does not cause a second effect",
    why: "Mobile networks drop connections between the charge and its response. Many servers \
        cancel the work of a client that disconnected, and forget that the card was charged.",
    expected: "at most one effect; the retry gets the outcome, or a refusal",
};

const SLOW_OPERATION: ProbeInfo = ProbeInfo {
    name: "slow_operation",
    group: Group::Disruptive,
    title: "A duplicate is not executed while the first request still runs",
    why: "A lock with a time limit expires while a slow provider still works. The server then \
        accepts a retry, and both attempts charge.",
    expected: "one effect; the server asks duplicates to retry later, and then returns the first \
        response",
};

const OVERSIZED_RESPONSE: ProbeInfo = ProbeInfo {
    name: "oversized_response",
    group: Group::Disruptive,
    title: "A request whose response is too large to store is not executed again",
    why: "The work is done when the server finds that the response is too large. If it forgets \
        the key, the retry is a second payment; if it truncates the response, the retry gets \
        a response that is wrong.",
    expected: "the first client gets the whole response; a retry gets the same bytes or a refusal; \
        one effect",
};

const TIMEOUT_AFTER_EFFECT: ProbeInfo = ProbeInfo {
    name: "timeout_after_effect",
    group: Group::Disruptive,
    title: "A timeout after the effect is not treated as a failure",
    why: "A 504 means that the outcome is unknown. If the server treats it as \"nothing \
        happened\", the retry charges a second time.",
    expected: "at most one effect; the retry gets the outcome, or a refusal",
};

const FAILED_COMPLETION: ProbeInfo = ProbeInfo {
    name: "failed_completion",
    group: Group::Disruptive,
    title: "An effect that could not be recorded is not repeated",
    why: "The key store fails after the charge and before the charge is recorded. A server \
        that then frees the key charges a second time.",
    expected: "at most one effect; the retry gets the outcome, or a refusal",
};

const CRASH_AND_RESTART: ProbeInfo = ProbeInfo {
    name: "crash_and_restart",
    group: Group::Disruptive,
    title: "A crash neither loses a response nor repeats an effect",
    why: "A process can die at any moment, also during the charge. Keys in memory are lost \
        then, and every client retries.",
    expected: "a request that was answered before the crash gets the same response; one that was in \
        progress has at most one effect",
};
