//! The processes of a test: the gateway, and applications that use an SDK. All end with the test.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::recording_proxy::{Recording, RecordingProxy};
use super::upstream::{Behaviour, Upstream};

#[derive(Clone, Copy)]
pub(crate) enum Sdk {
    Python,
    Node,
}

impl Sdk {
    /// The variable in which `cargo xtask test` passes the installation: for Python the
    /// interpreter, for Node the directory with `node_modules`.
    fn variable(self) -> &'static str {
        match self {
            Self::Python => "SEMEL_STRIPE_PYTHON",
            Self::Node => "SEMEL_STRIPE_NODE",
        }
    }

    fn probe(self) -> Option<Command> {
        let installed = env::var_os(self.variable()).filter(|path| !path.is_empty())?;
        let probes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/stripe_sdks");
        let mut command = match self {
            Self::Python => {
                let mut command = Command::new(installed);
                command.arg(probes.join("probe.py"));
                command
            }
            Self::Node => {
                let mut command = Command::new("node");
                command.arg(probes.join("probe.mjs")).arg(installed);
                command
            }
        };
        // Without the developer's environment: the SDK would use its proxy settings.
        command.env_clear();
        command.envs(env::var_os("PATH").map(|path| ("PATH", path)));
        Some(command)
    }
}

/// The gateway with the stub behind it.
pub(crate) struct TestBed {
    pub(crate) upstream: Upstream,
    sdk: Sdk,
    gateway: SocketAddr,
    _process: Child,
    /// Removed after the gateway has ended: fields are dropped in their order.
    _store: TempDir,
}

impl TestBed {
    /// Prints `SKIPPED` and returns `None` if the SDK is not installed.
    pub(crate) async fn start(sdk: Sdk, behaviour: Behaviour) -> Option<Self> {
        if sdk.probe().is_none() {
            let variable = sdk.variable();
            println!("SKIPPED: {variable} is not set; `cargo xtask test` installs the SDK");
            return None;
        }
        let upstream = Upstream::start(behaviour).await;
        let store = tempfile::tempdir().unwrap();
        // Each application has a proxy, and so a host, of its own.
        std::fs::write(store.path().join("semel.toml"), "hosts = \"any\"\n").unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["gateway", "--dialect=stripe", "--store=sqlite:semel.db"])
            .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .args(["--tenant=authorization", "--config=semel.toml"])
            .arg(format!("--upstream=http://{}", upstream.address))
            .current_dir(store.path())
            .env_clear()
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().expect("the gateway ended");
        let address = line.strip_prefix("listening gateway http://").unwrap();
        Some(Self {
            upstream,
            sdk,
            gateway: address.parse().unwrap(),
            _process: process,
            _store: store,
        })
    }

    /// Starts an application with its own connection.
    pub(crate) async fn start_application(&self) -> Application {
        let proxy = RecordingProxy::start(self.gateway).await;
        let mut process = self
            .sdk
            .probe()
            .unwrap()
            .arg(format!("http://{}", proxy.address))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the variable names a program that starts");
        Application {
            orders: process.stdin.take().unwrap(),
            results: BufReader::new(process.stdout.take().unwrap()).lines(),
            proxy,
            _process: process,
        }
    }
}

/// A payment that an application makes.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) api_key: &'static str,
    /// The connected account, instead of the caller's own.
    pub(crate) account: Option<&'static str>,
    /// If `None`, the SDK generates a key.
    pub(crate) key: Option<&'static str>,
    pub(crate) amount: u32,
    /// How often the SDK may retry by itself.
    pub(crate) retries: u32,
}

/// A process that uses the SDK.
pub(crate) struct Application {
    proxy: RecordingProxy,
    orders: ChildStdin,
    results: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Application {
    pub(crate) async fn create(&mut self, order: Order) -> SdkResult {
        self.begin(order).await;
        self.end().await
    }

    /// Starts a call without waiting for its end.
    pub(crate) async fn begin(&mut self, order: Order) {
        let line = json!({
            "api_key": order.api_key,
            "account": order.account,
            "key": order.key,
            "amount": order.amount,
            "retries": order.retries,
        });
        let line = format!("{line}\n");
        self.orders.write_all(line.as_bytes()).await.unwrap();
    }

    pub(crate) async fn end(&mut self) -> SdkResult {
        let line = self.results.next_line().await.unwrap();
        let line = line.expect("the probe ended; its reason is on standard error");
        SdkResult(serde_json::from_str(&line).unwrap())
    }

    /// Waits until the gateway has answered the SDK once.
    pub(crate) async fn wait_for_answer(&self) {
        self.proxy.wait_for_answer().await;
    }

    pub(crate) fn recording(&self) -> Recording {
        self.proxy.recording()
    }
}

/// The result of a call, as the SDK returns it to the application.
#[derive(Debug)]
pub(crate) struct SdkResult(Value);

impl SdkResult {
    /// The id of the payment.
    pub(crate) fn id(&self) -> &str {
        self.0["id"].as_str().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// The class of the error.
    pub(crate) fn class(&self) -> &str {
        self.0["class"]
            .as_str()
            .unwrap_or_else(|| panic!("{self:?}"))
    }

    pub(crate) fn code(&self) -> Option<&str> {
        self.0["code"].as_str()
    }

    pub(crate) fn status(&self) -> u64 {
        self.0["status"].as_u64().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.0["headers"][name].as_str()
    }
}
