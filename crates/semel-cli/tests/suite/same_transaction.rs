//! Applications in other languages that complete in their own transaction: the examples in
//! Python and Node, as real processes behind a real gateway, on one PostgreSQL database.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use semel_testkit::database::Database;
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::support::http::{Message, ask, request};
use crate::support::retrying_client::replayed_parts;
use crate::support::{Gateway, GatewayDirectory, TEST_TIMEOUT};

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\nkey = \"required\"\n";

const ORDER: &str = "{\"amount\":1000,\"currency\":\"EUR\"}";

#[derive(Clone, Copy)]
enum Language {
    Python,
    Node,
}

impl Language {
    /// The variable in which `cargo xtask test` passes the installation: for Python the
    /// interpreter, for Node the directory with `node_modules`.
    fn variable(self) -> &'static str {
        match self {
            Self::Python => "SEMEL_PSYCOPG",
            Self::Node => "SEMEL_NODE_PG",
        }
    }

    /// The command that starts the example; prints `SKIPPED` if it is not installed.
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

/// The example as a process, killed when dropped.
struct Application {
    child: Child,
    url: String,
}

impl Application {
    /// Returns when the process listens.
    fn start(mut command: Command, database: &Database, failure: Option<&str>) -> Self {
        let mut child = command
            .env("DATABASE_URL", &database.url)
            .env("PORT", "0")
            .envs(failure.map(|failure| ("FAIL_ONCE", failure)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the variable names a program that starts");
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next();
        let line = line.expect("its reason is on standard error").unwrap();
        let url = line.strip_prefix("listening ").unwrap().to_owned();
        Self { child, url }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The application behind the gateway.
struct TestBed {
    gateway: Gateway,
    application: Application,
    database: Database,
    _gateway_dir: GatewayDirectory,
    _directory: TempDir,
}

impl TestBed {
    async fn start(language: Language, failure: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let command = language.command(directory.path())?;
        let database = Database::new().await?;
        let application = block_in_place(|| Application::start(command, &database, failure));
        let gateway_dir = GatewayDirectory::new(CONFIG);
        let gateway = block_in_place(|| gateway_dir.start_on(&application.url, &database.url));
        Some(Self {
            gateway,
            application,
            database,
            _gateway_dir: gateway_dir,
            _directory: directory,
        })
    }

    async fn pay(&self) -> Message {
        let request = request("/payments", "invoice-7781", ORDER);
        let asking = ask(self.gateway.address, &request);
        timeout(TEST_TIMEOUT, asking)
            .await
            .expect("no answer")
            .unwrap()
    }

    /// The number of rows in the application's table, and the status of every record.
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

/// Asserts the application's answer to its first order.
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

async fn committed_payment_is_stored_with_its_answer(language: Language) {
    let Some(bed) = TestBed::start(language, None).await else {
        return;
    };
    let first = bed.pay().await;
    assert_paid(&first);
    assert!(!first.is_replay(), "{first:?}");
    assert_eq!(bed.stored().await, (1, completed(1)));
    let again = bed.pay().await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(replayed_parts(&again), replayed_parts(&first));
    assert_eq!(bed.stored().await, (1, completed(1)));
}

async fn crash_after_commit_still_returns_the_stored_answer(language: Language) {
    let Some(mut bed) = TestBed::start(language, Some("after_commit")).await else {
        return;
    };
    let first = bed.pay().await;
    let ended = block_in_place(|| bed.application.child.wait().unwrap());
    assert_eq!(
        ended.code(),
        Some(1),
        "the process did not end with the injected failure"
    );
    assert_eq!(bed.stored().await, (1, completed(1)));
    assert_paid(&first);
    // The replay does not need the application.
    let again = bed.pay().await;
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(replayed_parts(&again), replayed_parts(&first));
}

async fn failure_before_commit_releases_the_key(language: Language) {
    let Some(bed) = TestBed::start(language, Some("before_commit")).await else {
        return;
    };
    let failed = bed.pay().await;
    assert_eq!(failed.status(), 503, "{failed:?}");
    let retryable = vec![("failed_retryable".into(), None, 1)];
    assert_eq!(bed.stored().await, (0, retryable));
    let second = bed.pay().await;
    assert_paid(&second);
    assert!(!second.is_replay(), "{second:?}");
    assert_eq!(bed.stored().await, (1, completed(2)));
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
    committed_payment_is_stored_with_its_answer
    crash_after_commit_still_returns_the_stored_answer
    failure_before_commit_releases_the_key
}
