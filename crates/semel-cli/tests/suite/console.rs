//! The console in a real browser: an on-call engineer logs in, finds an unknown record, resolves it,
//! and a retry replays the recorded response.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::support::http::Connection;
use crate::support::http::{ask, request};
use crate::support::{Gateway, GatewayDirectory};

const OPERATOR: &str = "the-operators-token-4f2a";
const VIEWER: &str = "the-viewers-token-9c1d";

/// Names the interpreter that has Playwright, and the browser. `cargo xtask test` sets both.
const PLAYWRIGHT: &str = "SEMEL_PLAYWRIGHT";
const CHROMIUM: &str = "SEMEL_CHROMIUM";

/// The directory for screenshots; default: a temporary one. `SEMEL_PICTURES=docs/images` refreshes the
/// images of the documentation.
const PICTURES: &str = "SEMEL_PICTURES";

const ROUTE: &str = "hosts = \"any\"\n[tenant]\nfrom = \"none\"\n\n[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n";

/// A hang is a failure. The browser alone takes seconds to start on a busy machine.
const LIMIT: Duration = Duration::from_mins(5);

/// An application that responds, responds with hostile content, or disconnects after the work is done.
async fn serve(stream: TcpStream) {
    let mut connection = Connection::accepted(stream);
    while let Ok(asked) = connection.read().await {
        let body = match asked.member("reference").as_deref() {
            Some("lost") => return,
            Some("hostile") => "<script>alert('stored')</script>\u{1b}[2J\u{1b}]0;owned\u{7}",
            _ => "{\"id\":\"pay_1\"}",
        };
        let answer = format!(
            "HTTP/1.1 201 Created\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if connection
            .stream()
            .write_all(answer.as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

async fn application() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    format!("http://{address}")
}

fn variable_or_skip(variable: &str) -> Option<String> {
    let value = env::var(variable).unwrap_or_default();
    if value.is_empty() {
        println!("SKIPPED: {variable} is not set; `cargo xtask test` installs what it names");
        return None;
    }
    Some(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_and_resolves_an_unknown_record() {
    let (Some(python), Some(chromium)) = (variable_or_skip(PLAYWRIGHT), variable_or_skip(CHROMIUM))
    else {
        return;
    };
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let upstream = application().await;
    let mut command = gateway_dir.command(&upstream);
    command
        .env("SEMEL_ADMIN_TOKEN", OPERATOR)
        .env("SEMEL_VIEWER_TOKEN", VIEWER)
        .env("RUST_LOG", "error");
    let gateway = tokio::task::block_in_place(|| Gateway::start(command));
    let (lost, hostile) = ("order-lost-8842", "order-hostile-17");
    for (key, reference, status) in [(lost, "lost", 504), (hostile, "hostile", 201)] {
        let payment = format!("{{\"reference\":\"{reference}\"}}");
        let payment = request("/payments", key, &payment);
        let answer = ask(gateway.address, &payment).await.unwrap();
        assert_eq!(answer.status(), status, "{reference}");
    }
    let pictures =
        env::var_os(PICTURES).map_or_else(|| gateway_dir.path("pictures"), PathBuf::from);
    std::fs::create_dir_all(&pictures).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/console/drive.py");
    let mut driver = Command::new(python);
    driver
        .arg(script)
        .env_clear()
        .envs(["PATH", "HOME"].map(|name| (name, env::var_os(name).unwrap_or_default())))
        .env("ADMIN", format!("http://{}", gateway.admin))
        .env("GATEWAY", format!("http://{}", gateway.address))
        .envs([("OPERATOR", OPERATOR), ("VIEWER", VIEWER)])
        .envs([("LOST", lost), ("HOSTILE", hostile)])
        .env("CHROMIUM", chromium)
        .env("SHOTS", &pictures)
        .kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, driver.output()).await;
    let output = output.expect("the browser hangs").unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}
