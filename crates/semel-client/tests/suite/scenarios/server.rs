//! A server that follows a script: it expects certain requests and responds, stalls, disconnects, or does not listen.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_client::BoxFuture;
use semel_core::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::file::{Exchange, Expect, Respond};

pub(super) struct Server {
    pub(super) url: String,
    address: SocketAddr,
    /// Keeps the port from other programs while nothing listens; connections are refused.
    _bound: TcpSocket,
    is_quoted: bool,
    script: Arc<Mutex<Script>>,
    listener: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

/// What happens while the server has a request; then the time.
pub(super) type Meanwhile = dyn Fn(Respond) -> BoxFuture<'static, Timestamp> + Send + Sync;

#[derive(Default)]
struct Script {
    meanwhile: Option<Arc<Meanwhile>>,
    exchanges: VecDeque<Exchange>,
    /// Whether the first exchange is a refused connection, and nothing listens.
    is_refusing: bool,
    keys: HashMap<String, String>,
    problems: Vec<String>,
    now: Option<Timestamp>,
}

struct Received {
    method: String,
    path: String,
    keys: Vec<String>,
    body: Vec<u8>,
}

impl Server {
    pub(super) fn new(is_quoted: bool) -> Arc<Self> {
        let bound = TcpSocket::new_v4().unwrap();
        // So that a listener can use the port as well.
        bound.set_reuseaddr(true).unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = bound.local_addr().unwrap();
        Arc::new(Self {
            url: format!("http://{address}"),
            address,
            _bound: bound,
            is_quoted,
            script: Arc::default(),
            listener: tokio::sync::Mutex::new(None),
        })
    }

    pub(super) fn set_meanwhile(&self, meanwhile: Arc<Meanwhile>) {
        self.script.lock().unwrap().meanwhile = Some(meanwhile);
    }

    pub(super) async fn begin(&self, exchanges: &[Exchange], now: Timestamp) {
        {
            let mut script = self.script.lock().unwrap();
            script.exchanges = exchanges.iter().cloned().collect();
            script.is_refusing = false;
            script.now = Some(now);
        }
        self.listen().await;
    }

    /// The client sleeps: what it tried to reach before is over.
    pub(super) async fn turn(&self, now: Timestamp) {
        {
            let mut script = self.script.lock().unwrap();
            script.now = Some(now);
            if script.is_refusing {
                script.is_refusing = false;
                script.exchanges.pop_front();
            }
        }
        self.listen().await;
    }

    /// Whether all expected requests came, and no others.
    pub(super) fn end(&self) -> Result<(), String> {
        let mut script = self.script.lock().unwrap();
        if !script.problems.is_empty() {
            return Err(std::mem::take(&mut script.problems).join("; "));
        }
        match script.exchanges.len() {
            0 => Ok(()),
            missing => Err(format!("{missing} requests did not come")),
        }
    }

    async fn listen(&self) {
        let refuses = {
            let mut script = self.script.lock().unwrap();
            let first = script.exchanges.front();
            script.is_refusing = first.is_some_and(|exchange| exchange.respond.refuse);
            script.is_refusing
        };
        let mut listener = self.listener.lock().await;
        if refuses {
            if let Some(task) = listener.take() {
                task.abort();
                let _ = task.await;
            }
        } else if listener.is_none() {
            let socket = TcpListener::bind(self.address).await.unwrap();
            let (script, is_quoted) = (Arc::clone(&self.script), self.is_quoted);
            *listener = Some(tokio::spawn(async move {
                loop {
                    let (stream, _) = socket.accept().await.unwrap();
                    tokio::spawn(serve(stream, Arc::clone(&script), is_quoted));
                }
            }));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(task) = self.listener.get_mut().take() {
            task.abort();
        }
    }
}

async fn serve(mut stream: TcpStream, script: Arc<Mutex<Script>>, is_quoted: bool) {
    let Some(received) = read_request(&mut stream).await else {
        return;
    };
    let (respond, meanwhile) = {
        let mut script = script.lock().unwrap();
        let Some(exchange) = script.exchanges.pop_front() else {
            let (method, path) = (&received.method, &received.path);
            let problem = format!("unexpected request {method} {path}");
            script.problems.push(problem);
            return;
        };
        let expect = exchange.expect.expect("only a refusal expects nothing");
        if let Err(problem) = script.check(&expect, &received, is_quoted) {
            script.problems.push(problem);
        }
        (exchange.respond, script.meanwhile.clone().unwrap())
    };
    let now = meanwhile(respond.clone()).await;
    if respond.stall {
        // Until the client gives up.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        return;
    }
    let is_cut = match respond.disconnect.as_deref() {
        Some("before_head") => return,
        Some("in_body") => true,
        Some(other) => panic!("no way to disconnect: {other}"),
        None => false,
    };
    let response = render(&respond, is_cut, now);
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
}

impl Script {
    fn check(
        &mut self,
        expect: &Expect,
        received: &Received,
        is_quoted: bool,
    ) -> Result<(), String> {
        if (&expect.method, &expect.path) != (&received.method, &received.path) {
            return Err(format!(
                "got {} {}, expected {} {}",
                received.method, received.path, expect.method, expect.path
            ));
        }
        let body = match (&expect.body, &expect.body_base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(coded)) => Some(STANDARD.decode(coded).unwrap()),
            (None, None) => None,
        };
        if body.is_some_and(|body| body != received.body) {
            return Err("another body".to_owned());
        }
        let (name, sent) = match (&expect.key, received.keys.as_slice()) {
            (None, []) => return Ok(()),
            (Some(name), [sent]) => (name, sent),
            (_, sent) => return Err(format!("the keys {sent:?}")),
        };
        let key = match sent.strip_prefix('"').and_then(|key| key.strip_suffix('"')) {
            Some(key) if is_quoted => key,
            None if !is_quoted => sent,
            _ => return Err(format!("the form of the key {sent}")),
        };
        if key.len() != 36 {
            return Err(format!("the key {key} is not a UUID"));
        }
        match self.keys.get(name) {
            Some(known) if known == key => Ok(()),
            Some(known) => Err(format!("{name} was {known} and is {key}")),
            None if self.keys.values().any(|other| other == key) => {
                Err(format!("{name} has the key of another"))
            }
            None => {
                self.keys.insert(name.clone(), key.to_owned());
                Ok(())
            }
        }
    }
}

/// `None` for a connection that closes without a request.
async fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap(), first.next().unwrap());
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let all = |wanted: &str| -> Vec<String> {
        let matching = headers.iter().filter(|(name, _)| name == wanted);
        matching.map(|(_, value)| value.clone()).collect()
    };
    let length = all("content-length")
        .first()
        .map_or(0, |n| n.parse().unwrap());
    let mut body = bytes[end + 4..].to_vec();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Received {
        method: method.to_owned(),
        path: path.to_owned(),
        keys: all("idempotency-key"),
        body,
    })
}

fn render(respond: &Respond, is_cut: bool, now: Timestamp) -> String {
    let status = respond.status.unwrap();
    let headers: BTreeMap<_, _> = respond
        .headers
        .iter()
        .map(|(name, value)| (name, fill(value, now)))
        .collect();
    let mut text = format!("HTTP/1.1 {status} S\r\nconnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if status != 204 {
        let length = respond.body.len() + if is_cut { 10 } else { 0 };
        let _ = write!(text, "content-length: {length}\r\n");
    }
    format!("{text}\r\n{}", respond.body)
}

/// `{{now+3s}}` as an HTTP date.
fn fill(value: &str, now: Timestamp) -> String {
    let Some(offset) = value
        .strip_prefix("{{now")
        .and_then(|rest| rest.strip_suffix("s}}"))
    else {
        return value.to_owned();
    };
    let seconds = now.as_micros() / 1_000_000 + offset.parse::<i64>().unwrap();
    let since_epoch = Duration::from_secs(u64::try_from(seconds).unwrap());
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since_epoch)
}
