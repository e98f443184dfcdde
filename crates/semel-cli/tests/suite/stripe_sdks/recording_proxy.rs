//! Records the requests and answers between an SDK and the gateway. The proxy forwards every byte
//! unchanged.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The start line and headers of a request or an answer.
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

/// All requests and answers so far, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    pub(crate) requests: Vec<Head>,
    pub(crate) answers: Vec<Head>,
}

pub(crate) struct RecordingProxy {
    /// The address that the SDK connects to.
    pub(crate) address: SocketAddr,
    recording: watch::Receiver<Recording>,
}

impl RecordingProxy {
    pub(crate) async fn start(gateway: SocketAddr) -> Self {
        let (record, recording) = watch::channel(Recording::default());
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
                tokio::spawn(forward(from_client, to_server, move |head| {
                    requests.send_modify(|recording| recording.requests.push(head));
                }));
                tokio::spawn(forward(from_server, to_client, move |head| {
                    answers.send_modify(|recording| recording.answers.push(head));
                }));
            }
        });
        Self { address, recording }
    }

    pub(crate) fn recording(&self) -> Recording {
        self.recording.borrow().clone()
    }

    /// Waits until the gateway has answered.
    pub(crate) async fn wait_for_answer(&self) {
        let mut recording = self.recording.clone();
        recording.wait_for(|h| !h.answers.is_empty()).await.unwrap();
    }
}

/// Forwards bytes until either side closes.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    record: impl Fn(Head) + Send + 'static,
) {
    let mut pending = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        pending.extend_from_slice(&chunk[..length]);
        // Records before it forwards, so a received answer is always recorded.
        while let Some((head, end)) = first_message(&pending) {
            pending.drain(..end);
            record(head);
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            break;
        }
    }
}

/// The head and the length of the first complete message. Neither side sends chunks here.
fn first_message(bytes: &[u8]) -> Option<(Head, usize)> {
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = Head(String::from_utf8_lossy(&bytes[..body]).into_owned());
    let end = body + head.body_length();
    (end <= bytes.len()).then_some((head, end))
}
