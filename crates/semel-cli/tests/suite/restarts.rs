//! Gateways are restarted one after the other under load, and no client notices: behind a load balancer
//! that probes them, and on one machine, where the new process shares the port of the old one.
//!
//! By hand, at the rate of a release: `SEMEL_RESTART_RATE=2000`, with the `SEMEL_RESTART_PROGRAM` that is
//! shipped and, where it is not a file, its `SEMEL_RESTART_STORE`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use semel_core::Status;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::support::http::{Connection, get, payment};
use crate::support::{Gateway, GatewayDirectory, TEST_TIMEOUT, semel};

/// Longer than a probe, and than a client pauses, also on a busy machine.
const CONFIG: &str = "reuse_port = SHARED
[policy]
drain_delay = \"2s\"
[[route]]
match = \"POST /payments\"
";

const GATEWAYS: usize = 3;

/// How often the balancer probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Requests of all clients in a second, unless the variable says otherwise. A slow machine sends
/// fewer.
const RATE: u32 = 100;

/// Requests of one client in a second. Half of the clients keep their connection open, the others open
/// one for each request.
const RATE_OF_A_CLIENT: u32 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_behind_a_load_balancer_fails_no_request() {
    let app = App::start().await;
    let fleet = Fleet::new(&CONFIG.replace("SHARED", "false"), &app);
    let mut gateways = Vec::new();
    for _ in 0..GATEWAYS {
        gateways.push(fleet.start("127.0.0.1:0", "127.0.0.1:0"));
    }
    let addresses = gateways.iter().map(|one| (one.address, one.admin));
    let load = Load::start(addresses.collect(), Balancing::Probes);
    for position in 0..GATEWAYS {
        load.wait_for_more_answers().await;
        let old = gateways.remove(position);
        let (address, admin) = (old.address.to_string(), old.admin.to_string());
        old.signal(Signal::TERM);
        let (status, log) = old.wait_for_exit().await;
        assert_eq!(status.code(), Some(0), "{log}");
        gateways.insert(position, fleet.start(&address, &admin));
    }
    load.wait_for_more_answers().await;
    load.finish(&app).await;
    drop(gateways);
    fleet.expect_no_unknown_record().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_takes_over_the_port_of_another_and_fails_no_request() {
    let app = App::start().await;
    let fleet = Fleet::new(&CONFIG.replace("SHARED", "true"), &app);
    let mut gateway = fleet.start("127.0.0.1:0", "127.0.0.1:0");
    let (address, admin) = (gateway.address, gateway.admin);
    let load = Load::start(vec![(address, admin)], Balancing::Kernel);
    for _ in 0..GATEWAYS {
        load.wait_for_more_answers().await;
        let next = fleet.start(&address.to_string(), &admin.to_string());
        let old = std::mem::replace(&mut gateway, next);
        old.signal(Signal::TERM);
        let (status, log) = old.wait_for_exit().await;
        assert_eq!(status.code(), Some(0), "{log}");
    }
    load.wait_for_more_answers().await;
    load.finish(&app).await;
    drop(gateway);
    fleet.expect_no_unknown_record().await;
}

/// Gateways with one configuration and one store.
struct Fleet {
    directory: GatewayDirectory,
    store: Option<String>,
    upstream: String,
}

impl Fleet {
    fn new(config: &str, app: &App) -> Self {
        Self {
            directory: GatewayDirectory::new(config),
            store: std::env::var("SEMEL_RESTART_STORE").ok(),
            upstream: format!("http://{}", app.address),
        }
    }

    fn start(&self, listen: &str, admin: &str) -> Gateway {
        let file = format!("sqlite:{}", self.directory.store().display());
        let mut command = match std::env::var_os("SEMEL_RESTART_PROGRAM") {
            Some(program) => {
                let mut command = Command::new(program);
                command.arg("gateway").env_clear();
                command.current_dir(self.directory.path(""));
                command
            }
            None => semel(&self.directory.path("")),
        };
        command.args(["--config", "semel.toml", "--upstream", &self.upstream]);
        command.args(["--listen", listen, "--admin-listen", admin]);
        command.args(["--store", self.store.as_ref().unwrap_or(&file)]);
        block_in_place(|| Gateway::start(command))
    }

    /// In a store that is not a file, the clients have seen none.
    async fn expect_no_unknown_record(&self) {
        if self.store.is_none() {
            let unknown = self.directory.records(Some(Status::Unknown)).await;
            assert!(unknown.is_empty(), "{unknown:?}");
        }
    }
}

/// How a client chooses a gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Balancing {
    /// Among those that are ready.
    Probes,
    /// There is only one address.
    Kernel,
}

/// Clients that pay at a steady rate, each payment under its own key.
struct Load {
    state: Arc<LoadState>,
    clients: JoinSet<()>,
    began: Instant,
}

struct LoadState {
    gateways: Vec<(SocketAddr, AtomicBool)>,
    answers: AtomicUsize,
    failures: Mutex<Vec<String>>,
    /// Connections that the kernel reset before the gateway had them: see `docs/gateway.md`.
    resets: AtomicUsize,
    balancing: Balancing,
    ended: AtomicBool,
}

impl Load {
    fn start(gateways: Vec<(SocketAddr, SocketAddr)>, balancing: Balancing) -> Self {
        let rate = std::env::var("SEMEL_RESTART_RATE").map_or(RATE, |rate| rate.parse().unwrap());
        let addresses = gateways.iter().map(|(address, _)| *address);
        let state = Arc::new(LoadState {
            gateways: addresses
                .map(|address| (address, AtomicBool::new(true)))
                .collect(),
            answers: AtomicUsize::new(0),
            failures: Mutex::default(),
            resets: AtomicUsize::new(0),
            balancing,
            ended: AtomicBool::new(false),
        });
        let mut clients = JoinSet::new();
        if balancing == Balancing::Probes {
            for (position, (_, admin)) in gateways.into_iter().enumerate() {
                clients.spawn(Arc::clone(&state).probe(position, admin));
            }
        }
        let pause = Duration::from_secs(1) / RATE_OF_A_CLIENT;
        for client in 0..rate / RATE_OF_A_CLIENT {
            let client = usize::try_from(client).unwrap();
            clients.spawn(Arc::clone(&state).pay(client, pause));
        }
        let began = Instant::now();
        Self {
            state,
            clients,
            began,
        }
    }

    /// Returns when every client has had time for several more answers.
    async fn wait_for_more_answers(&self) {
        let wanted = self.state.answers.load(Ordering::SeqCst) + self.clients.len() * 5;
        let answered = async {
            while self.state.answers.load(Ordering::SeqCst) < wanted {
                tokio::time::sleep(PROBE_INTERVAL).await; // sleeps because it polls the clients
            }
        };
        let answered = timeout(TEST_TIMEOUT, answered).await;
        let failures = self.state.failures.lock().unwrap().join("\n");
        answered.unwrap_or_else(|_| panic!("the clients have no answers: {failures}"));
    }

    async fn finish(mut self, app: &App) {
        self.state.ended.store(true, Ordering::SeqCst);
        while let Some(client) = self.clients.join_next().await {
            client.unwrap();
        }
        let failures = self.state.failures.lock().unwrap();
        assert!(failures.is_empty(), "{}: {failures:#?}", failures.len());
        let resets = self.state.resets.load(Ordering::SeqCst);
        assert!(resets <= GATEWAYS, "{resets} connections were reset");
        let answers = self.state.answers.load(Ordering::SeqCst);
        let executions = app.executions.lock().unwrap();
        assert_eq!(executions.len(), answers);
        assert!(executions.values().all(|times| *times == 1));
        let rate = answers as u64 / self.began.elapsed().as_secs().max(1);
        println!("{answers} payments, {rate} in a second, no failure");
    }
}

impl LoadState {
    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    async fn probe(self: Arc<Self>, position: usize, admin: SocketAddr) {
        let mut next = interval(PROBE_INTERVAL);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_ended() {
            next.tick().await;
            let answer = get(admin, "/readyz").await;
            let is_ready = answer.is_ok_and(|answer| answer.status() == 200);
            self.gateways[position].1.store(is_ready, Ordering::SeqCst);
        }
    }

    /// Half of the clients keep their connection while the gateway lets them.
    async fn pay(self: Arc<Self>, client: usize, pause: Duration) {
        let mut next = interval(pause);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut kept = None;
        let mut number = 0;
        while !self.is_ended() {
            next.tick().await;
            number += 1;
            let key = format!("client-{client}-payment-{number}");
            let is_new = kept.is_none();
            let paid = async {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => Connection::open(self.choose(client + number)).await?,
                };
                let answer = connection.ask(&payment(&key)).await?;
                let closes = answer.header("connection") == Some("close");
                Ok::<_, std::io::Error>((answer, (!closes).then_some(connection)))
            };
            match timeout(TEST_TIMEOUT, paid).await {
                Ok(Ok((answer, connection))) if answer.status() == 201 => {
                    self.answers.fetch_add(1, Ordering::SeqCst);
                    kept = connection.filter(|_| client.is_multiple_of(2));
                }
                // Its payment is not executed, or the executions are more than the answers.
                Ok(Err(error))
                    if is_new
                        && error.kind() == std::io::ErrorKind::ConnectionReset
                        && self.balancing == Balancing::Kernel =>
                {
                    self.resets.fetch_add(1, Ordering::SeqCst);
                }
                other => {
                    let failure = match other {
                        Ok(Ok((answer, _))) => format!("{key}: {answer:?}"),
                        Ok(Err(error)) => format!("{key}: {error}"),
                        Err(_) => format!("{key}: no answer"),
                    };
                    self.failures.lock().unwrap().push(failure);
                }
            }
        }
    }

    /// A gateway that is ready, or any.
    fn choose(&self, turn: usize) -> SocketAddr {
        let ready = self.gateways.iter();
        let ready = ready.filter(|(_, is_ready)| is_ready.load(Ordering::SeqCst));
        let ready: Vec<_> = ready.map(|(address, _)| *address).collect();
        let any = self.gateways[turn % self.gateways.len()].0;
        ready.get(turn % ready.len().max(1)).copied().unwrap_or(any)
    }
}

/// An application that counts its executions.
struct App {
    address: SocketAddr,
    /// By the reference of the payment.
    executions: Arc<Mutex<HashMap<String, usize>>>,
}

impl App {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let app = Self {
            address: listener.local_addr().unwrap(),
            executions: Arc::default(),
        };
        let executions = Arc::clone(&app.executions);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let executions = Arc::clone(&executions);
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move {
                    let mut connection = Connection::accepted(stream);
                    while let Ok(request) = connection.read().await {
                        let reference = request.member("reference").unwrap();
                        *executions.lock().unwrap().entry(reference).or_default() += 1;
                        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
                        if connection.stream().write_all(answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        app
    }
}
