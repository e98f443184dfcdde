//! The outbox through `semel worker`, as a process: an application writes events, and a receiver
//! over HTTP takes them, is away for a while, or does not want one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and says what it saw"
)]

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
use semel_core::{Clock as _, Outbox as _, SystemClock};
use semel_sqlite::Sqlite;
use semel_worker::webhook::{Find, Rules, Scheme, Source};
use tokio::sync::watch;

/// Far longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What came, and under which answer.
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
    came: watch::Sender<Vec<Delivery>>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            url: format!("http://{}/events", listener.local_addr().unwrap()),
            answers: Arc::new(Mutex::new(StatusCode::NO_CONTENT)),
            came: watch::Sender::new(Vec::new()),
        };
        let router = axum::Router::new().route("/events", post(receive));
        let router = router.with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    fn will_answer(&self, status: u16) {
        *self.answers.lock().unwrap() = StatusCode::from_u16(status).unwrap();
    }

    /// Waits until something came that is like this.
    async fn until(&self, what: impl Fn(&Delivery) -> bool) -> Delivery {
        let mut coming = self.came.subscribe();
        let found = coming.wait_for(|came| came.iter().any(&what));
        let came = tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap()
            .unwrap();
        came.iter().find(|came| what(came)).unwrap().clone()
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let rules = Rules::new(Find::Operation("/id".parse().unwrap()));
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
    receiver.came.send_modify(|came| came.push(delivery));
    answered
}

/// `semel worker`. Dropped, it is killed.
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
            .arg("--upstream=http://127.0.0.1:9")
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

    /// `semel outbox …`: what it printed, and what it said.
    async fn outbox(&self, directory: &Path, args: &[&str]) -> (String, String) {
        let mut command = semel(directory);
        command
            .arg("outbox")
            .args(args)
            .env("SEMEL_ADMIN", &self.admin);
        let run = tokio::task::spawn_blocking(move || command.output().unwrap());
        let ran = run.await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (printed, said) = (text(ran.stdout), text(ran.stderr));
        assert!(ran.status.success(), "{said}");
        (printed, said)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already; both fail then, and nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn semel(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.current_dir(directory).env_clear();
    command
}

/// The application: it writes an event in a transaction of its own.
async fn write(store: &Sqlite, body: &str) -> EventId {
    let event = Event::new("payment.created", "payment/1", body.to_owned()).unwrap();
    let (id, outbox) = (event.id, store.outbox());
    let write = store.write(move |connection| outbox.publish(connection, &event));
    write.await.unwrap();
    id
}

/// Waits until the outbox stands like this: waiting, and dead.
async fn until_stands(store: &Sqlite, waiting: u64, dead: u64) {
    let stands = async {
        loop {
            let backlog = store.backlog().await.unwrap();
            if (backlog.waiting, backlog.dead) == (waiting, dead) {
                return;
            }
            // sleeps because another process changes the file, and nobody tells.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let stands = tokio::time::timeout(PATIENCE, stands).await;
    assert!(stands.is_ok(), "{:?}", store.backlog().await);
}

#[tokio::test]
async fn an_event_arrives_signed_through_outages_and_after_a_retry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = Sqlite::open(path.join("semel.db")).await.unwrap();
    let receiver = Receiver::start().await;
    let worker = Worker::start(path, &receiver);

    // Confirmed, it is gone.
    let id = write(&store, "{\"n\":1}").await;
    let first = receiver.until(|came| came.answered == 204).await;
    assert_eq!((first.id, &*first.body), (id.to_string(), "{\"n\":1}"));
    until_stands(&store, 0, 0).await;

    // The receiver is away: nothing is lost or set aside, although one try is all there is.
    receiver.will_answer(503);
    let id = write(&store, "{\"n\":2}").await.to_string();
    receiver
        .until(|came| came.id == id && came.answered == 503)
        .await;
    let (printed, said) = worker.outbox(path, &["list"]).await;
    assert_eq!(printed, "");
    assert!(said.contains("1 waiting, the oldest since"), "{said}");
    assert!(said.contains("none dead"), "{said}");
    receiver.will_answer(200);
    receiver
        .until(|came| came.id == id && came.answered == 200)
        .await;
    until_stands(&store, 0, 0).await;

    // It does not want one: that waits for a person, and what comes after it goes on.
    receiver.will_answer(410);
    let poison = write(&store, "{\"n\":3}").await.to_string();
    until_stands(&store, 0, 1).await;
    receiver.will_answer(204);
    let after = write(&store, "{\"n\":4}").await.to_string();
    receiver
        .until(|came| came.id == after && came.answered == 204)
        .await;
    let (printed, said) = worker.outbox(path, &["list"]).await;
    assert!(
        printed.contains(&poison) && printed.contains("410 Gone"),
        "{printed}"
    );
    assert!(said.contains("1 dead"), "{said}");
    let (printed, _) = worker.outbox(path, &["list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(listed["dead_events"][0]["id"], poison.as_str());
    let (printed, _) = worker.outbox(path, &["retry", &poison, "--by=kim"]).await;
    assert!(printed.contains("is waiting again"), "{printed}");
    receiver
        .until(|came| came.id == poison && came.answered == 204)
        .await;
    until_stands(&store, 0, 0).await;
}
