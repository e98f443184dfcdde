//! `semel demo`: the whole story on embedded defaults, nothing to install.

mod traffic;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use semel_gateway::config::{Environment, Flags, Listen, Source, StoreUrl};
use semel_gateway::{Listening, Role};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A payments app with an unreliable provider, behind the gateway, and commands to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where requests come in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: Listen,

    /// Where operators come in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    admin_listen: Listen,

    /// Where the databases and the provider's ledger are kept; a temporary directory if absent
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Keep clients running that pay, retry and misbehave
    #[arg(long)]
    traffic: bool,
}

/// The gateway's configuration in the demo: also an example to begin with.
const CONFIG: &str = include_str!("demo/semel.toml");

pub(crate) fn run(args: &Args) -> Result<()> {
    let _ = crate::logging::start(crate::logging::Format::Pretty, "warn", None)?;
    // Removed when it goes out of scope, at the end of the demonstration.
    let temporary = tempfile::tempdir().context("cannot create a temporary directory")?;
    let data = args.data.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
    let backend = Backend::start(data)?;
    let source = source(args, data, &backend)?;
    let config = source.load()?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let ready = |listening: &Listening| {
        let gateway = listening.gateway.clone().unwrap_or_default();
        tell(&gateway, &listening.admin, &backend.provider, data);
        if args.traffic {
            tokio::spawn(traffic::run(gateway));
        }
    };
    runtime.block_on(semel_gateway::run(
        config,
        source,
        Role::Gateway,
        None,
        ready,
    ))?;
    backend.stop()
}

fn source(args: &Args, data: &Path, backend: &Backend) -> Result<Source> {
    let file = data.join("demo.toml");
    std::fs::write(&file, CONFIG).with_context(|| format!("cannot write {}", file.display()))?;
    let upstream = backend.app.parse().map_err(anyhow::Error::msg)?;
    Ok(Source {
        file: Some(file),
        flags: Flags {
            listen: Some(args.listen),
            upstream: Some(upstream),
            store: Some(StoreUrl::Sqlite(data.join("semel.db"))),
            admin_listen: Some(args.admin_listen),
            ..Flags::default()
        },
        // What the shell happens to have set does not belong into a demonstration.
        environment: Environment::from_pairs::<&str, &str>([]),
    })
}

/// The payments app and its provider, on a thread of their own.
struct Backend {
    app: String,
    provider: String,
    stop: CancellationToken,
    thread: JoinHandle<Result<()>>,
}

impl Backend {
    fn start(data: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (app, provider) = runtime
            .block_on(async { tokio::try_join!(bind(), bind()) })
            .context("cannot listen on 127.0.0.1")?;
        let url = |listener: &TcpListener| -> Result<String> {
            Ok(format!("http://{}", listener.local_addr()?))
        };
        let (app_url, provider_url) = (url(&app)?, url(&provider)?);
        let mut config = payments::app::Config::new(provider_url.clone());
        config.database = Some(data.join("payments.db"));
        let ledger = payments::provider::Config::with_ledger(data.join("ledger.jsonl"));
        let stop = CancellationToken::new();
        let (app_stop, provider_stop) = (stop.clone(), stop.clone());
        let serving = async move {
            tokio::try_join!(
                payments::app::serve(app, config, app_stop.cancelled_owned()),
                payments::provider::serve(provider, ledger, provider_stop.cancelled_owned()),
            )
        };
        let thread = std::thread::Builder::new()
            .name("demo-backend".to_owned())
            .spawn(move || runtime.block_on(serving).map(drop).map_err(Into::into))
            .context("cannot start a thread")?;
        Ok(Self {
            app: app_url,
            provider: provider_url,
            stop,
            thread,
        })
    }

    fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the payments app died"))?
    }
}

/// Four stories, ready to paste.
fn tell(gateway: &str, admin: &str, provider: &str, data: &Path) {
    let data = data.display();
    // Without a reader there is nobody to tell.
    let _ = write!(
        io::stdout(),
        r#"listening gateway {gateway}
listening admin {admin}

A payments app is behind the gateway, and an unreliable provider behind the app.
What the person on call sees, live:        {admin}/
Its ledger says what was really charged:   curl {provider}/ledger/summary

1. A retry is given the first answer. Run this twice: one charge, and the second answer says
   "idempotent-replayed: true".

curl -i {gateway}/payments -H 'Idempotency-Key: "order-1001-attempts"' -H 'Content-Type: application/json' -d '{{"amount": 1000, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1001"}}'

2. The same key with another amount is refused, and nothing is charged.

curl -i {gateway}/payments -H 'Idempotency-Key: "order-1001-attempts"' -H 'Content-Type: application/json' -d '{{"amount": 9999, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1001"}}'

3. The provider charges the card, and its answer is lost. Nobody knows the outcome, so nobody
   executes again. Run this, and again some seconds later: the reconciler has asked, and the
   retry is given the payment. One charge for order-1003 is in the ledger.

curl -i {gateway}/payments -H 'Idempotency-Key: "order-1003-attempts"' -H 'Content-Type: application/json' -H 'X-Demo-Fault: reset_after_success' -d '{{"amount": 3000, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1003"}}'

4. The connection breaks before the provider reads the request. To the app it looks the same, and
   "the provider does not know it" is no proof: it may only not know it yet. After three looks it
   waits for a person.

curl -i {gateway}/payments -H 'Idempotency-Key: "order-1004-attempts"' -H 'Content-Type: application/json' -H 'X-Demo-Fault: reset_before' -d '{{"amount": 4000, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1004"}}'

   Decide it in a browser, {admin}/dead-letters, or look from here:

semel operations list --admin {admin} --dead-lettered

What is counted:   curl {admin}/metrics
What is kept:      {data}
Ctrl-C stops it all.
"#
    );
    let _ = io::stdout().flush();
}
