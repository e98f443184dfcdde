//! Applications in other languages that complete in their own transaction: the examples in
//! Python and Node, as real processes behind a real gateway, on one PostgreSQL database.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly, and says when it skips"
)]

mod support;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use semel_testkit::database::Database;
use support::http::{Message, ask, request};
use support::paying::told;
use support::{Gateway, PATIENCE, Place};
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::timeout;

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\nkey = \"required\"\n";

const ORDER: &str = "{\"amount\":1000,\"currency\":\"EUR\"}";

#[derive(Clone, Copy)]
enum Language {
    Python,
    Node,
}

impl Language {
    /// `cargo xtask test` installs what the example needs and says here where: for Python the
    /// interpreter, for Node the directory with `node_modules`.
    fn variable(self) -> &'static str {
        match self {
            Self::Python => "SEMEL_PSYCOPG",
            Self::Node => "SEMEL_NODE_PG",
        }
    }

    /// How the example is started; nothing, with a word about it, where it cannot be.
    fn command(self, directory: &Path) -> Option<Command> {
        let variable = self.variable();
        let Some(installed) = env::var_os(variable).filter(|path| !path.is_empty()) else {
            println!("SKIPPED: {variable} is not set; `cargo xtask test` installs what it names");
            return None;
        };
        let installed = PathBuf::from(installed);
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut command = match self {
            Self::Python => {
                let mut command = Command::new(installed);
                command.arg(examples.join("python/app.py"));
                command
            }
            Self::Node => {
                // Node looks for modules beside the program.
                let program = directory.join("app.mjs");
                std::fs::copy(examples.join("node/app.mjs"), &program).unwrap();
                symlink(
                    installed.join("node_modules"),
                    directory.join("node_modules"),
                )
                .unwrap();
                let mut command = Command::new("node");
                command.arg(program);
                command
            }
        };
        command.env_clear();
        command.envs(env::var_os("PATH").map(|path| ("PATH", path)));
        Some(command)
    }
}

/// The example as a process. Dropped, it is killed.
struct Application {
    child: Child,
    url: String,
}

impl Application {
    /// Returns when it listens.
    fn start(mut command: Command, database: &Database, failure: Option<&str>) -> Self {
        let mut child = command
            .env("DATABASE_URL", &database.url)
            .env("PORT", "0")
            .envs(failure.map(|failure| ("FAIL_ONCE", failure)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the variable names a program that starts");
        let said = BufReader::new(child.stdout.take().unwrap()).lines().next();
        let said = said.expect("its reason is on standard error").unwrap();
        let url = said.strip_prefix("listening ").unwrap().to_owned();
        Self { child, url }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        // It may have ended already; both fail then, and nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The application behind the gateway.
struct World {
    gateway: Gateway,
    application: Application,
    database: Database,
    _place: Place,
    _directory: TempDir,
}

impl World {
    async fn start(language: Language, failure: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let command = language.command(directory.path())?;
        let database = Database::new().await?;
        let application = block_in_place(|| Application::start(command, &database, failure));
        let place = Place::new(CONFIG);
        let gateway = block_in_place(|| place.start_on(&application.url, &database.url));
        Some(Self {
            gateway,
            application,
            database,
            _place: place,
            _directory: directory,
        })
    }

    async fn pay(&self) -> Message {
        let request = request("/payments", "invoice-7781", ORDER);
        let asking = ask(self.gateway.address, &request);
        timeout(PATIENCE, asking).await.expect("a hang").unwrap()
    }

    /// Rows in the application's table, and operations in each state.
    async fn stored(&self) -> (i64, Vec<(String, Option<i32>, i64)>) {
        let client = self.database.client().await;
        let payments = "SELECT count(*) FROM payments";
        let payments = client.query_one(payments, &[]).await.unwrap().get(0);
        let operations = "SELECT status, response_status, attempt FROM semel.operations";
        let operations = client.query(operations, &[]).await.unwrap();
        let operations = operations
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)));
        (payments, operations.collect())
    }
}

fn completed(attempt: i64) -> Vec<(String, Option<i32>, i64)> {
    vec![("completed".into(), Some(201), attempt)]
}

/// What the application answers to its first order.
fn assert_paid(answer: &Message) {
    assert_eq!(answer.status(), 201, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let location = answer.header("location").unwrap();
    let id = location.strip_prefix("/payments/").unwrap();
    let text = answer.text().replace(' ', "");
    assert_eq!(
        text,
        format!("{{\"id\":{id},\"amount\":1000,\"currency\":\"EUR\"}}")
    );
}

async fn the_payment_and_its_answer_are_there_together(language: Language) {
    let Some(world) = World::start(language, None).await else {
        return;
    };
    let first = world.pay().await;
    assert_paid(&first);
    assert!(!first.is_replay(), "{first:?}");
    assert_eq!(world.stored().await, (1, completed(1)));
    let again = world.pay().await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(told(&again), told(&first));
    assert_eq!(world.stored().await, (1, completed(1)));
}

async fn an_application_that_dies_after_its_commit_has_answered(language: Language) {
    let Some(mut world) = World::start(language, Some("after_commit")).await else {
        return;
    };
    let first = world.pay().await;
    let ended = block_in_place(|| world.application.child.wait().unwrap());
    assert_eq!(ended.code(), Some(1), "it ended otherwise than rehearsed");
    assert_eq!(world.stored().await, (1, completed(1)));
    assert_paid(&first);
    // There is no application any more, and none is needed.
    let again = world.pay().await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(told(&again), told(&first));
}

async fn what_fails_before_its_commit_has_not_happened(language: Language) {
    let Some(world) = World::start(language, Some("before_commit")).await else {
        return;
    };
    let failed = world.pay().await;
    assert_eq!(failed.status(), 503, "{failed:?}");
    let retryable = vec![("failed_retryable".into(), None, 1)];
    assert_eq!(world.stored().await, (0, retryable));
    let second = world.pay().await;
    assert_paid(&second);
    assert!(!second.is_replay(), "{second:?}");
    assert_eq!(world.stored().await, (1, completed(2)));
}

/// Every scenario with this language, each as a test of its own.
macro_rules! scenarios {
    ($language:ident, $module:ident: $($scenario:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $scenario() {
                    super::$scenario(super::Language::$language).await;
                }
            )*
        }
    };
}

macro_rules! for_each_language {
    ($($scenario:ident)*) => {
        scenarios!(Python, python: $($scenario)*);
        scenarios!(Node, node: $($scenario)*);
    };
}

for_each_language! {
    the_payment_and_its_answer_are_there_together
    an_application_that_dies_after_its_commit_has_answered
    what_fails_before_its_commit_has_not_happened
}
