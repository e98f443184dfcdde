//! The processes of a test: the gateway, and the SDKs in front of it. All end with the test.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::upstream::{Behaviour, Upstream};
use crate::wire::{Heard, Wire};

#[derive(Clone, Copy)]
pub(crate) enum Sdk {
    Python,
    Node,
}

impl Sdk {
    /// `cargo xtask test` installs the SDK and says here where: for Python the interpreter, for
    /// Node the directory with `node_modules`.
    fn variable(self) -> &'static str {
        match self {
            Self::Python => "SEMEL_STRIPE_PYTHON",
            Self::Node => "SEMEL_STRIPE_NODE",
        }
    }

    fn probe(self) -> Option<Command> {
        let installed = env::var_os(self.variable()).filter(|path| !path.is_empty())?;
        let probes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stripe_sdks");
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
        // Nothing of the developer's own settings: a proxy for the way out would be asked for
        // the way to the gateway, too.
        command.env_clear();
        command.envs(env::var_os("PATH").map(|path| ("PATH", path)));
        Some(command)
    }
}

/// The gateway with the stub behind it.
pub(crate) struct World {
    pub(crate) upstream: Upstream,
    sdk: Sdk,
    gateway: SocketAddr,
    _process: Child,
    /// Removed after the gateway has ended: fields are dropped in their order.
    _store: TempDir,
}

impl World {
    /// None, and a word about it, where the SDK is not installed.
    pub(crate) async fn start(sdk: Sdk, behaviour: Behaviour) -> Option<Self> {
        if sdk.probe().is_none() {
            let variable = sdk.variable();
            println!("SKIPPED: {variable} is not set; `cargo xtask test` installs the SDK");
            return None;
        }
        let upstream = Upstream::start(behaviour).await;
        let store = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["gateway", "--dialect=stripe", "--store=sqlite:semel.db"])
            .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .arg(format!("--upstream=http://{}", upstream.address))
            .current_dir(store.path())
            .env_clear()
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = said.next_line().await.unwrap().expect("the gateway ended");
        let address = line.strip_prefix("listening gateway http://").unwrap();
        Some(Self {
            upstream,
            sdk,
            gateway: address.parse().unwrap(),
            _process: process,
            _store: store,
        })
    }

    /// An application of its own, with a connection of its own.
    pub(crate) async fn application(&self) -> Application {
        let wire = Wire::to(self.gateway).await;
        let mut process = self
            .sdk
            .probe()
            .unwrap()
            .arg(format!("http://{}", wire.address))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the variable names a program that starts");
        Application {
            orders: process.stdin.take().unwrap(),
            results: BufReader::new(process.stdout.take().unwrap()).lines(),
            wire,
            _process: process,
        }
    }
}

/// A payment that an application is told to make.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) api_key: &'static str,
    /// The connected account that it is made for, instead of the caller's own.
    pub(crate) account: Option<&'static str>,
    /// Without one the SDK makes its own.
    pub(crate) key: Option<&'static str>,
    pub(crate) amount: u32,
    /// How often the SDK may retry by itself.
    pub(crate) retries: u32,
}

/// A process that uses the SDK.
pub(crate) struct Application {
    wire: Wire,
    orders: ChildStdin,
    results: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Application {
    pub(crate) async fn create(&mut self, order: Order) -> Seen {
        self.begin(order).await;
        self.end().await
    }

    /// Without waiting for the end.
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

    pub(crate) async fn end(&mut self) -> Seen {
        let line = self.results.next_line().await.unwrap();
        let line = line.expect("the probe ended; its reason is on standard error");
        Seen(serde_json::from_str(&line).unwrap())
    }

    /// Waits until the gateway has answered the SDK, whatever the SDK does about it.
    pub(crate) async fn answered(&self) {
        self.wire.answered().await;
    }

    pub(crate) fn heard(&self) -> Heard {
        self.wire.heard()
    }
}

/// What the application sees of a call through the SDK.
#[derive(Debug)]
pub(crate) struct Seen(Value);

impl Seen {
    /// Of the payment that was made.
    pub(crate) fn id(&self) -> &str {
        self.0["id"].as_str().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Of the error that was raised.
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
