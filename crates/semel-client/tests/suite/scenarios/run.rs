//! Runs one scenario.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::join_all;
use semel_client::{
    BoxFuture, Client, Environment, Error, Options, Profile, QuotaOptions, Received, Request,
    Response, Transport, TransportError,
};
use semel_core::Timestamp;

use super::file::{Call, Exchange, Expected, Scenario, Step};
use super::server::Server;
use crate::world::{Clock, Place};

/// Sleeping moves the clock, is recorded, and is when the server starts or stops to listen.
struct Recorder {
    clock: Clock,
    server: Arc<Server>,
    delays: std::sync::Mutex<Vec<u64>>,
    /// How much longer the next sleep takes: the machine sleeps, too.
    oversleep: std::sync::Mutex<Duration>,
    /// The last call.
    call: std::sync::Mutex<Option<Call>>,
}

/// A transport of a process that reaches no server.
struct Unreachable;

impl Transport for Unreachable {
    fn send(&self, _: http::Request<Bytes>) -> BoxFuture<'_, Result<Received, TransportError>> {
        Box::pin(async { Err(TransportError::NotConnected("unreachable".to_owned())) })
    }
}

impl Environment for Recorder {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let millis = u64::try_from(delay.as_millis()).unwrap();
            self.delays.lock().unwrap().push(millis);
            let longer = std::mem::take(&mut *self.oversleep.lock().unwrap());
            self.clock.advance(delay + longer);
            self.server.turn(self.clock.now()).await;
        })
    }

    fn random(&self) -> f64 {
        1.0
    }
}

struct Runner<'a> {
    scenario: &'a Scenario,
    place: &'a Place,
    environment: Arc<Recorder>,
    client: Client,
}

pub(super) async fn run(scenario: &Scenario, place: &Place) -> Result<(), String> {
    let environment = Arc::new(Recorder {
        clock: Clock::default(),
        server: Server::new(scenario.profile == "ietf"),
        delays: std::sync::Mutex::default(),
        oversleep: std::sync::Mutex::default(),
        call: std::sync::Mutex::default(),
    });
    set_meanwhile(scenario, place, &environment);
    let mut runner = Runner {
        client: client(scenario, place, &environment),
        scenario,
        place,
        environment,
    };
    for (nth, step) in scenario.steps.iter().enumerate() {
        let ended = runner.step(step).await;
        ended.map_err(|error| format!("step {nth}: {error}"))?;
    }
    Ok(())
}

/// While the server has a request, time passes, and another process may find its intent.
fn set_meanwhile(scenario: &Scenario, place: &Place, environment: &Arc<Recorder>) {
    let options = Options {
        quota: QuotaOptions {
            capacity: 0.0,
            ..QuotaOptions::default()
        },
        ..options(scenario)
    };
    let another = Client::builder(place.open())
        .options(options)
        .environment(Arc::clone(environment) as Arc<dyn Environment>)
        .build_with(Unreachable);
    let recorder = Arc::downgrade(environment);
    environment.server.set_meanwhile(Arc::new(move |respond| {
        let (another, recorder) = (another.clone(), recorder.upgrade().unwrap());
        Box::pin(async move {
            let takes = Duration::from_millis(respond.takes_ms);
            recorder.clock.advance(takes);
            if respond.found_by_another {
                let call = recorder.call.lock().unwrap().clone().unwrap();
                let ended = another
                    .call(
                        call.intent.as_ref().unwrap(),
                        request(&call, &recorder.server.url),
                    )
                    .await;
                assert!(matches!(ended, Err(Error::GaveUp { .. })), "{ended:?}");
            }
            recorder.now()
        })
    }));
}

fn client(scenario: &Scenario, place: &Place, environment: &Arc<Recorder>) -> Client {
    Client::builder(place.open())
        .options(options(scenario))
        .environment(Arc::clone(environment) as Arc<dyn Environment>)
        .build()
        .unwrap()
}

fn options(scenario: &Scenario) -> Options {
    let defaults = Options::default();
    let given = &scenario.client;
    let millis = |given: Option<u64>, default| given.map_or(default, Duration::from_millis);
    Options {
        profile: match scenario.profile.as_str() {
            "ietf" => Profile::ietf(),
            "stripe" => Profile::stripe(),
            other => panic!("no profile {other}"),
        },
        deadline: millis(given.deadline_ms, defaults.deadline),
        attempt_timeout: millis(given.attempt_timeout_ms, defaults.attempt_timeout),
        key_lifetime: millis(given.key_lifetime_ms, defaults.key_lifetime),
        max_response: given.max_response_bytes.unwrap_or(defaults.max_response),
        quota: given
            .quota
            .as_ref()
            .map_or(defaults.quota, |quota| QuotaOptions {
                capacity: quota.capacity,
                cost: quota.cost,
                refill_per_second: quota.refill_per_second,
            }),
        // The order of the requests is part of a scenario.
        resume_at_once: 1,
        ..defaults
    }
}

fn request(call: &Call, origin: &str) -> Request {
    let url = format!("{origin}{}", call.path);
    let mut request = Request::new(call.method.parse().unwrap(), &url).unwrap();
    for (name, value) in &call.headers {
        request = request.header(name.parse().unwrap(), value.parse().unwrap());
    }
    if let Some(body) = &call.body {
        request = request.body(body.clone());
    }
    if let Some(body) = &call.body_base64 {
        request = request.body(STANDARD.decode(body).unwrap());
    }
    request
}

impl Runner<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Restart { restart, profile } => {
                assert!(restart);
                let scenario = Scenario {
                    profile: profile.clone().unwrap_or(self.scenario.profile.clone()),
                    ..self.scenario.clone()
                };
                self.client = client(&scenario, self.place, &self.environment);
                Ok(())
            }
            Step::Advance { advance_ms } => {
                let by = Duration::from_millis(*advance_ms);
                self.environment.clock.advance(by);
                Ok(())
            }
            Step::Call {
                call,
                exchanges,
                delays_ms,
                oversleep_ms,
                result,
            } => {
                self.begin(exchanges).await;
                *self.environment.oversleep.lock().unwrap() = Duration::from_millis(*oversleep_ms);
                let seen = self.call(call).await;
                compare(&seen, result, true)?;
                self.end(delays_ms)
            }
            Step::Calls {
                calls,
                exchanges,
                delays_ms,
                results,
            } => {
                self.begin(exchanges).await;
                let seen = join_all(calls.iter().map(|call| self.call(call))).await;
                assert_eq!(seen.len(), results.len());
                for (seen, expected) in seen.iter().zip(results) {
                    compare(seen, expected, false)?;
                }
                self.end(delays_ms)
            }
            Step::Resume {
                resume,
                exchanges,
                delays_ms,
                results,
            } => {
                assert!(resume);
                self.begin(exchanges).await;
                let seen = self.client.resume().await.unwrap();
                let intents: Vec<&String> = seen.iter().map(|(intent, _)| intent).collect();
                if !results.keys().eq(intents.iter().copied()) {
                    return Err(format!("resumed {intents:?}"));
                }
                for (intent, seen) in &seen {
                    compare(seen, &results[intent], true)?;
                }
                self.end(delays_ms)
            }
        }
    }

    async fn begin(&self, exchanges: &[Exchange]) {
        self.environment.delays.lock().unwrap().clear();
        let now = self.environment.now();
        self.environment.server.begin(exchanges, now).await;
    }

    fn end(&self, delays_ms: &[u64]) -> Result<(), String> {
        self.environment.server.end()?;
        let delays = self.environment.delays.lock().unwrap();
        if *delays == delays_ms {
            Ok(())
        } else {
            Err(format!("slept {delays:?}, expected {delays_ms:?}"))
        }
    }

    async fn call(&self, call: &Call) -> Result<Response, Error> {
        *self.environment.call.lock().unwrap() = Some(call.clone());
        let request = request(call, &self.environment.server.url);
        match &call.intent {
            Some(intent) => self.client.call(intent, request).await,
            None => self.client.send(request).await,
        }
    }
}

fn compare(
    seen: &Result<Response, Error>,
    expected: &Expected,
    with_replayed: bool,
) -> Result<(), String> {
    let got = match seen {
        Ok(response) => Expected::Response {
            status: response.status,
            body: String::from_utf8(response.body.to_vec()).unwrap(),
            replayed_from_journal: with_replayed && response.replayed_from_journal,
        },
        Err(Error::Unknown { operation_id }) => Expected::Unknown {
            operation_id: operation_id.clone(),
        },
        Err(Error::KeyReused(_)) => Expected::KeyReused,
        Err(Error::KeyExpired(_)) => Expected::KeyExpired,
        Err(Error::ResponseNotStored(response)) => Expected::ResponseNotStored {
            status: response.body.is_empty().then_some(response.status),
        },
        Err(Error::GaveUp { reason, .. }) => Expected::GaveUp {
            reason: reason.to_string(),
        },
        Err(Error::IntentConflict) => Expected::IntentConflict,
        Err(Error::Failed(_)) => Expected::Failed,
        Err(error) => return Err(format!("the call failed: {error}")),
    };
    if got == *expected {
        Ok(())
    } else {
        Err(format!("got {got:?}, expected {expected:?} ({seen:?})"))
    }
}
