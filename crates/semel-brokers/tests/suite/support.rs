//! Brokers that a test can kill, and helpers that the tests share.

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

/// The longest wait for an expected event. RabbitMQ starts slowly.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// A retry policy with delays that are short enough for a test.
pub(crate) const RETRIES: Retries = Retries {
    backoff: Backoff {
        every: Duration::from_millis(200),
        max_every: Duration::from_secs(1),
    },
    max_tries: 3,
};

/// The interval at which the state of another process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The address of a broker that `cargo xtask test` started. Prints a line if there is none, and the
/// test skips.
pub(crate) fn broker_url(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        println!("SKIPPED: no broker, {variable} is not set");
    }
    url
}

/// A name that no other test uses.
pub(crate) fn unique_name(name: &str) -> String {
    format!("{name}-{}", EventId::generate())
}

pub(crate) fn event(kind: &str) -> Event {
    Event::new(kind, "payment/pay_789", r#"{"amount":1}"#).unwrap()
}

/// Polls until a condition in another process holds.
pub(crate) async fn eventually<F>(condition: &str, mut holds: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let waiting = async {
        while !holds().await {
            // sleeps because another process sends no notification
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, waiting).await;
    assert!(waited.is_ok(), "not within {LIMIT:?}: {condition}");
}

/// Waits for the next value of a channel.
pub(crate) async fn next<T>(from: &mut mpsc::UnboundedReceiver<T>) -> T {
    let next = tokio::time::timeout(LIMIT, from.recv()).await;
    next.expect("timed out").expect("the channel is closed")
}

/// Publishes an event until the broker confirms it, and prints the errors before.
pub(crate) async fn publish_until_confirmed(sink: &impl Sink, event: &Event) {
    eventually("the sink recovers", || async {
        match sink.publish(event).await {
            Ok(()) => true,
            Err(Refused::Unavailable(reason)) => {
                println!("not yet: {reason}");
                false
            }
            Err(Refused::Rejected(reason)) => panic!("the event was rejected: {reason}"),
        }
    })
    .await;
}

/// The reason why an event could not be published. Panics unless the broker was unavailable.
pub(crate) fn unavailable_reason(refused: Result<(), Refused>) -> String {
    match refused {
        Err(Refused::Unavailable(reason)) => reason.into(),
        Err(Refused::Rejected(_)) | Ok(()) => panic!("must be unavailable: {refused:?}"),
    }
}

/// The results of publishing while a broker was killed.
pub(crate) struct PublishResults {
    pub(crate) confirmed: Vec<EventId>,
    pub(crate) unconfirmed: usize,
}

/// Publishes with 200 concurrent publishers, kills the broker after 1000 confirmations, and waits
/// until every publisher has got an error.
pub(crate) async fn publish_and_kill(
    sink: &impl Sink,
    broker: &mut Broker,
    kind: &str,
) -> PublishResults {
    const PUBLISHERS: usize = 200;
    const CONFIRMED_BEFORE_KILL: usize = 1000;
    let (sender, mut results) = mpsc::unbounded_channel();
    let publishers = (0..PUBLISHERS).map(|_| {
        let sender = sender.clone();
        async move {
            loop {
                let event = event(kind);
                let result = sink.publish(&event).await;
                let has_failed = result.is_err();
                sender.send((event.id, result)).unwrap();
                if has_failed {
                    return;
                }
            }
        }
    });
    let publishing = futures_util::future::join_all(publishers);
    let killing = async {
        let mut confirmed = Vec::new();
        while confirmed.len() < CONFIRMED_BEFORE_KILL {
            let (id, result) = next(&mut results).await;
            assert_eq!(result, Ok(()), "before the broker is killed");
            confirmed.push(id);
        }
        broker.kill().await;
        confirmed
    };
    let (_, mut confirmed) = tokio::join!(publishing, killing);
    let mut unconfirmed = 0;
    while let Ok((id, result)) = results.try_recv() {
        match result {
            Ok(()) => confirmed.push(id),
            Err(Refused::Unavailable(_)) => unconfirmed += 1,
            Err(Refused::Rejected(reason)) => panic!("the event was rejected: {reason}"),
        }
    }
    assert_eq!(unconfirmed, PUBLISHERS, "one error for each publisher");
    PublishResults {
        confirmed,
        unconfirmed,
    }
}

/// A broker process that belongs to one test. Dropping it kills the process and deletes its files.
pub(crate) struct Broker {
    program: PathBuf,
    port: u16,
    directory: TempDir,
    child: Option<Child>,
    rabbit: Option<RabbitPorts>,
}

/// The ports and the port mapper that RabbitMQ needs in addition.
struct RabbitPorts {
    epmd_port: u16,
    dist_port: u16,
    _epmd: Child,
}

impl Broker {
    /// Starts a NATS server, if it is installed.
    pub(crate) async fn start_nats() -> Option<Self> {
        let program = find_program("nats-server", &["/usr/sbin"])?;
        Some(Self::start_new(program, None).await)
    }

    /// Starts a RabbitMQ server, if it is installed.
    pub(crate) async fn start_rabbitmq() -> Option<Self> {
        // The script in the search path would change to another user.
        let program = Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        if !program.is_file() {
            println!("SKIPPED: rabbitmq-server is not installed");
            return None;
        }
        let epmd = find_program("epmd", &[])?;
        let epmd_port = free_port();
        let epmd = Command::new(epmd)
            .args(["-port", &epmd_port.to_string(), "-address", "127.0.0.1"])
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let rabbit = RabbitPorts {
            epmd_port,
            dist_port: free_port(),
            _epmd: epmd,
        };
        Some(Self::start_new(program.into(), Some(rabbit)).await)
    }

    async fn start_new(program: PathBuf, rabbit: Option<RabbitPorts>) -> Self {
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

    /// Kills the process with SIGKILL, so that it cannot flush anything.
    pub(crate) async fn kill(&mut self) {
        self.child.take().unwrap().kill().await.unwrap();
    }

    /// Starts the process, on the same port and with the same files as before.
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
        eventually("the broker responds", || async {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)).await else {
                return false;
            };
            let mut response = [0; 4];
            stream.write_all(hello).await.is_ok() && stream.read_exact(&mut response).await.is_ok()
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

    fn rabbit_command(&self, rabbit: &RabbitPorts) -> Command {
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
            // Makes the script replace itself with the server process, so that `kill` reaches it.
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

/// Finds a program in the search path or in these directories. Prints a line if there is none.
fn find_program(program: &str, directories: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(directories.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|program| program.is_file());
    if found.is_none() {
        println!("SKIPPED: {program} is not installed");
    }
    found
}
