//! What really goes over the wire between an SDK and the gateway. It passes every byte on as it
//! is and only listens, so that the two meet each other and not a proxy.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The first lines of a request or an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head(String);

impl Head {
    pub(crate) fn first_line(&self) -> &str {
        self.0.lines().next().unwrap_or_default()
    }

    /// 0 for a request.
    pub(crate) fn status(&self) -> u16 {
        let mut words = self.first_line().split(' ').skip(1);
        words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.0.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn body_length(&self) -> usize {
        let length = self.header("content-length");
        length.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// All that was said so far, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) requests: Vec<Head>,
    pub(crate) answers: Vec<Head>,
}

pub(crate) struct Wire {
    /// What the SDK takes for the gateway's.
    pub(crate) address: SocketAddr,
    heard: watch::Receiver<Heard>,
}

impl Wire {
    pub(crate) async fn to(gateway: SocketAddr) -> Self {
        let (record, heard) = watch::channel(Heard::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(gateway).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (requests, answers) = (record.clone(), record.clone());
                tokio::spawn(pass_on(from_client, to_server, move |head| {
                    requests.send_modify(|heard| heard.requests.push(head));
                }));
                tokio::spawn(pass_on(from_server, to_client, move |head| {
                    answers.send_modify(|heard| heard.answers.push(head));
                }));
            }
        });
        Self { address, heard }
    }

    pub(crate) fn heard(&self) -> Heard {
        self.heard.borrow().clone()
    }

    /// Waits until the gateway has answered.
    pub(crate) async fn answered(&self) {
        let mut heard = self.heard.clone();
        heard.wait_for(|h| !h.answers.is_empty()).await.unwrap();
    }
}

/// Ends with either side: what is left over is then of interest to nobody.
async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    record: impl Fn(Head) + Send + 'static,
) {
    let mut pending = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        pending.extend_from_slice(&chunk[..length]);
        // First recorded, then passed on: whoever has the answer finds it recorded.
        while let Some((head, end)) = whole_message(&pending) {
            pending.drain(..end);
            record(head);
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            break;
        }
    }
}

/// The message at the beginning, and where it ends. Neither side sends chunks here.
fn whole_message(bytes: &[u8]) -> Option<(Head, usize)> {
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = Head(String::from_utf8_lossy(&bytes[..body]).into_owned());
    let end = body + head.body_length();
    (end <= bytes.len()).then_some((head, end))
}
