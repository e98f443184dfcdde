//! A proxy in front of a DynamoDB server, which loses the answers of writes and refuses writes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of a write. Reads pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server performs it, and the connection is cut before its answer.
    LoseAnswer,
    /// It is not sent to the server, and the connection is cut.
    LoseRequest,
    /// It is refused as too much.
    Throttle,
}

/// The fault of the next writes: which, and how many.
#[derive(Debug, Default)]
struct Plan {
    lose_answers: AtomicU64,
    lose_requests: AtomicU64,
    throttles: AtomicU64,
    /// How many faults there were.
    done: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    plan: Arc<Plan>,
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
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, plan) = (Arc::clone(&server), Arc::clone(&shared));
                // A cut connection ends its task.
                tokio::spawn(async move { serve(client, &server, &plan).await });
            }
        });
        Self { address, plan }
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
            Fault::Throttle => &self.plan.throttles,
        };
        counter.store(writes, Ordering::SeqCst);
    }

    /// How many faults were applied.
    pub fn faults(&self) -> u64 {
        self.plan.done.load(Ordering::SeqCst)
    }
}

impl Plan {
    fn next(&self) -> Option<Fault> {
        let faults = [
            (&self.throttles, Fault::Throttle),
            (&self.lose_requests, Fault::LoseRequest),
            (&self.lose_answers, Fault::LoseAnswer),
        ];
        let (_, fault) = faults.into_iter().find(|(left, _)| {
            let less = |left: u64| left.checked_sub(1);
            let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
            took.is_ok()
        })?;
        self.done.fetch_add(1, Ordering::SeqCst);
        Some(fault)
    }
}

async fn serve(mut client: TcpStream, server: &str, plan: &Plan) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut upstream = TcpStream::connect(server).await?;
    upstream.set_nodelay(true)?;
    loop {
        let request = read_message(&mut client).await?;
        let fault = is_write(&request).then(|| plan.next()).flatten();
        match fault {
            Some(Fault::Throttle) => {
                let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/x-amz-json-1.0";
                let length = THROTTLED.len();
                let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{THROTTLED}");
                client.write_all(answer.as_bytes()).await?;
                continue;
            }
            Some(Fault::LoseRequest) => return Ok(()),
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

fn is_write(request: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&request[..request.len().min(2048)]).to_lowercase();
    ["putitem", "updateitem", "deleteitem"]
        .iter()
        .any(|operation| head.contains(&format!("dynamodb_20120810.{operation}")))
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
