//! `semel check` and `semel bench` against the demo, the gateway in both dialects, and an
//! unguarded application.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command as AsyncCommand;

/// Long enough for a busy machine.
const TIMEOUT: &str = "--operation-timeout=10s";

async fn semel(args: &[&str]) -> Output {
    AsyncCommand::new(env!("CARGO_BIN_EXE_semel"))
        .args(args)
        .env_clear()
        .output()
        .await
        .unwrap()
}

/// The exit code and the JSON report.
async fn check(args: &[&str]) -> (Option<i32>, Value) {
    let output = semel(&[&["check", TIMEOUT, "--json"], args].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{err}"));
    (output.status.code(), report)
}

fn with<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let probes = report["probes"].as_array().unwrap().iter();
    let found = probes.filter(|probe| probe["verdict"] == verdict);
    found.map(|probe| probe["id"].as_str().unwrap()).collect()
}

/// A process that is killed when the test is over.
struct ProcessGuard(Child);

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `semel demo`: its gateway and its provider.
fn demo() -> (ProcessGuard, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["demo", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
        .env_clear()
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut after = |mark: &str| loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the demo ended");
        if let Some((_, rest)) = line.split_once(mark) {
            return rest.trim().to_owned();
        }
    };
    let gateway = after("listening gateway ");
    let summary = after("Charges in the provider's ledger: curl ");
    let provider = summary.trim_end_matches("/ledger/summary").to_owned();
    (ProcessGuard(child), gateway, provider)
}

#[tokio::test]
async fn the_demo_passes_every_probe_that_applies() {
    let (_demo, gateway, provider) = demo();
    let url = format!("{gateway}/payments");
    let count = format!("--count-url={provider}/ledger/count?reference={{reference}}");
    let (code, report) = check(&[
        &url,
        &count,
        "--disruptive",
        "--case=slow=X-Demo-Fault: slow:1500",
        "--case=timeout=X-Demo-Fault: reset_after_success",
        "--case=declined=X-Demo-Fault: decline",
        "--header=Authorization: Bearer first-customer",
        "--other-header=Authorization: Bearer other-customer",
    ])
    .await;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["dialect"], "ietf");
    assert_eq!(report["counts"]["pass"], 13, "{report:#}");
    let unseen = [
        "oversized_response",
        "failed_completion",
        "crash_and_restart",
    ];
    assert_eq!(with(&report, "not_seen"), unseen);
    assert!(!report.to_string().contains("first-customer"), "{report:#}");

    let output = semel(&[
        "bench",
        &url,
        "--connections=4",
        "--duration=500ms",
        "--json",
    ])
    .await;
    assert_eq!(output.status.code(), Some(0));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    for part in ["new", "replay", "duplicates"] {
        let part = &figures[part];
        assert_eq!(part["errors"], 0, "{figures:#}");
        assert!(part["requests"].as_u64().unwrap() > 0, "{figures:#}");
        assert!(
            part["p50_ms"].as_f64() <= part["max_ms"].as_f64(),
            "{figures:#}"
        );
    }
    assert_eq!(figures["new"]["replayed"], 0, "{figures:#}");
    assert_eq!(
        figures["replay"]["replayed"], figures["replay"]["requests"],
        "{figures:#}"
    );
}

/// The payments application and its provider, unguarded: every execution is a charge.
async fn start_unguarded() -> (String, String) {
    let (app, provider) = (listen().await, listen().await);
    let mut config = payments::app::Config::new(provider.1.clone());
    config.heeds_gateway = false;
    tokio::spawn(payments::app::serve(app.0, config, std::future::pending()));
    let ledger = payments::provider::Config::default();
    tokio::spawn(payments::provider::serve(
        provider.0,
        ledger,
        std::future::pending(),
    ));
    (app.1, provider.1)
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// A gateway that a command kills and starts again, on an address that stays the same.
struct Gateway {
    directory: TempDir,
    url: String,
}

impl Gateway {
    async fn start(upstream: &str, dialect: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The port is free when the listener is dropped, and unlikely to be taken before the gateway starts.
        let (_, url) = listen().await;
        let listen = url.trim_start_matches("http://");
        let config = "[policy]\nlease = \"1s\"\nmax_response = \"512B\"\n\
                      [[route]]\nmatch = \"POST /payments\"\nkey = \"required\"\n";
        std::fs::write(directory.path().join("semel.toml"), config).unwrap();
        let script = format!(
            "cd {directory} && {semel} gateway --config semel.toml --upstream {upstream} \
             --tenant authorization --listen {listen} --admin-listen 127.0.0.1:0 --store sqlite:semel.db \
             --dialect {dialect} >out 2>log & echo $! > {directory}/pid",
            directory = directory.path().display(),
            semel = env!("CARGO_BIN_EXE_semel"),
        );
        std::fs::write(directory.path().join("start"), script).unwrap();
        let gateway = Self { directory, url };
        gateway.shell(&format!("sh {}", gateway.file("start")));
        gateway
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn crash(&self) -> String {
        format!(
            "kill -9 $(cat {}); sh {}",
            self.file("pid"),
            self.file("start")
        )
    }

    fn shell(&self, command: &str) {
        let directory: &Path = self.directory.path();
        let status = Command::new("sh")
            .arg("-c")
            .arg(command)
            .current_dir(directory)
            .status();
        assert!(status.unwrap().success(), "{command}");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shell(&format!("kill -9 $(cat {})", self.file("pid")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_keeps_its_guarantees_in_both_dialects_and_through_a_crash() {
    let (app, provider) = start_unguarded().await;
    let count = format!("--count-url={provider}/ledger/count?reference={{reference}}");
    for dialect in ["ietf", "stripe"] {
        let gateway = Gateway::start(&app, dialect).await;
        let url = format!("{}/payments", gateway.url);
        wait_until_listening(&gateway.url).await;
        let crash = format!("--crash-command={}", gateway.crash());
        let large = format!(
            r#"--case=large=body:{{"amount":1000,"currency":"EUR","account":"{}","merchant_reference":"{{reference}}"}}"#,
            "x".repeat(250)
        );
        let (code, report) = check(&[
            &url,
            &count,
            "--dialect=auto",
            "--disruptive",
            "--case=slow=X-Demo-Fault: slow:2500",
            "--case=timeout=X-Demo-Fault: reset_after_success",
            "--case=declined=X-Demo-Fault: decline",
            &large,
            "--header=Authorization: Bearer first-customer",
            "--other-header=Authorization: Bearer other-customer",
            &crash,
        ])
        .await;
        assert_eq!(code, Some(0), "{dialect}: {report:#}");
        assert_eq!(report["dialect"], dialect);
        assert_eq!(report["counts"]["pass"], 15, "{dialect}: {report:#}");
        // Nothing here can break a file that only the gateway has open.
        assert_eq!(
            with(&report, "not_seen"),
            ["failed_completion"],
            "{dialect}"
        );
    }
}

async fn wait_until_listening(url: &str) {
    let address = url.trim_start_matches("http://");
    let connecting = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            // sleeps because another process starts, without a notification.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::support::TEST_TIMEOUT, connecting)
        .await
        .expect("the gateway does not listen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unguarded_application_fails_the_check() {
    let (app, provider) = start_unguarded().await;
    let directory = tempfile::tempdir().unwrap();
    let junit = directory.path().join("report.xml");
    let url = format!("{app}/payments");
    let args = [
        "check",
        &url,
        &format!("--count-url={provider}/ledger/count?reference={{reference}}"),
        &format!("--junit={}", junit.display()),
    ];
    let output = semel(&args).await;
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        !table.contains('\u{1b}'),
        "colours belong on a terminal: {table}"
    );
    for part in [
        "FAIL      replay",
        "FAIL      different_body ",
        "FAIL      concurrent_duplicates",
        "FAIL      malformed_key",
        "it was executed 3 times",
        "A client that lost the response can only retry.",
        "skipped   slow_operation",
    ] {
        assert!(table.contains(part), "{part:?} is not in:\n{table}");
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "semel: not every guarantee holds\n");
    let junit = std::fs::read_to_string(junit).unwrap();
    assert!(
        junit.contains("<testcase classname=\"semel.check\" name=\"replay\">"),
        "{junit}"
    );
}

#[tokio::test]
async fn exit_code_is_1_for_failures_and_2_for_usage_errors() {
    let (_, closed) = listen().await;
    for (args, code, part) in [
        (&["check"][..], 2, "<URL>"),
        (&["check", "shop"], 2, "http://"),
        (&["check", "ftp://shop/"], 2, "start it with http://"),
        (&["check", &closed, "--case=odd=A: b"], 2, "unknown case"),
        (&["check", &closed, "--header=odd"], 2, "NAME: VALUE"),
        (&["check", &closed, "--operation-timeout=30"], 2, "30s"),
        (&["check", &closed, "--count-url=odd"], 2, "--count-url"),
        (
            &["check", &closed, "--break-store-command=x"],
            2,
            "--heal-store-command",
        ),
        (&["check", &closed], 1, "no response from"),
        (&["bench"], 2, "<URL>"),
        (&["bench", &closed, "--connections=1"], 2, "--connections"),
        (&["bench", &closed], 1, "no response from"),
    ] {
        let output = semel(args).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
