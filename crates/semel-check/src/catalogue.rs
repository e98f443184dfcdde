//! The probes: what each is about, and why anybody should care.

use serde::Serialize;

/// When a probe runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Always: a few small operations.
    Safe,
    /// Where it is asked for: it takes long, or breaks something.
    Disruptive,
}

/// The probes, in the order they run and are reported in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Id {
    /// A retry is given the first answer.
    Replay,
    /// Order and blanks do not make another request.
    SameJsonReordered,
    /// A key with another body.
    DifferentBody,
    /// The same, while the first is under way.
    DifferentBodyInFlight,
    /// Many at once.
    ConcurrentDuplicates,
    /// Another customer with the same key.
    TenantIsolation,
    /// No key.
    MissingKey,
    /// A key that is none.
    MalformedKey,
    /// A key that is too long.
    OversizedKey,
    /// A refusal of the business is an outcome.
    DeclinedIsFinal,
    /// The client goes away before the answer.
    DisconnectAfterEffect,
    /// A duplicate while the first takes longer than a lease.
    SlowOperation,
    /// An answer that is too large to store.
    OversizedResponse,
    /// 504 after the effect.
    TimeoutAfterEffect,
    /// The store fails between effect and completion.
    FailedCompletion,
    /// The process dies and comes back.
    CrashAndRestart,
}

/// What is said of a probe.
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    pub(crate) title: &'static str,
    pub(crate) why: &'static str,
    pub(crate) expected: &'static str,
}

impl Id {
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

    /// As reports have it.
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// When it runs.
    pub fn group(self) -> Group {
        self.about().group
    }

    pub(crate) fn about(self) -> &'static About {
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

const REPLAY: About = About {
    name: "replay",
    group: Group::Safe,
    title: "A retry is given the first answer, and nothing happens again",
    why: "A client whose answer was lost can only ask again. Executed, it is a second \
        payment; answered differently, the client loses the id of the first.",
    expected: "the same status, headers and body, byte for byte; one effect",
};

const SAME_JSON_REORDERED: About = About {
    name: "same_json_reordered",
    group: Group::Safe,
    title: "The same JSON in another order is not executed again",
    why: "Clients that serialise a retry anew may write its members in another order. \
        Executed, the customer pays twice; refused, an honest retry fails.",
    expected: "the first answer again, or a refusal; one effect",
};

const DIFFERENT_BODY: About = About {
    name: "different_body",
    group: Group::Safe,
    title: "A key that comes back with another body is refused",
    why: "A client that reuses a key by mistake must be told. Given the first answer, it \
        believes that its second payment was made; executed, the key protects nothing.",
    expected: "a refusal (422 in the draft, 400 at Stripe), no effect, and the first answer for \
        the first body ever after",
};

const DIFFERENT_BODY_IN_FLIGHT: About = About {
    name: "different_body_in_flight",
    group: Group::Safe,
    title: "Another body under a key that is under way is refused",
    why: "Two requests race for one key. Whichever comes second must neither be executed \
        nor be given the answer to the other.",
    expected: "one success and one refusal, and one effect",
};

const CONCURRENT_DUPLICATES: About = About {
    name: "concurrent_duplicates",
    group: Group::Safe,
    title: "Of many duplicates at once, one is executed",
    why: "Clients, proxies and queues retry while the first attempt still runs. Who looks a \
        key up, works, and stores it afterwards executes every one of them.",
    expected: "one effect; every success is the same answer; the others are told to come back",
};

const TENANT_ISOLATION: About = About {
    name: "tenant_isolation",
    group: Group::Safe,
    title: "One customer's key says nothing about another's",
    why: "Keys are chosen by clients, and two may choose the same. Without the customer in \
        the identity, one is given the other's payment, or learns that it exists.",
    expected: "the second customer's request is executed as its own, whatever the first one's \
        key was",
};

const MISSING_KEY: About = About {
    name: "missing_key",
    group: Group::Safe,
    title: "Requests without a key are refused, or are each on their own",
    why: "Two requests without a key are two payments. Answered alike, as if they shared an \
        empty key, the second is lost.",
    expected: "a refusal and no effect where keys are required; else an execution for each",
};

const MALFORMED_KEY: About = About {
    name: "malformed_key",
    group: Group::Safe,
    title: "A malformed key is refused, never ignored",
    why: "A client that sends a key believes that it is protected. Where a key that cannot \
        be read is treated as none, every retry is a new payment.",
    expected: "a refusal and no effect; or the key taken as it is, and one effect for two \
        requests",
};

const OVERSIZED_KEY: About = About {
    name: "oversized_key",
    group: Group::Safe,
    title: "A key that is too long is refused, never ignored or cut",
    why: "Ignored, every retry is a new payment. Cut, two keys with the same beginning are \
        one, and a customer is given somebody else's answer.",
    expected: "a refusal and no effect; or the whole key taken, and one effect for two requests",
};

const DECLINED_IS_FINAL: About = About {
    name: "declined_is_final",
    group: Group::Disruptive,
    title: "A declined operation stays declined under its key",
    why: "The customer was told that the payment was declined, and may have paid otherwise. \
        A retry under the same key that charges after all takes the money twice.",
    expected: "the same refusal again, and no effect that was not there before",
};

const DISCONNECT_AFTER_EFFECT: About = About {
    name: "disconnect_after_effect",
    group: Group::Disruptive,
    title: "A client that goes away does not make its retry a second effect",
    why: "Mobile networks cut connections between the charge and its answer. Many servers \
        drop the work of a client that is gone, and forget that the card was charged.",
    expected: "at most one effect; the retry is given its answer, or is refused",
};

const SLOW_OPERATION: About = About {
    name: "slow_operation",
    group: Group::Disruptive,
    title: "A duplicate does not overtake an operation that takes long",
    why: "A lock with a time limit ends while a slow provider still works. Whoever retries \
        then is let in, and both charge.",
    expected: "one effect; duplicates are told to come back, and then given the first answer",
};

const OVERSIZED_RESPONSE: About = About {
    name: "oversized_response",
    group: Group::Disruptive,
    title: "An answer that is too large to store is not executed again",
    why: "The work is done when the answer turns out too large. Forgotten, the retry is a \
        second payment; cut, it is an answer that nobody ever gave.",
    expected: "the first caller gets all of it; a retry gets the same bytes or a refusal; one \
        effect",
};

const TIMEOUT_AFTER_EFFECT: About = About {
    name: "timeout_after_effect",
    group: Group::Disruptive,
    title: "A timeout after the effect is not taken for a failure",
    why: "A 504 says that nobody knows. Treated as \"nothing happened\", the retry charges \
        a second time.",
    expected: "at most one effect; the retry is given the outcome, or is refused",
};

const FAILED_COMPLETION: About = About {
    name: "failed_completion",
    group: Group::Disruptive,
    title: "An effect whose recording failed is not repeated",
    why: "The store of the keys fails after the charge and before it is written down. Who \
        then frees the key charges a second time.",
    expected: "at most one effect; the retry is given the outcome, or is refused",
};

const CRASH_AND_RESTART: About = About {
    name: "crash_and_restart",
    group: Group::Disruptive,
    title: "A crash neither forgets an answer nor repeats an effect",
    why: "Processes die at any moment, during the charge, too. Keys in memory are gone \
        then, and every client retries.",
    expected: "what was answered before is answered the same; what was under way has at most \
        one effect",
};
