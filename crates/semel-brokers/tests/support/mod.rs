//! Brokers that a test may kill, and the words in which tests speak.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use semel_brokers::Retries;
use semel_core::Backoff;
use semel_core::outbox::{Event, EventId, Refused, Sink};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Longest wait for something that is about to happen. RabbitMQ takes its time to start.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// Pauses that a test can wait for.
pub(crate) const RETRIES: Retries = Retries {
    backoff: Backoff {
        every: Duration::from_millis(200),
        max_every: Duration::from_secs(1),
    },
    max_tries: 3,
};

/// How often something in another process is looked at again.
const POLL: Duration = Duration::from_millis(20);

/// Where `cargo xtask test` says that a broker is; `None` is said aloud.
pub(crate) fn given(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        println!("SKIPPED: no broker, {variable} is not set");
    }
    url
}

/// A name that no other test has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", EventId::generate())
}

pub(crate) fn event(kind: &str) -> Event {
    Event::new(kind, "payment/pay_789", r#"{"amount":1}"#).unwrap()
}

/// Waits for something in another process, which sends no word.
pub(crate) async fn eventually<F>(what: &str, mut holds: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let waiting = async {
        while !holds().await {
            // sleeps because another process sends no word
            tokio::time::sleep(POLL).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, waiting).await;
    assert!(waited.is_ok(), "not within {LIMIT:?}: {what}");
}

/// The next message, which is on its way.
pub(crate) async fn next<T>(from: &mut mpsc::UnboundedReceiver<T>) -> T {
    let next = tokio::time::timeout(LIMIT, from.recv()).await;
    next.expect("nothing came in time").expect("nobody sends")
}

/// Publishes until the broker is back. Says what came in between.
pub(crate) async fn publish_until_kept(sink: &impl Sink, event: &Event) {
    eventually("the sink recovers", || async {
        match sink.publish(event).await {
            Ok(()) => true,
            Err(Refused::Unavailable(reason)) => {
                println!("not yet: {reason}");
                false
            }
            Err(Refused::Rejected(reason)) => panic!("an event is blamed: {reason}"),
        }
    })
    .await;
}

/// Why a broker could not be reached.
pub(crate) fn reason(refused: Result<(), Refused>) -> String {
    match refused {
        Err(Refused::Unavailable(reason)) => reason.into(),
        Err(Refused::Rejected(_)) | Ok(()) => panic!("must be unavailable: {refused:?}"),
    }
}

/// What became of events that were published while a broker died.
pub(crate) struct Fates {
    pub(crate) kept: Vec<EventId>,
    pub(crate) unclear: usize,
}

/// Publishes 200 events at a time, kills the broker in the middle, and goes on until every
/// publisher has noticed.
pub(crate) async fn publish_and_kill(sink: &impl Sink, broker: &mut Broker, kind: &str) -> Fates {
    const PUBLISHERS: usize = 200;
    const BEFORE: usize = 1000;
    let (sender, mut fates) = mpsc::unbounded_channel();
    let publishers = (0..PUBLISHERS).map(|_| {
        let sender = sender.clone();
        async move {
            loop {
                let event = event(kind);
                let fate = sink.publish(&event).await;
                let over = fate.is_err();
                sender.send((event.id, fate)).unwrap();
                if over {
                    return;
                }
            }
        }
    });
    let publishing = futures_util::future::join_all(publishers);
    let killing = async {
        let mut kept = Vec::new();
        while kept.len() < BEFORE {
            let (id, fate) = next(&mut fates).await;
            assert_eq!(fate, Ok(()), "while the broker is well");
            kept.push(id);
        }
        broker.kill().await;
        kept
    };
    let (_, mut kept) = tokio::join!(publishing, killing);
    let mut unclear = 0;
    while let Ok((id, fate)) = fates.try_recv() {
        match fate {
            Ok(()) => kept.push(id),
            Err(Refused::Unavailable(_)) => unclear += 1,
            Err(Refused::Rejected(reason)) => panic!("an event is blamed: {reason}"),
        }
    }
    assert_eq!(unclear, PUBLISHERS, "each ends");
    Fates { kept, unclear }
}

/// A broker of the test's own. Dropped, it is killed and removed.
pub(crate) struct Broker {
    program: PathBuf,
    port: u16,
    directory: TempDir,
    child: Option<Child>,
    rabbit: Option<Rabbit>,
}

/// What RabbitMQ needs beside its port.
struct Rabbit {
    epmd_port: u16,
    dist_port: u16,
    _epmd: Child,
}

impl Broker {
    /// A NATS, if it is installed.
    pub(crate) async fn nats() -> Option<Self> {
        let program = find("nats-server", &["/usr/sbin"])?;
        Some(Self::started(program, None).await)
    }

    /// A RabbitMQ, if it is installed.
    pub(crate) async fn rabbitmq() -> Option<Self> {
        // Not the one in the search path, which becomes another user.
        let program = Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        if !program.is_file() {
            println!("SKIPPED: rabbitmq-server is not installed");
            return None;
        }
        let epmd = find("epmd", &[])?;
        let epmd_port = free_port();
        let epmd = Command::new(epmd)
            .args(["-port", &epmd_port.to_string(), "-address", "127.0.0.1"])
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let rabbit = Rabbit {
            epmd_port,
            dist_port: free_port(),
            _epmd: epmd,
        };
        Some(Self::started(program.into(), Some(rabbit)).await)
    }

    async fn started(program: PathBuf, rabbit: Option<Rabbit>) -> Self {
        let mut broker = Self {
            program,
            port: free_port(),
            directory: TempDir::new().unwrap(),
            child: None,
            rabbit,
        };
        broker.start().await;
        broker
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.rabbit.is_some() {
            "amqp"
        } else {
            "nats"
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Kills it with SIGKILL: it has no time to write anything.
    pub(crate) async fn kill(&mut self) {
        self.child.take().unwrap().kill().await.unwrap();
    }

    /// Starts it, at the same port and with the same files as before.
    pub(crate) async fn start(&mut self) {
        let mut command = match &self.rabbit {
            None => self.nats_command(),
            Some(rabbit) => self.rabbit_command(rabbit),
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let hello: &[u8] = match &self.rabbit {
            None => b"PING\r\n",
            Some(_) => b"AMQP\x00\x00\x09\x01",
        };
        eventually("the broker answers", || async {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)).await else {
                return false;
            };
            let mut answer = [0; 4];
            stream.write_all(hello).await.is_ok() && stream.read_exact(&mut answer).await.is_ok()
        })
        .await;
    }

    fn nats_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--addr", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--jetstream", "--store_dir"])
            .arg(self.directory.path());
        command
    }

    fn rabbit_command(&self, rabbit: &Rabbit) -> Command {
        let directory = self.directory.path();
        let config = directory.join("rabbitmq.conf");
        let listener = format!("listeners.tcp.default = 127.0.0.1:{}\n", self.port);
        std::fs::write(&config, listener).unwrap();
        let plugins = directory.join("enabled_plugins");
        std::fs::write(&plugins, "[].\n").unwrap();
        let mut command = Command::new(&self.program);
        command
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", directory)
            // Makes the script replace itself with the server, which is to be killed.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("ERL_EPMD_PORT", rabbit.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_CONF_ENV_FILE", directory.join("no-such-file"))
            .env("RABBITMQ_NODENAME", "semel@localhost")
            .env("RABBITMQ_DIST_PORT", rabbit.dist_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", directory.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", directory.join("logs"))
            .env("RABBITMQ_PID_FILE", directory.join("pid"))
            .env("RABBITMQ_CONFIG_FILE", config)
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}",
            );
        command
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A program, in the search path or elsewhere; that there is none is said aloud.
fn find(program: &str, elsewhere: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(elsewhere.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|program| program.is_file());
    if found.is_none() {
        println!("SKIPPED: {program} is not installed");
    }
    found
}
