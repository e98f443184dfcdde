//! The table of refusals: why the layer answers a request instead of the application.

/// The fixed parts of a refusal. The code is stable; each has a page in the documentation.
#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) code: &'static str,
    pub(crate) title: &'static str,
    pub(crate) status: u16,
    pub(crate) stripe_status: u16,
    pub(crate) stripe_type: &'static str,
    /// Stripe's own code, where its clients know one.
    pub(crate) stripe_code: &'static str,
    /// `Stripe-Should-Retry`: without it the SDKs retry every 409 and 5xx at once.
    pub(crate) stripe_should_retry: Option<&'static str>,
    /// Whether the same request with the same key may be sent again.
    pub(crate) retryable: bool,
    /// Whether there is a `Retry-After`.
    pub(crate) retry_after: bool,
    /// Whether there is a `Location` with the operation's status.
    pub(crate) status_link: bool,
    /// For the developer of the client.
    pub(crate) detail: &'static str,
}

const INVALID: &str = "invalid_request_error";
const API: &str = "api_error";

/// What most refusals of a request have in common: it is wrong, and stays so.
const BAD_REQUEST: Reason = Reason {
    code: "",
    title: "",
    status: 400,
    stripe_status: 400,
    stripe_type: INVALID,
    stripe_code: "",
    stripe_should_retry: None,
    retryable: false,
    retry_after: false,
    status_link: false,
    detail: "",
};

/// What refusals have in common that another try may not meet.
const TRY_LATER: Reason = Reason {
    status: 503,
    stripe_status: 503,
    stripe_type: API,
    retryable: true,
    retry_after: true,
    ..BAD_REQUEST
};

/// There is no key, and the route needs one.
pub(crate) static KEY_MISSING: Reason = Reason {
    code: "idempotency_key_missing",
    title: "Idempotency key missing",
    stripe_code: "idempotency_key_missing",
    detail: "This operation needs an idempotency key. Send a new random value, such as a UUID, and the same one on every retry.",
    ..BAD_REQUEST
};

/// The key cannot be read.
pub(crate) static KEY_MALFORMED: Reason = Reason {
    code: "idempotency_key_malformed",
    title: "Idempotency key malformed",
    stripe_code: "idempotency_key_malformed",
    detail: "The idempotency key cannot be read.",
    ..BAD_REQUEST
};

/// Same key, other fingerprint.
pub(crate) static KEY_REUSED: Reason = Reason {
    code: "idempotency_key_reused",
    title: "Idempotency key used for another request",
    status: 422,
    // The SDKs retry 409 and take 422 for something else.
    stripe_status: 400,
    stripe_type: "idempotency_error",
    stripe_code: "idempotency_key_reused",
    detail: "This key was used for a request with other parameters. Use a new key for a new operation; a retry sends exactly what was sent first.",
    ..BAD_REQUEST
};

/// Another attempt is executing.
pub(crate) static IN_PROGRESS: Reason = Reason {
    code: "idempotency_key_in_progress",
    title: "Request in progress",
    status: 409,
    stripe_status: 409,
    stripe_type: INVALID,
    stripe_code: "idempotency_key_in_use",
    stripe_should_retry: Some("true"),
    retryable: true,
    retry_after: true,
    status_link: false,
    detail: "A request with this key is being executed. Wait, and retry with the same key.",
};

/// A retry of an operation with an unknown outcome.
pub(crate) static OUTCOME_UNKNOWN: Reason = Reason {
    code: "idempotency_outcome_unknown",
    title: "Outcome not known yet",
    status: 409,
    stripe_status: 409,
    stripe_type: API,
    stripe_code: "idempotency_outcome_unknown",
    // An SDK retries within seconds; reconciling takes longer.
    stripe_should_retry: Some("false"),
    retryable: true,
    retry_after: true,
    status_link: true,
    detail: "The operation may or may not have taken effect. It is not executed again until the outcome is known. Retry later with the same key, and never with a new one.",
};

/// As the detail of [`OUTCOME_UNKNOWN`], where the route has a reconciler.
pub(crate) const RECONCILED_DETAIL: &str = "The operation may or may not have taken effect. It is being reconciled, and is not executed again until the outcome is known. Retry later with the same key, and never with a new one.";

/// A retry of an operation that was dead-lettered.
pub(crate) static DEAD_LETTERED: Reason = Reason {
    code: "idempotency_outcome_unknown",
    title: "Outcome not known: an operator decides",
    status: 409,
    stripe_status: 409,
    stripe_type: API,
    stripe_code: "idempotency_outcome_unknown",
    stripe_should_retry: Some("false"),
    retryable: true,
    retry_after: true,
    status_link: true,
    detail: "The operation may or may not have taken effect, and no lookup could tell. An operator decides how it ended; it is not executed again before that. Retry much later with the same key, and never with a new one.",
};

/// The first caller of an operation whose outcome just became unknown.
pub(crate) static OUTCOME_BROKEN: Reason = Reason {
    code: "idempotency_outcome_unknown",
    title: "Outcome not known yet",
    status: 504,
    stripe_status: 504,
    stripe_type: API,
    stripe_code: "idempotency_outcome_unknown",
    stripe_should_retry: Some("false"),
    retryable: true,
    retry_after: true,
    status_link: true,
    detail: "No complete answer came, so the operation may or may not have taken effect. It is not executed again until the outcome is known. Retry later with the same key, and never with a new one.",
};

/// The replay window is over.
pub(crate) static EXPIRED: Reason = Reason {
    code: "idempotency_key_expired",
    title: "Idempotency key expired",
    status: 410,
    stripe_status: 400,
    stripe_type: INVALID,
    stripe_code: "idempotency_key_expired",
    stripe_should_retry: None,
    retryable: false,
    retry_after: false,
    status_link: false,
    detail: "The operation was executed too long ago for its answer to be repeated, and it is not executed again. Look up its result before you send a new key.",
};

/// The body is no longer stored, or never was.
pub(crate) static NOT_STORED: Reason = Reason {
    code: "idempotency_response_not_stored",
    title: "Answer no longer stored",
    status: 410,
    stripe_status: 400,
    stripe_type: INVALID,
    stripe_code: "idempotency_response_not_stored",
    stripe_should_retry: None,
    retryable: false,
    retry_after: false,
    status_link: false,
    detail: "The operation was executed, and its answer is not stored. It is not executed again. Look up its result.",
};

/// The store did not answer, so nothing was executed.
pub(crate) static STORE_UNAVAILABLE: Reason = Reason {
    code: "idempotency_store_unavailable",
    title: "Not executed: the store is unavailable",
    stripe_code: "idempotency_store_unavailable",
    detail: "Nothing was executed, because it could not be recorded. Retry with the same key.",
    ..TRY_LATER
};

/// The layer's contracts were refused: see [`crate::contracts`].
pub(crate) static CONTRACT_CHANGED: Reason = Reason {
    code: "idempotency_contract_changed",
    title: "Not executed: the server's configuration was refused",
    stripe_code: "idempotency_contract_changed",
    detail: "Nothing was executed. The server was started with a configuration under which it would not recognise earlier requests; its operator has to correct that. Retry later with the same key.",
    ..TRY_LATER
};

/// The region that is the key's home did not answer, or not completely.
pub(crate) static HOME_UNAVAILABLE: Reason = Reason {
    code: "idempotency_home_unavailable",
    stripe_code: "idempotency_home_unavailable",
    title: "The region of this key does not answer",
    detail: "The record of this key is in another region, which does not answer. The operation may or may not have taken effect there; it is not executed here. Retry with the same key.",
    ..TRY_LATER
};

/// The regions do not agree about what decides where a key is executed.
pub(crate) static REGION_MISMATCH: Reason = Reason {
    code: "idempotency_region_mismatch",
    stripe_code: "idempotency_region_mismatch",
    title: "Not executed: the regions do not agree",
    detail: "Nothing was executed: the regions of this service do not agree about the home of this key. Retry with the same key.",
    ..TRY_LATER
};

/// It was executed, and the store does not answer the final write.
pub(crate) static OUTCOME_PENDING: Reason = Reason {
    code: "idempotency_outcome_pending",
    title: "Executed, but not recorded yet",
    stripe_code: "idempotency_outcome_pending",
    detail: "The operation was executed, and its outcome is still being recorded. Retry with the same key to be given it.",
    ..TRY_LATER
};

/// The application did not answer whether, or with what, a retry may be answered.
pub(crate) static REPLAY_UNAVAILABLE: Reason = Reason {
    code: "idempotency_replay_unavailable",
    title: "Executed, but its answer is not available now",
    stripe_code: "idempotency_replay_unavailable",
    detail: "The operation was executed, and is not executed again. Its answer cannot be fetched at the moment. Retry with the same key to be given it.",
    ..TRY_LATER
};

/// The handler reported that nothing happened, without a response of its own.
pub(crate) static NOT_EXECUTED: Reason = Reason {
    code: "operation_not_executed",
    title: "Not executed",
    stripe_code: "operation_not_executed",
    detail: "Nothing was executed. Retry with the same key.",
    ..TRY_LATER
};

/// The bodies of all requests together are over the limit.
pub(crate) static OVERLOADED: Reason = Reason {
    code: "server_overloaded",
    title: "Not executed: too many requests at once",
    stripe_code: "server_overloaded",
    detail: "Nothing was executed by this request: the server holds as many requests and responses as it may. Retry with the same key.",
    ..TRY_LATER
};

/// The body is over the route's limit.
pub(crate) static REQUEST_TOO_LARGE: Reason = Reason {
    code: "request_too_large",
    title: "Request too large",
    status: 413,
    stripe_status: 413,
    stripe_type: INVALID,
    stripe_code: "request_too_large",
    stripe_should_retry: None,
    retryable: false,
    retry_after: false,
    status_link: false,
    detail: "The request's body is larger than this operation takes. Nothing was executed.",
};

/// The body broke off.
pub(crate) static REQUEST_INCOMPLETE: Reason = Reason {
    code: "request_incomplete",
    title: "Request incomplete",
    status: 400,
    stripe_status: 400,
    stripe_type: INVALID,
    stripe_code: "request_incomplete",
    stripe_should_retry: None,
    retryable: true,
    retry_after: false,
    status_link: false,
    detail: "The request's body ended early. Nothing was executed.",
};

/// The body is not a command that the route takes.
pub(crate) static REQUEST_INVALID: Reason = Reason {
    code: "request_invalid",
    title: "Request invalid",
    stripe_code: "request_invalid",
    detail: "The request's body is not valid. Nothing was executed, and the key is not used up.",
    ..BAD_REQUEST
};

/// The request is not one that all servers would read alike.
pub(crate) static REQUEST_MALFORMED: Reason = Reason {
    code: "request_malformed",
    title: "Request malformed",
    stripe_code: "request_malformed",
    detail: "Write the method in upper case: an application may take it for the standard one. Nothing was executed.",
    ..BAD_REQUEST
};

/// The application may take the path for another one than the layer does.
pub(crate) static PATH_AMBIGUOUS: Reason = Reason {
    code: "path_ambiguous",
    title: "Path ambiguous",
    stripe_code: "path_ambiguous",
    detail: "The path can be read in more than one way, so it is not certain which operation it names. Send it without encoded slashes, dot segments and control characters. Nothing was executed, and the key is not used up.",
    ..BAD_REQUEST
};

/// The tenant is not known.
pub(crate) static TENANT_UNRESOLVED: Reason = Reason {
    code: "tenant_unresolved",
    title: "Caller not known",
    status: 403,
    stripe_status: 403,
    stripe_type: INVALID,
    stripe_code: "tenant_unresolved",
    stripe_should_retry: None,
    retryable: false,
    retry_after: false,
    status_link: false,
    detail: "The caller of this request could not be identified, so its key could be another caller's. Nothing was executed.",
};

/// The tenant cannot be found out now.
pub(crate) static TENANT_UNAVAILABLE: Reason = Reason {
    code: "tenant_unavailable",
    title: "Caller cannot be verified now",
    stripe_code: "tenant_unavailable",
    detail: "The caller of this request cannot be verified now. Nothing was executed. Retry with the same key.",
    ..TRY_LATER
};

/// Not a byte of the request reached the upstream.
pub(crate) static UPSTREAM_UNREACHABLE: Reason = Reason {
    code: "upstream_unreachable",
    title: "Upstream not reached",
    status: 502,
    stripe_status: 502,
    stripe_type: API,
    stripe_code: "upstream_unreachable",
    stripe_should_retry: None,
    retryable: true,
    retry_after: true,
    status_link: false,
    detail: "The application was not reached. Nothing was executed. Retry with the same key.",
};

/// The upstream failed a request that is not guarded.
pub(crate) static UPSTREAM_FAILED: Reason = Reason {
    code: "upstream_failed",
    title: "Upstream failed",
    status: 502,
    stripe_status: 502,
    stripe_type: API,
    stripe_code: "upstream_failed",
    detail: "The application gave no complete answer. The request may have taken effect; without an idempotency key nothing protects a retry.",
    ..BAD_REQUEST
};

/// For tests.
#[cfg(test)]
pub(crate) static ALL: [&Reason; 26] = [
    &KEY_MISSING,
    &KEY_MALFORMED,
    &KEY_REUSED,
    &IN_PROGRESS,
    &OUTCOME_UNKNOWN,
    &DEAD_LETTERED,
    &OUTCOME_BROKEN,
    &EXPIRED,
    &NOT_STORED,
    &STORE_UNAVAILABLE,
    &CONTRACT_CHANGED,
    &HOME_UNAVAILABLE,
    &REGION_MISMATCH,
    &OUTCOME_PENDING,
    &REPLAY_UNAVAILABLE,
    &NOT_EXECUTED,
    &OVERLOADED,
    &REQUEST_TOO_LARGE,
    &REQUEST_INCOMPLETE,
    &REQUEST_INVALID,
    &REQUEST_MALFORMED,
    &PATH_AMBIGUOUS,
    &TENANT_UNRESOLVED,
    &TENANT_UNAVAILABLE,
    &UPSTREAM_UNREACHABLE,
    &UPSTREAM_FAILED,
];
