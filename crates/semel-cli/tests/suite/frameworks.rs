//! Spellings of a path, against stock applications behind the gateway: each framework routes in its
//! own way, and counts its effects itself.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::support::http::{Message, ask, get as fetch};
use crate::support::{Gateway, GatewayDirectory};

pub(crate) const CONFIG: &str = r#"
[tenant]
from = "none"

[[route]]
match = "POST /payments"
operation = "pay"
"#;

/// The request line without its version. No application takes all of them for the same, and each
/// takes several.
const SPELLINGS: [&str; 44] = [
    "POST /payments",
    "POST /payments/",
    "POST /payments//",
    "POST //payments",
    "POST ///payments/",
    "POST /PAYMENTS",
    "POST /Payments/",
    "POST /%70ayments",
    "POST /%50AYMENTS",
    "POST /pay%6Dents",
    "POST /pay%6dents/",
    "POST /./payments",
    "POST /payments/.",
    "POST /x/../payments",
    "POST /../payments",
    "POST /payments/x/..",
    "POST /payments;v=1",
    "POST /payments/;v=1",
    "POST /;x/payments",
    "POST /payments?",
    "POST /payments?x=1",
    "POST /payments/?x=1",
    "POST /%2Fpayments",
    "POST %2Fpayments",
    "POST /payments%2F",
    "POST /payments%2f",
    "POST /%252Fpayments",
    "POST /%2570ayments",
    "POST /%2e/payments",
    "POST /x/%2e%2e/payments",
    "POST /x/.%2E/payments",
    "POST /x/..%2Fpayments",
    "POST /x/..;/payments",
    "POST /x//../payments",
    "POST /payments%00",
    "POST /payments%0A",
    "POST /payments%20",
    "POST /payments%5C",
    "POST /\\payments",
    "POST /payments%3Bv=1",
    "POST /payments%zz",
    "POST /payment\u{17f}",
    "post /payments",
    "POST http://shop/payments",
];

/// Sends a spelling. An application may close the connection without a response.
async fn send(to: SocketAddr, spelling: &str, key: Option<&str>) -> Option<Message> {
    let key = key.map(|key| format!("Idempotency-Key: \"{key}\"\r\n"));
    let key = key.unwrap_or_default();
    let request = format!(
        "{spelling} HTTP/1.1\r\nHost: shop\r\n{key}Content-Type: application/json\r\n\
         Content-Length: 2\r\n\r\n{{}}"
    );
    ask(to, request.as_bytes()).await.ok()
}

/// A running application.
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    _process: Option<Child>,
}

impl App {
    /// Starts a program, which prints its port.
    pub(crate) async fn start(mut command: Command) -> Self {
        // Without the developer's environment.
        command.env_clear();
        command.envs(env::var_os("PATH").map(|path| ("PATH", path)));
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the variable names a program that starts");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next_line().await.unwrap().expect("the program ended");
        Self {
            address: (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into(),
            _process: Some(process),
        }
    }

    pub(crate) async fn effects(&self) -> usize {
        let count = fetch(self.address, "/effects").await.unwrap();
        count.text().parse().unwrap()
    }

    /// How many spellings the application takes for the payment by itself.
    async fn served_spellings(&self) -> usize {
        let before = self.effects().await;
        for spelling in SPELLINGS {
            send(self.address, spelling, None).await;
        }
        self.effects().await - before
    }
}

/// `least`: how many spellings the application takes for the same, so that the test is not about
/// paths that no application serves.
async fn check(app: App, least: usize) {
    let served = app.served_spellings().await;
    assert!(served >= least, "{served} spellings are served");
    let directory = GatewayDirectory::new(CONFIG);
    let gateway: Gateway = directory.start(&format!("http://{}", app.address));

    // No spelling goes around the required key.
    for spelling in SPELLINGS {
        let before = app.effects().await;
        let answer = send(gateway.address, spelling, None).await;
        let effects = app.effects().await - before;
        assert_eq!(effects, 0, "{spelling} without a key: {answer:?}");
    }

    // One effect for a key, whatever spelling comes first and whatever others follow.
    for (number, first) in SPELLINGS.into_iter().enumerate() {
        let before = app.effects().await;
        let key = format!("first-{number}");
        send(gateway.address, first, Some(&key)).await;
        for second in [
            "POST /payments",
            "POST /payments/",
            "POST //PAYMENTS",
            first,
        ] {
            send(gateway.address, second, Some(&key)).await;
        }
        let effects = app.effects().await - before;
        assert!(effects <= 1, "{first} first: {effects} effects");
    }
    let before = app.effects().await;
    let paid = send(gateway.address, "POST /payments", Some("one")).await;
    assert_eq!(paid.map(|paid| paid.status()), Some(201));
    for spelling in SPELLINGS {
        let answer = send(gateway.address, spelling, Some("one")).await;
        // Not a byte of another spelling reaches the application.
        let is_settled = answer
            .as_ref()
            .is_some_and(|answer| answer.is_replay() || matches!(answer.status(), 400 | 422));
        assert!(is_settled, "{spelling}: {answer:?}");
    }
    assert_eq!(app.effects().await - before, 1);
}

/// The variable in which `cargo xtask test` passes the installation.
pub(crate) fn installed(variable: &str) -> Option<std::ffi::OsString> {
    let path = env::var_os(variable).filter(|path| !path.is_empty());
    if path.is_none() {
        println!("SKIPPED: {variable} is not set; `cargo xtask test` installs the framework");
    }
    path
}

pub(crate) fn program(name: &str) -> std::path::PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/frameworks");
    programs.join(name)
}

#[tokio::test]
async fn express_executes_once_for_every_spelling() {
    let Some(directory) = installed("SEMEL_EXPRESS") else {
        return;
    };
    let mut command = Command::new("node");
    command.arg(program("express.mjs")).arg(directory);
    check(App::start(command).await, 5).await;
}

#[tokio::test]
async fn flask_executes_once_for_every_spelling() {
    let Some(python) = installed("SEMEL_PYTHON_WEB") else {
        return;
    };
    let mut command = Command::new(python);
    command.arg(program("flask_app.py"));
    check(App::start(command).await, 4).await;
}

#[tokio::test]
async fn django_executes_once_for_every_spelling() {
    let Some(python) = installed("SEMEL_PYTHON_WEB") else {
        return;
    };
    let mut command = Command::new(python);
    command.arg(program("django_app.py"));
    check(App::start(command).await, 4).await;
}

#[tokio::test]
async fn axum_executes_once_for_every_spelling() {
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&effects);
    let pay = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        StatusCode::CREATED
    };
    let count = move || async move { effects.load(Ordering::SeqCst).to_string() };
    let router = Router::new()
        .route("/payments", post(pay))
        .route("/effects", get(count));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let app = App {
        address,
        _process: None,
    };
    check(app, 2).await;
}
