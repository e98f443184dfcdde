//! HTTP by hand: these tests count bytes and cut connections, which a client library hides.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// Often beside the shortest lease, seldom beside a request.
const POLL: Duration = Duration::from_millis(20);

/// A payment under a key, as the bytes on the wire. The key is its reference at the shop, too.
pub(crate) fn payment(key: &str) -> Vec<u8> {
    request(
        "/payments",
        key,
        &format!("{{\"reference\":\"{key}\",\"amount\":100}}"),
    )
}

pub(crate) fn request(path: &str, key: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: \"{key}\"\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A request or an answer, whole.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The request line or the status line.
    pub(crate) start: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(is, _)| is == name);
        found.next().map(|(_, value)| value.as_str())
    }

    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A member of the body, which is a flat JSON object of strings where this is asked.
    pub(crate) fn member(&self, name: &str) -> Option<String> {
        let text = self.text();
        let (_, after) = text.split_once(&format!("\"{name}\":\""))?;
        after.split('"').next().map(str::to_owned)
    }

    pub(crate) fn code(&self) -> String {
        self.member("code").unwrap_or_default()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}

/// One connection that stays open between requests.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn accepted(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        self.0.get_mut()
    }

    /// Sends all of it and reads the answer to its end.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Message> {
        self.0.write_all(request).await?;
        self.read().await
    }

    /// A message that breaks off is an error, never a shorter message.
    pub(crate) async fn read(&mut self) -> io::Result<Message> {
        let start = self.line().await?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut message = Message {
            start,
            headers,
            body: Vec::new(),
        };
        message.body = match message.header("content-length") {
            Some(length) => self.exactly(length.parse().unwrap()).await?,
            None if message.header("transfer-encoding") == Some("chunked") => self.chunks().await?,
            None => Vec::new(),
        };
        Ok(message)
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = self.line().await?;
            let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
            body.extend(self.exactly(size).await?);
            self.line().await?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        Ok(body)
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// One request on a connection of its own.
pub(crate) async fn ask(address: SocketAddr, request: &[u8]) -> io::Result<Message> {
    Connection::open(address).await?.ask(request).await
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> io::Result<Message> {
    ask(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: semel\r\n\r\n").as_bytes(),
    )
    .await
}

/// The answer to a payment once nobody executes it: neither a living process nor the lease of a
/// dead one.
pub(crate) async fn settled(address: SocketAddr, key: &str) -> Message {
    let asking = async {
        loop {
            let answer = ask(address, &payment(key)).await.unwrap();
            if (answer.status(), &*answer.code()) != (409, "idempotency_key_in_progress") {
                return answer;
            }
            sleep(POLL).await; // sleeps because leases end by the gateway's clock alone
        }
    };
    timeout(PATIENCE, asking).await.expect("a zombie")
}
