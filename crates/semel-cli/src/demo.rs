//! `semel demo`: gateway, payments app and unreliable provider in one process, with embedded
//! stores.

mod traffic;

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use rustix::process::{Signal, getpid, kill_process};
use semel_gateway::config::{Environment, Flags, Listen, Source, StoreUrl};
use semel_gateway::{Listening, Role};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::startup::Settings;

/// Runs a payments app with an unreliable provider behind a gateway, and prints commands to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address for requests
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: Listen,

    /// Address for operators: console, admin API, metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    admin_listen: Listen,

    /// Directory for the databases and the provider's ledger; by default a temporary directory that
    /// is removed at exit
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Also run clients that pay, retry and misuse keys
    #[arg(long)]
    traffic: bool,
}

/// The gateway's configuration; also an example to start from.
const CONFIG: &str = include_str!("demo/semel.toml");

pub(crate) fn run(args: &Args) -> Result<()> {
    let _ = crate::logging::start(crate::logging::Format::Pretty, "warn", None)?;
    // Removed when dropped, at the end of the demo.
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
        // Before anything is printed: a signal that comes earlier than its stream is not seen.
        match signal(SignalKind::hangup()) {
            Ok(hangup) => drop(tokio::spawn(stop_at(hangup))),
            Err(error) => tracing::warn!(%error, "the demo will not end with its terminal"),
        }
        let introduction = Introduction {
            gateway: &gateway,
            admin: &listening.admin,
            provider: &backend.provider,
            semel: &program(),
            data: args.data.as_deref(),
        };
        introduction.print();
        if args.traffic {
            tokio::spawn(traffic::run(gateway));
        }
    };
    let settings = Settings::of(&config);
    let ended = runtime.block_on(semel_gateway::run(
        config,
        source,
        Role::Gateway,
        None,
        ready,
    ));
    ended.map_err(|error| settings.explain(error))?;
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
        // `SEMEL_*` variables of the shell do not apply to the demo.
        environment: Environment::from_pairs::<&str, &str>([]),
    })
}

/// The payments app and its provider, on their own thread.
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
            .map_err(|_| anyhow::anyhow!("the payments app panicked"))?
    }
}

/// The demo ends with its terminal. The gateway reloads its configuration on `SIGHUP` and drains on
/// `SIGTERM`, so one is turned into the other.
async fn stop_at(mut hangup: tokio::signal::unix::Signal) {
    hangup.recv().await;
    if let Err(error) = kill_process(getpid(), Signal::TERM) {
        tracing::error!(%error, "cannot stop at SIGHUP");
    }
}

/// How the shell calls this program: `semel` if that is this program, else its path.
fn program() -> String {
    let Ok(this) = std::env::current_exe() else {
        return "semel".to_owned();
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path)
        .map(|directory| directory.join("semel"))
        .find(|file| file.is_file());
    if first.is_some_and(|first| is_same_file(&first, &this)) {
        return "semel".to_owned();
    }
    quote(&this.display().to_string())
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// A word for a POSIX shell.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// What the demo prints: where it listens, and commands that run as printed.
struct Introduction<'a> {
    gateway: &'a str,
    admin: &'a str,
    provider: &'a str,
    semel: &'a str,
    /// `--data`; without it the data is removed at exit.
    data: Option<&'a Path>,
}

impl Introduction<'_> {
    /// A closed standard output is not an error.
    fn print(&self) {
        let _ = write!(io::stdout(), "{self}");
        let _ = io::stdout().flush();
    }
}

impl fmt::Display for Introduction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gateway,
            admin,
            provider,
            semel,
            data,
        } = self;
        let data = match data {
            Some(data) => format!("The data stays in {}.", data.display()),
            None => "The data is removed at exit; keep it with --data DIR.".to_owned(),
        };
        write!(
            f,
            r#"listening gateway {gateway}
listening admin {admin}

A payments app runs behind the gateway, and an unreliable provider behind the app.
Console:                          {admin}/
Charges in the provider's ledger: curl {provider}/ledger/summary
Metrics:                          curl {admin}/metrics

1. A retry gets the first response. Run this twice: there is one charge, and the second response
   has "idempotent-replayed: true".

curl -i {gateway}/payments -H 'Idempotency-Key: "c0ffee00-1001-4000-8000-000000000001"' -H 'Content-Type: application/json' -d '{{"amount": 1000, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1001"}}'

2. The same key with another amount is refused, and nothing is charged.

curl -i {gateway}/payments -H 'Idempotency-Key: "c0ffee00-1001-4000-8000-000000000001"' -H 'Content-Type: application/json' -d '{{"amount": 9999, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1001"}}'

3. The provider charges the card, but its response is lost. The outcome is unknown, so a retry does
   not execute. Run this, and again some seconds later: the reconciler has looked the payment up,
   and the retry gets it. The ledger has one charge for order-1003.

curl -i {gateway}/payments -H 'Idempotency-Key: "c0ffee00-1003-4000-8000-000000000003"' -H 'Content-Type: application/json' -H 'X-Demo-Fault: reset_after_success' -d '{{"amount": 3000, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1003"}}'

4. The connection breaks before the provider reads the request. To the app it looks the same, and
   a 404 from the provider does not prove that the request will not arrive later. After three
   lookups the operation is dead-lettered and waits for an operator.

curl -i {gateway}/payments -H 'Idempotency-Key: "c0ffee00-1004-4000-8000-000000000004"' -H 'Content-Type: application/json' -H 'X-Demo-Fault: reset_before' -d '{{"amount": 4000, "currency": "EUR", "account": "acc_1", "merchant_reference": "order-1004"}}'

   Resolve it in a browser, {admin}/dead-letters, or list it here:

{semel} operations list --admin {admin} --dead-lettered

{data}
Ctrl-C stops the demo.
"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_special_characters_is_quoted_for_the_shell() {
        assert_eq!(quote("/usr/bin/semel"), "/usr/bin/semel");
        assert_eq!(quote("/my files/semel"), "'/my files/semel'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}
