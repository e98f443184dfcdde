//! The format of the file, which `packages/scenarios/README.md` describes.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) scenarios: Vec<Scenario>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) profile: String,
    #[serde(default)]
    pub(super) client: Options,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    pub(super) deadline_ms: Option<u64>,
    pub(super) attempt_timeout_ms: Option<u64>,
    pub(super) key_lifetime_ms: Option<u64>,
    pub(super) max_response_bytes: Option<usize>,
    pub(super) quota: Option<Quota>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quota {
    pub(super) capacity: f64,
    pub(super) cost: f64,
    pub(super) refill_per_second: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Step {
    Call {
        call: Call,
        exchanges: Vec<Exchange>,
        delays_ms: Vec<u64>,
        #[serde(default)]
        oversleep_ms: u64,
        result: Expected,
    },
    Calls {
        calls: Vec<Call>,
        exchanges: Vec<Exchange>,
        delays_ms: Vec<u64>,
        results: Vec<Expected>,
    },
    Resume {
        resume: bool,
        exchanges: Vec<Exchange>,
        delays_ms: Vec<u64>,
        results: BTreeMap<String, Expected>,
    },
    Restart {
        restart: bool,
        profile: Option<String>,
    },
    Advance {
        advance_ms: u64,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub(super) intent: Option<String>,
    pub(super) method: String,
    pub(super) path: String,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Option<String>,
    pub(super) body_base64: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exchange {
    pub(super) expect: Option<Expect>,
    pub(super) respond: Respond,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) method: String,
    pub(super) path: String,
    /// `None`: the header must be absent.
    pub(super) key: Option<String>,
    pub(super) body: Option<String>,
    pub(super) body_base64: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Respond {
    pub(super) status: Option<u16>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) body: String,
    pub(super) disconnect: Option<String>,
    #[serde(default)]
    pub(super) stall: bool,
    #[serde(default)]
    pub(super) refuse: bool,
    #[serde(default)]
    pub(super) takes_ms: u64,
    #[serde(default)]
    pub(super) found_by_another: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Expected {
    Response {
        status: u16,
        body: String,
        #[serde(default)]
        replayed_from_journal: bool,
    },
    Unknown {
        operation_id: Option<String>,
    },
    KeyReused,
    KeyExpired,
    ResponseNotStored {
        /// Where the journal does not have it.
        status: Option<u16>,
    },
    GaveUp {
        reason: String,
    },
    IntentConflict,
    Failed,
}
