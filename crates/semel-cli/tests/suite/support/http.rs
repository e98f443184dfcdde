//! A minimal HTTP client: these tests count bytes and cut connections, which client libraries hide.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::TEST_TIMEOUT;

/// Short compared to the shortest lease, long compared to a request.
const POLL: Duration = Duration::from_millis(20);

/// The bytes of a payment request. The key is also the reference of the payment.
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

/// A complete request or response.
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

    /// A member of the body, which must be a flat JSON object of strings.
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

/// A connection that stays open between requests.
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

    /// Sends the request and reads the whole response.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Message> {
        self.0.write_all(request).await?;
        self.read().await
    }

    /// Reads a message. A truncated message is an error.
    pub(crate) async fn read(&mut self) -> io::Result<Message> {
        let start = self.read_line().await?;
        let mut headers = Vec::new();
        loop {
            let line = self.read_line().await?;
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
            Some(length) => self.read_exactly(length.parse().unwrap()).await?,
            None if message.header("transfer-encoding") == Some("chunked") => {
                self.read_chunks().await?
            }
            None => Vec::new(),
        };
        Ok(message)
    }

    async fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = self.read_line().await?;
            let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
            body.extend(self.read_exactly(size).await?);
            self.read_line().await?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn read_exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        Ok(body)
    }

    async fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Sends one request on a new connection.
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

/// Retries a payment until it is no longer in progress, and returns the response.
pub(crate) async fn retry_until_settled(address: SocketAddr, key: &str) -> Message {
    let asking = async {
        loop {
            let answer = ask(address, &payment(key)).await.unwrap();
            if (answer.status(), &*answer.code()) != (409, "idempotency_key_in_progress") {
                return answer;
            }
            sleep(POLL).await; // sleeps because the lease expires by the gateway's clock
        }
    };
    timeout(TEST_TIMEOUT, asking)
        .await
        .expect("still in progress")
}
