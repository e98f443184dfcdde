//! `semel console` and `semel worker` as processes, without an upstream.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::task::block_in_place;

use crate::support::http::ask;

/// A running `semel console` or `semel worker`, killed when dropped.
struct AdminProcess {
    child: Child,
    admin: SocketAddr,
}

fn semel(directory: &Path, command: &str) -> Command {
    let mut semel = Command::new(env!("CARGO_BIN_EXE_semel"));
    semel
        .args([
            command,
            "--store=sqlite:semel.db",
            "--admin-listen=127.0.0.1:0",
        ])
        .current_dir(directory)
        .env_clear();
    semel
}

impl AdminProcess {
    /// Returns when the admin listener is announced, which is the only one.
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let line = stdout.lines().next().unwrap().unwrap();
        let admin = line.strip_prefix("listening admin http://");
        let admin = admin.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { child, admin }
    }

    async fn get(&self, path: &str) -> String {
        // Without a token, the listener serves requests to this machine only.
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        let answer = ask(self.admin, request.as_bytes()).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.text().clone()
    }
}

impl Drop for AdminProcess {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn console_serves_a_store_without_upstream_and_background_jobs() {
    let directory = tempfile::tempdir().unwrap();
    // Polls the upstream, which is not configured.
    let config = "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n\
                  [route.reconcile]\npoll = \"GET /by/{operation_id}\"\ncompleted = \"200\"\n";
    std::fs::write(directory.path().join("semel.toml"), config).unwrap();
    for args in [&[][..], &["--config=semel.toml"]] {
        let mut command = semel(directory.path(), "console");
        command.args(args);
        let mut console = block_in_place(|| AdminProcess::start(command));
        assert_eq!(console.get("/readyz").await, "ready\n");
        for path in ["/", "/operations", "/dead-letters", "/api/v1/stats"] {
            console.get(path).await;
        }
        let metrics = console.get("/metrics").await;
        assert!(!metrics.contains("semel_worker_ticks_total{"), "{metrics}");
        kill_process(Pid::from_child(&console.child), Signal::TERM).unwrap();
        assert_eq!(
            block_in_place(|| console.child.wait()).unwrap().code(),
            Some(0)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_needs_an_upstream_only_where_a_route_polls_it() {
    let directory = tempfile::tempdir().unwrap();
    let route = |poll: &str| {
        let text = format!(
            "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n\
             [route.reconcile]\npoll = \"GET {poll}\"\ncompleted = \"200\"\n"
        );
        std::fs::write(directory.path().join("semel.toml"), text).unwrap();
        let mut command = semel(directory.path(), "worker");
        command.arg("--config=semel.toml");
        command
    };
    let refused = route("/by/{operation_id}").output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(
        message.contains("[route.reconcile] of \"POST /payments\" polls the upstream"),
        "{message}"
    );
    let absolute = route("http://127.0.0.1:1/by/{operation_id}");
    for command in [semel(directory.path(), "worker"), absolute] {
        let worker = block_in_place(|| AdminProcess::start(command));
        assert_eq!(worker.get("/readyz").await, "ready\n");
    }
}
