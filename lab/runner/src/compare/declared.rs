//! Facts about the subjects that are not measured: their settings, and the guarantees in their
//! documentation.

use super::subjects::{Guard, Store, Subject};

/// A probe that does not hold, and what the documentation states about it.
pub(super) type NotPromised = (&'static str, &'static str);

impl Subject {
    /// The settings that matter for a fair comparison.
    pub(super) fn note(self) -> &'static str {
        match self.guard {
            Guard::PlainAxum => "no guard at all: for the peers in Rust to be read beside",
            Guard::PlainExpress => "no guard at all: for the peers in express to be read beside",
            Guard::SemelGateway if self.store == Store::PostgresAndRedis => {
                "lease 2 s, renewed; key required; answers up to 1 MiB are kept; the cache in the process's memory is off here, so that replays come out of Redis; in front of an application without any guard"
            }
            Guard::SemelGateway => {
                "lease 2 s, renewed; key required; answers up to 1 MiB are kept; replays come out of the process's memory (64 MiB, its default), not out of the store; in front of an application without any guard"
            }
            Guard::SemelReconciling => {
                "the same, and the gateway asks the application for what it does not know, every second; without load, which this does not change"
            }
            Guard::SemelLayer => {
                "lease 2 s, renewed; answers up to 1 MiB are kept; replays come out of the process's memory, its default"
            }
            Guard::HandWritten => {
                "an INSERT and an UPDATE, each its own commit; no lease; answers of any size are kept"
            }
            Guard::AxumIdempotent => {
                "the header is the key, a session is the tenant; nothing is reserved; answers up to 1 MiB are kept, a 504 included (an option)"
            }
            Guard::Idempotent => {
                "lease 2 s, renewed; scope by Authorization; key required; answers up to 1 MiB are kept; it asks for Rust 1.98 and was built with ours"
            }
            Guard::ExpressIdempotency => {
                "every answer is kept (an option), of any size; the caller in the key and the required key are ours; no lease; lookup and insert are two commands"
            }
            Guard::NodeIdempotency => {
                "caller in the key's prefix; key required; no lease: one TTL, of a day; answers of any size are kept; its package for express could not be installed from the registry, so its core is called from express"
            }
            Guard::Restate => {
                "the effect is a step, so a crash after it repeats nothing; a front of ours puts the caller into the key and requires one, for the probes; the load goes to the ingress itself; an answer of 4 MiB is kept"
            }
            Guard::Dbos => {
                "the workflow's id is caller and key; the effect is a step; pool of 20; answers of any size are kept"
            }
            Guard::Powertools => {
                "caller and key are the key; 6 s of the invocation are left, which is its lease; answers of any size are kept; payload validation is off, since over Redis this version then refuses every retry"
            }
        }
    }

    /// What happens to a retry without an answer after the time of the probe.
    pub(super) fn and_then(self) -> &'static str {
        match self.guard {
            Guard::PlainAxum | Guard::PlainExpress => "",
            Guard::SemelGateway | Guard::SemelLayer => {
                "a person, a webhook or a reconciler decides; never executed again by itself"
            }
            Guard::SemelReconciling => "by itself: the gateway asks; a person after 12 looks",
            Guard::HandWritten => "an operator, who has to notice",
            Guard::AxumIdempotent => "nothing is held: each retry executes until an answer is kept",
            Guard::Idempotent => {
                "by itself: executed again when the lease is over (a minute by default)"
            }
            Guard::ExpressIdempotency | Guard::NodeIdempotency => {
                "refused for the TTL of a day, then executed again"
            }
            Guard::Restate => "by itself: the handler is taken up at its last step",
            Guard::Dbos => "by itself: the workflow is taken up when its process is back",
            Guard::Powertools => "by itself: executed again when the invocation's time is over",
        }
    }

    /// The probes that its documentation does not guarantee, with what it states. A failure of one of
    /// these is not a bug of the subject.
    pub(super) fn not_promised(self) -> &'static [NotPromised] {
        const NET: &str = "documented as a safety net for retries and not as a guarantee that a handler runs at most once";
        const TWO: &str = "documented: two requests at the same time can both reach the handler";
        const KEY: &str =
            "documented: with a client's key nothing is hashed; the body is not compared";
        const LARGE: &str = "documented: a larger answer than the limit (1 MiB) is not kept, and a repeat runs the handler again";
        const DIES: &str =
            "documented: if the process dies before the completion is stored, the retry runs again";
        const BY_KEY: &str =
            "documented is that a key executes once; nothing is said of a request that differs";
        const OFF: &str =
            "documented as an option (payload validation), off here: see the settings";
        const EXPIRES: &str = "documented: an execution that is not over when the invocation's time is, is executed again";
        match self.guard {
            Guard::AxumIdempotent => &[
                ("different_body", KEY),
                ("different_body_in_flight", TWO),
                ("concurrent_duplicates", TWO),
                ("disconnect_after_effect", NET),
                ("slow_operation", TWO),
                ("oversized_response", LARGE),
                ("failed_completion", NET),
                ("crash_and_restart", NET),
            ],
            Guard::Idempotent => &[
                ("oversized_response", LARGE),
                ("failed_completion", DIES),
                ("crash_and_restart", DIES),
            ],
            Guard::Restate | Guard::Dbos => &[
                ("different_body", BY_KEY),
                ("different_body_in_flight", BY_KEY),
            ],
            Guard::Powertools => &[
                ("different_body", OFF),
                ("different_body_in_flight", OFF),
                ("failed_completion", EXPIRES),
                ("crash_and_restart", EXPIRES),
            ],
            // A failed guarantee of Semel fails the command.
            Guard::SemelGateway
            | Guard::SemelReconciling
            | Guard::SemelLayer
            | Guard::PlainAxum
            | Guard::PlainExpress
            | Guard::HandWritten
            | Guard::ExpressIdempotency
            | Guard::NodeIdempotency => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::subjects::ALL;

    #[test]
    fn every_subject_is_described_and_semel_guarantees_every_probe() {
        for subject in ALL {
            let name = subject.guard.name();
            assert!(!subject.note().is_empty(), "{name}");
            let later = subject.and_then();
            assert_eq!(later.is_empty(), subject.guard.is_baseline(), "{name}");
            let excused = !subject.not_promised().is_empty();
            assert!(!(excused && subject.guard.is_ours()), "{name}");
        }
    }
}
