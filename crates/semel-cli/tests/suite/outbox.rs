//! The outbox with `semel worker` as a process: an application writes events, and an HTTP receiver
//! accepts them, is unavailable for a while, or refuses one.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel_core::outbox::{Event, EventId};
use semel_core::{Clock as _, Store as _, SystemClock};
use semel_sqlite::Sqlite;
use semel_worker::webhook::{RecordSelector, Rules, Scheme, Source};
use tokio::sync::watch;

/// Far longer than any step takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A received event, and the status of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delivery {
    id: String,
    body: String,
    answered: u16,
}

/// A receiver of Standard Webhooks.
#[derive(Clone)]
struct Receiver {
    url: String,
    answers: Arc<Mutex<StatusCode>>,
    deliveries: watch::Sender<Vec<Delivery>>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            url: format!("http://{}/events", listener.local_addr().unwrap()),
            answers: Arc::new(Mutex::new(StatusCode::NO_CONTENT)),
            deliveries: watch::Sender::new(Vec::new()),
        };
        let router = axum::Router::new().route("/events", post(receive));
        let router = router.with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    fn set_answer(&self, status: u16) {
        *self.answers.lock().unwrap() = StatusCode::from_u16(status).unwrap();
    }

    /// Waits for a delivery that matches.
    async fn wait_for(&self, matches: impl Fn(&Delivery) -> bool) -> Delivery {
        let mut updates = self.deliveries.subscribe();
        let found = updates.wait_for(|deliveries| deliveries.iter().any(&matches));
        let deliveries = tokio::time::timeout(TEST_TIMEOUT, found)
            .await
            .unwrap()
            .unwrap();
        deliveries
            .iter()
            .find(|delivery| matches(delivery))
            .unwrap()
            .clone()
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let rules = Rules::new(RecordSelector::Operation("/id".parse().unwrap()));
    let source = Source::new("semel", Scheme::Standard, [SECRET], rules).unwrap();
    let signed = source.verify(&headers, &body, SystemClock.now()).is_ok();
    let answered = if signed {
        *receiver.answers.lock().unwrap()
    } else {
        StatusCode::UNAUTHORIZED
    };
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let delivery = Delivery {
        id: text("webhook-id"),
        body: String::from_utf8(body.to_vec()).unwrap(),
        answered: answered.as_u16(),
    };
    receiver
        .deliveries
        .send_modify(|deliveries| deliveries.push(delivery));
    answered
}

/// `semel worker`, killed when dropped.
struct Worker {
    child: Child,
    admin: String,
}

impl Worker {
    fn start(directory: &Path, receiver: &Receiver) -> Self {
        let config = format!(
            "[outbox]\nto = \"{}\"\nsecret_env = \"SECRET\"\nmax_tries = 1\n",
            receiver.url
        );
        std::fs::write(directory.join("semel.toml"), config).unwrap();
        let mut child = semel(directory)
            .args([
                "worker",
                "--config=semel.toml",
                "--admin-listen=127.0.0.1:0",
            ])
            .args(["--upstream=http://127.0.0.1:9", "--tenant=none"])
            .env("SECRET", SECRET)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let admin = line.trim().strip_prefix("listening admin ").unwrap();
        Self {
            admin: admin.to_owned(),
            child,
        }
    }

    /// Runs `semel outbox …`; returns standard output and standard error.
    async fn outbox(&self, directory: &Path, args: &[&str]) -> (String, String) {
        let mut command = semel(directory);
        command
            .arg("outbox")
            .args(args)
            .env("SEMEL_ADMIN", &self.admin);
        let run = tokio::task::spawn_blocking(move || command.output().unwrap());
        let ran = run.await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (printed, notes) = (text(ran.stdout), text(ran.stderr));
        assert!(ran.status.success(), "{notes}");
        (printed, notes)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn semel(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.current_dir(directory).env_clear();
    command
}

/// Writes an event in a transaction of the application.
async fn write(store: &Sqlite, body: &str) -> EventId {
    let event = Event::new("payment.created", "payment/1", body.to_owned()).unwrap();
    let (id, outbox) = (event.id, store.outbox());
    let write = store.write(move |connection| outbox.publish(connection, &event));
    write.await.unwrap();
    id
}

/// Waits until the outbox has this many waiting and dead events.
async fn wait_for_backlog(store: &Sqlite, waiting: u64, dead: u64) {
    let reached = async {
        loop {
            let backlog = store.outbox_backlog().await.unwrap();
            if (backlog.waiting, backlog.dead) == (waiting, dead) {
                return;
            }
            // sleeps because another process changes the file, without a notification.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = tokio::time::timeout(TEST_TIMEOUT, reached).await;
    assert!(reached.is_ok(), "{:?}", store.outbox_backlog().await);
}

#[tokio::test]
async fn signed_event_arrives_after_an_outage_and_after_an_operators_retry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = Sqlite::open(path.join("semel.db")).await.unwrap();
    let receiver = Receiver::start().await;
    let worker = Worker::start(path, &receiver);

    // A confirmed event leaves the outbox.
    let id = write(&store, "{\"n\":1}").await;
    let first = receiver.wait_for(|delivery| delivery.answered == 204).await;
    assert_eq!((first.id, &*first.body), (id.to_string(), "{\"n\":1}"));
    wait_for_backlog(&store, 0, 0).await;

    // While the receiver is unavailable no event is dead-lettered, although `max_tries` is 1.
    receiver.set_answer(503);
    let id = write(&store, "{\"n\":2}").await.to_string();
    receiver
        .wait_for(|delivery| delivery.id == id && delivery.answered == 503)
        .await;
    let (printed, notes) = worker.outbox(path, &["list"]).await;
    assert_eq!(printed, "");
    assert!(notes.contains("1 waiting, the oldest for"), "{notes}");
    assert!(notes.contains("none dead"), "{notes}");
    receiver.set_answer(200);
    receiver
        .wait_for(|delivery| delivery.id == id && delivery.answered == 200)
        .await;
    wait_for_backlog(&store, 0, 0).await;

    // A refused event is dead-lettered, and the next one is delivered.
    receiver.set_answer(410);
    let poison = write(&store, "{\"n\":3}").await.to_string();
    wait_for_backlog(&store, 0, 1).await;
    receiver.set_answer(204);
    let after = write(&store, "{\"n\":4}").await.to_string();
    receiver
        .wait_for(|delivery| delivery.id == after && delivery.answered == 204)
        .await;
    let (printed, notes) = worker.outbox(path, &["list"]).await;
    assert!(
        printed.contains(&poison) && printed.contains("410 Gone"),
        "{printed}"
    );
    assert!(notes.contains("1 dead"), "{notes}");
    let (printed, _) = worker.outbox(path, &["list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(listed["dead_events"][0]["id"], poison.as_str());
    let (printed, _) = worker.outbox(path, &["retry", &poison, "--by=kim"]).await;
    assert!(printed.contains("is waiting again"), "{printed}");
    receiver
        .wait_for(|delivery| delivery.id == poison && delivery.answered == 204)
        .await;
    wait_for_backlog(&store, 0, 0).await;
}
