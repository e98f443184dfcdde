//! A proxy in front of a DynamoDB server, which loses the answers of writes, delays writes, refuses
//! them, and answers instead of the server.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What becomes of a write. Reads pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server performs it, and the connection is cut before its answer.
    LoseAnswer,
    /// It is not sent to the server, and the connection is cut.
    LoseRequest,
    /// The connection is cut, and the server performs it [later](DELAY).
    Delay,
    /// It is refused as too much.
    Throttle,
}

/// How much later a delayed write is performed: after its sender has tried again.
pub const DELAY: Duration = Duration::from_millis(700);

/// The names of the operations that write.
const WRITES: [&str; 5] = [
    "PutItem",
    "UpdateItem",
    "DeleteItem",
    "TransactWriteItems",
    "BatchWriteItem",
];

/// An answer that the server does not give.
#[derive(Debug)]
struct Replacement {
    operation: &'static str,
    status: u16,
    body: String,
    left: u64,
}

/// The fault of the next writes: which, and how many.
#[derive(Debug, Default)]
struct Plan {
    lose_answers: AtomicU64,
    lose_requests: AtomicU64,
    delays: AtomicU64,
    throttles: AtomicU64,
    replacements: Mutex<Vec<Replacement>>,
    /// How many writes pass before the next fault.
    passing: AtomicU64,
    /// How many delayed writes the server has performed.
    landed: AtomicU64,
    /// How many faults there were.
    done: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    plan: Arc<Plan>,
    listening: JoinHandle<()>,
}

const THROTTLED: &str = "{\"__type\":\
    \"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException\",\
    \"message\":\"injected by a test\"}";

impl Proxy {
    /// A proxy in front of an endpoint such as `http://127.0.0.1:8000`.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(endpoint: &str) -> Self {
        let server = endpoint.trim_start_matches("http://").trim_end_matches('/');
        let server: Arc<str> = server.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let plan = Arc::new(Plan::default());
        let shared = Arc::clone(&plan);
        let listening = tokio::spawn(async move {
            // Ends with this task.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, plan) = (Arc::clone(&server), Arc::clone(&shared));
                // A cut connection ends its task.
                connections.spawn(async move { serve(client, &server, &plan).await });
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            plan,
            listening,
        }
    }

    /// Ends all connections, and accepts no more.
    pub fn close(&self) {
        self.listening.abort();
    }

    /// The endpoint of the proxy.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Applies a fault to the next writes. The faults of an earlier call that are left are dropped.
    pub fn inject(&self, fault: Fault, writes: u64) {
        let counter = match fault {
            Fault::LoseAnswer => &self.plan.lose_answers,
            Fault::LoseRequest => &self.plan.lose_requests,
            Fault::Delay => &self.plan.delays,
            Fault::Throttle => &self.plan.throttles,
        };
        counter.store(writes, Ordering::SeqCst);
    }

    /// Applies a fault to writes after those that pass first.
    pub fn inject_after(&self, passing: u64, fault: Fault, writes: u64) {
        self.plan.passing.store(passing, Ordering::SeqCst);
        self.inject(fault, writes);
    }

    /// Answers the next requests for an operation instead of the server, so many.
    pub fn answer(&self, operation: &'static str, status: u16, body: impl Into<String>, left: u64) {
        self.plan.replacements().push(Replacement {
            operation,
            status,
            body: body.into(),
            left,
        });
    }

    /// How many delayed writes the server has performed.
    pub fn landed(&self) -> u64 {
        self.plan.landed.load(Ordering::SeqCst)
    }

    /// How many faults were applied.
    pub fn faults(&self) -> u64 {
        self.plan.done.load(Ordering::SeqCst)
    }
}

impl Plan {
    fn replacements(&self) -> MutexGuard<'_, Vec<Replacement>> {
        let replacements = self.replacements.lock();
        replacements.unwrap_or_else(PoisonError::into_inner)
    }

    fn replacement(&self, operation: &str) -> Option<(u16, String)> {
        let mut all = self.replacements();
        let mut due = all.iter_mut();
        let next = due.find(|one| one.left > 0 && one.operation == operation)?;
        next.left -= 1;
        Some((next.status, next.body.clone()))
    }

    fn next(&self) -> Option<Fault> {
        let faults = [
            (&self.delays, Fault::Delay),
            (&self.throttles, Fault::Throttle),
            (&self.lose_requests, Fault::LoseRequest),
            (&self.lose_answers, Fault::LoseAnswer),
        ];
        if take_one(&self.passing) {
            return None;
        }
        let (_, fault) = faults.into_iter().find(|(left, _)| take_one(left))?;
        self.done.fetch_add(1, Ordering::SeqCst);
        Some(fault)
    }
}

/// Takes one, if any is left.
fn take_one(left: &AtomicU64) -> bool {
    let less = |left: u64| left.checked_sub(1);
    let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    took.is_ok()
}

async fn serve(mut client: TcpStream, server: &Arc<str>, plan: &Arc<Plan>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut upstream = TcpStream::connect(&**server).await?;
    upstream.set_nodelay(true)?;
    loop {
        let request = read_message(&mut client).await?;
        let operation = operation(&request);
        if let Some((status, body)) = plan.replacement(&operation) {
            client.write_all(&response(status, &body)).await?;
            continue;
        }
        let is_write = WRITES.contains(&&*operation);
        let fault = is_write.then(|| plan.next()).flatten();
        match fault {
            Some(Fault::Throttle) => {
                client.write_all(&response(400, THROTTLED)).await?;
                continue;
            }
            Some(Fault::LoseRequest) => return Ok(()),
            Some(Fault::Delay) => {
                let (server, plan) = (Arc::clone(server), Arc::clone(plan));
                // Where the server is away by then, the write is lost.
                tokio::spawn(async move { perform_late(&request, &server, &plan).await });
                return Ok(());
            }
            Some(Fault::LoseAnswer) | None => {}
        }
        upstream.write_all(&request).await?;
        let answer = read_message(&mut upstream).await?;
        if fault == Some(Fault::LoseAnswer) {
            return Ok(());
        }
        client.write_all(&answer).await?;
    }
}

async fn perform_late(request: &[u8], server: &str, plan: &Plan) -> io::Result<()> {
    // sleeps because the write lands later
    tokio::time::sleep(DELAY).await;
    let mut upstream = TcpStream::connect(server).await?;
    upstream.write_all(request).await?;
    read_message(&mut upstream).await?;
    plan.landed.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

fn response(status: u16, body: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} Injected\r\ncontent-type: application/x-amz-json-1.0");
    let length = body.len();
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The operation of a request, or nothing.
fn operation(request: &[u8]) -> String {
    let head = String::from_utf8_lossy(&request[..request.len().min(2048)]);
    let target = head.split_once("DynamoDB_20120810.");
    let named = target.and_then(|(_, rest)| rest.lines().next());
    named.unwrap_or_default().trim().to_owned()
}

/// A request or a response, which has a length.
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        if stream.read_buf(&mut message).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = message.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&message[..end]).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(0, |length| length.trim().parse().unwrap());
        if message.len() >= end + 4 + length {
            return Ok(message);
        }
    }
}
