//! Deliveries: repeated, early, out of order, and unsigned.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use semel_core::{
    Backoff, Clock as _, Decision, Fence, Fingerprint, Identity, Key, Memory, OperationId, Policy,
    Reserve, Resource, State, Status, Store as _,
};
use semel_testkit::ManualClock;
use semel_testkit::faulty::{Fault, Faulty, Verb};
use semel_worker::webhook::{
    Answer, LOOK_AFTER, MAX_BODY, Match, REMEMBER, RecordSelector, Rules, Scheme, Source, Sources,
    TenantSelector, receive,
};
use sha2::Sha256;

const KEY: &[u8] = b"0123456789abcdef01234567";

struct Fixture {
    clock: ManualClock,
    store: Faulty<Memory>,
    sources: Sources,
}

impl Fixture {
    fn new() -> Self {
        Self::with_selector(RecordSelector::Operation("/operation".parse().unwrap()))
    }

    fn with_selector(selector: RecordSelector) -> Self {
        let on = |value: &str| {
            Some(Match {
                pointer: "/type".parse().unwrap(),
                equals: vec![value.into()],
            })
        };
        let rules = Rules {
            completed: on("paid"),
            not_executed: on("never_created"),
            response_body: Some("/object".parse().unwrap()),
            ..Rules::new(selector)
        };
        let secret = format!("whsec_{}", STANDARD.encode(KEY));
        let source = Source::new("psp", Scheme::Standard, [&*secret], rules).unwrap();
        let clock = ManualClock::default();
        Self {
            store: Faulty::new(Memory::new(Arc::new(clock.clone()))),
            clock,
            sources: Sources::new([source]),
        }
    }

    async fn reserve(&self, key: &str) -> Fence {
        let request = Reserve {
            id: OperationId::generate(),
            identity: Identity::new("7", "create_payment", Key::new(key).unwrap()).unwrap(),
            fingerprints: Fingerprint::of(&1).unwrap().into(),
            owner: "test".into(),
            policy: Policy::default(),
        };
        let decision = self.store.reserve(request).await.unwrap();
        let Decision::Execute(grant) = decision else {
            panic!("{decision:?}");
        };
        grant.fence
    }

    async fn unknown(&self, key: &str, resource: Option<&str>) -> OperationId {
        let fence = self.reserve(key).await;
        let resource = resource.map(|id| Resource {
            kind: "payment".into(),
            id: id.into(),
        });
        let code = "upstream_broke_off".into();
        self.store
            .mark_unknown(fence, code, resource)
            .await
            .unwrap();
        fence.id
    }

    async fn deliver(&self, event: &str, body: &str) -> u16 {
        let headers = self.sign(event, body);
        self.send("psp", &headers, body.as_bytes())
            .await
            .status
            .as_u16()
    }

    fn sign(&self, event: &str, body: &str) -> HeaderMap {
        let seconds = self.clock.now().as_micros() / 1_000_000;
        let mut mac = Hmac::<Sha256>::new_from_slice(KEY).unwrap();
        mac.update(format!("{event}.{seconds}.{body}").as_bytes());
        let tag = STANDARD.encode(mac.finalize().into_bytes());
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", event.parse().unwrap());
        headers.insert("webhook-timestamp", seconds.into());
        headers.insert("webhook-signature", format!("v1,{tag}").parse().unwrap());
        headers
    }

    async fn send(&self, source: &str, headers: &HeaderMap, body: &[u8]) -> Answer {
        let now = self.clock.now();
        receive(&self.store, &self.sources, source, headers, body, now).await
    }

    async fn status(&self, id: OperationId) -> Status {
        self.store.find(id).await.unwrap().unwrap().state.status()
    }

    /// The number of parked events.
    async fn parked(&self) -> usize {
        self.clock.advance(LOOK_AFTER);
        let backoff = Backoff {
            every: Duration::from_secs(1),
            max_every: Duration::from_secs(1),
        };
        self.store.claim_parked(backoff, 100).await.unwrap().len()
    }
}

fn paid(id: impl std::fmt::Display) -> String {
    format!(r#"{{"type":"paid","operation":"{id}","object":{{"id":"pay_1"}}}}"#)
}

#[tokio::test]
async fn an_event_resolves_an_unknown_operation_once() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    assert_eq!(fixture.deliver("evt_1", &paid(id)).await, 204);
    let record = fixture.store.find(id).await.unwrap().unwrap();
    let State::Completed(completed) = record.state else {
        panic!("{:?}", record.state);
    };
    assert_eq!(completed.response.status, 200);
    assert_eq!(completed.response.body.unwrap(), r#"{"id":"pay_1"}"#);
    let history = fixture.store.history(id).await.unwrap();

    // The same delivery again, the same event under another id, and a late event.
    assert_eq!(fixture.deliver("evt_1", &paid(id)).await, 204);
    assert_eq!(fixture.deliver("evt_2", &paid(id)).await, 204);
    let never = paid(id).replace("paid", "never_created");
    assert_eq!(fixture.deliver("evt_3", &never).await, 204);
    assert_eq!(fixture.status(id).await, Status::Completed);
    assert_eq!(fixture.store.history(id).await.unwrap(), history);
    assert_eq!(fixture.parked().await, 0);
}

#[tokio::test]
async fn a_not_executed_event_lets_a_retry_execute() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    let never = paid(id).replace("paid", "never_created");
    assert_eq!(fixture.deliver("evt_1", &never).await, 204);
    assert_eq!(fixture.status(id).await, Status::FailedRetryable);
}

#[tokio::test]
async fn unsigned_events_change_nothing_and_get_the_same_answer() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    let body = paid(id);
    let good = fixture.sign("evt_1", &body);
    let mut forgeries = vec![HeaderMap::new(), fixture.sign("evt_1", "{}")];
    for (name, value) in [
        (
            "webhook-signature",
            "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        ),
        ("webhook-signature", ""),
        ("webhook-id", "evt_2"),
        ("webhook-timestamp", "1"),
    ] {
        let mut forged = good.clone();
        forged.insert(name, value.parse().unwrap());
        forgeries.push(forged);
    }
    for forged in &forgeries {
        let answer = fixture.send("psp", forged, body.as_bytes()).await;
        assert_eq!(answer, Answer::REFUSED);
    }
    let altered = body.replace("pay_1", "pay_2");
    let answer = fixture.send("psp", &good, altered.as_bytes()).await;
    assert_eq!(answer, Answer::REFUSED);
    let answer = fixture.send("other", &good, body.as_bytes()).await;
    assert_eq!(answer.status, 404);
    assert_eq!(fixture.status(id).await, Status::Unknown);
    assert_eq!(fixture.parked().await, 0, "nothing of it is kept");

    // After the clock moved, the signature is too old and is refused like a forged one.
    fixture.clock.advance(Duration::from_mins(5));
    let answer = fixture.send("psp", &good, body.as_bytes()).await;
    assert_eq!(answer, Answer::REFUSED);
}

#[tokio::test]
async fn a_signed_body_that_is_not_an_event_is_refused() {
    let fixture = Fixture::new();
    assert_eq!(fixture.deliver("evt_1", "not json").await, 400);
    let twice = r#"{"type":"paid","type":"never_created"}"#;
    assert_eq!(fixture.deliver("evt_1", twice).await, 400);
    let large = format!("\"{}\"", "x".repeat(MAX_BODY));
    assert_eq!(fixture.deliver("evt_1", &large).await, 413);
    let fits = format!("\"{}\"", "x".repeat(MAX_BODY - 2));
    assert_eq!(fixture.deliver("evt_1", &fits).await, 204);
}

#[tokio::test]
async fn an_event_that_matches_no_rule_is_accepted_and_not_stored() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    for body in [
        &*paid(id).replace("paid", "refunded"),
        "{}",
        &paid("pay_1"),
        &paid(id).replace("object", "other"),
    ] {
        assert_eq!(fixture.deliver("evt_1", body).await, 204, "{body}");
    }
    assert_eq!(fixture.status(id).await, Status::Unknown);
    assert_eq!(fixture.parked().await, 0);
}

#[tokio::test]
async fn an_event_before_its_record_is_parked() {
    let key = RecordSelector::Key {
        key: "/operation".parse().unwrap(),
        tenant: TenantSelector::Fixed("7".into()),
        operations: vec!["other".into(), "create_payment".into()],
    };
    let fixture = Fixture::with_selector(key);
    // Once before the record exists, then twice during the execution.
    assert_eq!(fixture.deliver("evt_1", &paid("a")).await, 204);
    let fence = fixture.reserve("a").await;
    assert_eq!(fixture.deliver("evt_2", &paid("a")).await, 204);
    assert_eq!(fixture.deliver("evt_2", &paid("a")).await, 204);
    assert_eq!(fixture.status(fence.id).await, Status::InProgress);
    assert_eq!(fixture.parked().await, 2);
    // A repeated delivery does not apply the parked event.
    assert_eq!(fixture.deliver("evt_1", &paid("a")).await, 204);
    assert_eq!(fixture.parked().await, 2);
}

#[tokio::test]
async fn a_record_is_found_by_key_or_by_resource() {
    let key = RecordSelector::Key {
        key: "/operation".parse().unwrap(),
        tenant: TenantSelector::Fixed("7".into()),
        operations: vec!["create_payment".into()],
    };
    let by_key = Fixture::with_selector(key);
    let id = by_key.unknown("a", None).await;
    assert_eq!(by_key.deliver("evt_1", &paid("b")).await, 204);
    assert_eq!(by_key.status(id).await, Status::Unknown);
    assert_eq!(by_key.deliver("evt_2", &paid("a")).await, 204);
    assert_eq!(by_key.status(id).await, Status::Completed);

    let by_resource =
        Fixture::with_selector(RecordSelector::Resource("/object/id".parse().unwrap()));
    let id = by_resource.unknown("a", Some("pay_1")).await;
    assert_eq!(by_resource.deliver("evt_1", &paid("x")).await, 204);
    assert_eq!(by_resource.status(id).await, Status::Completed);
}

#[tokio::test]
async fn an_event_is_acknowledged_only_when_it_is_durable() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    // Not stored, and possibly stored: the sender must send the event again.
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        fixture.store.next(Verb::ReceiveMessage, fault);
        assert_eq!(fixture.deliver("evt_1", &paid(id)).await, 503);
        assert_eq!(fixture.status(id).await, Status::Unknown);
    }
    // The second delivery was stored, so the worker applies it.
    assert_eq!(fixture.deliver("evt_1", &paid(id)).await, 204);
    assert_eq!(fixture.parked().await, 1);
}

#[tokio::test]
async fn an_event_that_fails_after_it_is_durable_is_applied_by_the_worker() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    for (event, verb) in [
        ("evt_1", Verb::Find),
        ("evt_2", Verb::Resolve),
        ("evt_3", Verb::SettleMessage),
    ] {
        fixture.store.next(verb, Fault::FailBefore);
        assert_eq!(fixture.deliver(event, &paid(id)).await, 204, "{verb:?}");
    }
    assert_eq!(fixture.status(id).await, Status::Completed);
    assert_eq!(fixture.parked().await, 3);
}

#[tokio::test]
async fn an_event_id_is_remembered_for_longer_than_the_sender_retries() {
    let fixture = Fixture::new();
    let id = fixture.unknown("a", None).await;
    assert_eq!(fixture.deliver("evt_1", &paid(id)).await, 204);
    let second = Duration::from_secs(1);
    fixture.clock.advance(REMEMBER.saturating_sub(second));
    assert_eq!(fixture.store.forget_messages(10).await.unwrap(), 0);
    fixture.clock.advance(second);
    assert_eq!(fixture.store.forget_messages(10).await.unwrap(), 1);
}
