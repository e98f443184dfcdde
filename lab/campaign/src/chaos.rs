//! A proxy between a gateway and its application that resets connections and loses answers.
//!
//! Where the gateway speaks TLS, the proxy ends it: the application speaks plain HTTP. It does not
//! parse HTTP. An answer begins where the application sends bytes after the client did,
//! which is exact here: the gateway sends one request at a time over a connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::random::Random;
use crate::tls::Tls;
use crate::witness::{RequestReader, Witness};

/// How much is read at once: a whole answer of the payments example and its head.
const CHUNK: usize = 16 * 1024;
/// The first byte of a connection with TLS.
const TLS_HANDSHAKE: u8 = 22;

/// The fault that is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    /// Nothing.
    #[default]
    Pass,
    /// One answer in so many is cut after some of its bytes.
    ResetMidResponse {
        /// On average.
        one_in: u64,
    },
    /// One answer in so many is lost: the application has done its part by then.
    ResetBeforeResponse {
        /// On average.
        one_in: u64,
    },
    /// One answer in so many is dropped and replaced by a bare 502, 503 or 504, as a load balancer does
    /// after its timeout. The application has executed the request.
    AnswerInstead {
        /// On average.
        one_in: u64,
    },
    /// One connection in so many is refused. Setting it closes idle connections, so that new ones are
    /// opened.
    RefuseSome {
        /// On average.
        one_in: u64,
    },
    /// Every answer is delayed.
    Delay {
        /// The delay.
        ms: u64,
    },
}

/// The number of injected faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ChaosCounts {
    /// Accepted connections.
    pub(crate) connections: u64,
    /// Answers that began.
    pub(crate) answers: u64,
    /// Answers cut after some of their bytes.
    pub(crate) reset_mid_response: u64,
    /// Answers of which nothing was passed on.
    pub(crate) reset_before_response: u64,
    /// Answers dropped and replaced by another one.
    pub(crate) answered_instead: u64,
    /// Connections refused.
    pub(crate) refused: u64,
    /// Answers delayed.
    pub(crate) delayed: u64,
}

/// The proxy. Dropping it closes all connections.
#[derive(Debug)]
pub(crate) struct Chaos {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    /// For connections that begin with a handshake.
    tls: Option<Tls>,
    witness: Arc<Witness>,
    mode: watch::Sender<Mode>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    counts: ChaosCounts,
}

/// What happens to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerAction {
    Pass,
    Late(Duration),
    Lost,
    /// Another status in its place.
    Replaced(u16),
    /// Cut after a part of what came, chosen by the number.
    Cut(u64),
}

impl Chaos {
    /// Listens on a free port, and forwards to `upstream`. All random choices come from the seed.
    pub(crate) async fn in_front_of(
        upstream: SocketAddr,
        seed: u64,
        tls: Option<Tls>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("cannot listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            tls,
            witness: Arc::default(),
            mode: watch::Sender::default(),
            inner: Mutex::new(Inner {
                random: Random::new(seed),
                counts: ChaosCounts::default(),
            }),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _accepting: accepting,
        })
    }

    /// The address for the gateway.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the fault, from the next answer or connection on.
    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// The witness of the requests to the application.
    pub(crate) fn witness(&self) -> &Witness {
        &self.shared.witness
    }

    /// The number of faults so far.
    pub(crate) fn counts(&self) -> ChaosCounts {
        self.shared.count(|inner| inner.counts)
    }
}

impl Shared {
    fn count<T>(&self, with: impl FnOnce(&mut Inner) -> T) -> T {
        with(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refuses(&self) -> bool {
        let mode = *self.mode.borrow();
        self.count(|inner| {
            let refused = match mode {
                Mode::RefuseSome { one_in } => inner.random.one_in(one_in),
                Mode::Pass
                | Mode::ResetMidResponse { .. }
                | Mode::ResetBeforeResponse { .. }
                | Mode::AnswerInstead { .. }
                | Mode::Delay { .. } => false,
            };
            if refused {
                inner.counts.refused += 1;
            } else {
                inner.counts.connections += 1;
            }
            refused
        })
    }

    /// Draws what happens to an answer whose first read has `length` bytes.
    fn draw_action(&self, length: usize) -> AnswerAction {
        let mode = *self.mode.borrow();
        self.count(|inner| {
            inner.counts.answers += 1;
            match mode {
                // A single byte cannot be cut.
                Mode::ResetMidResponse { one_in } if length > 1 && inner.random.one_in(one_in) => {
                    inner.counts.reset_mid_response += 1;
                    AnswerAction::Cut(inner.random.next())
                }
                Mode::ResetBeforeResponse { one_in } if inner.random.one_in(one_in) => {
                    inner.counts.reset_before_response += 1;
                    AnswerAction::Lost
                }
                Mode::AnswerInstead { one_in } if inner.random.one_in(one_in) => {
                    inner.counts.answered_instead += 1;
                    AnswerAction::Replaced(
                        502 + u16::try_from(inner.random.below(3)).unwrap_or_default(),
                    )
                }
                Mode::Delay { ms } => {
                    inner.counts.delayed += 1;
                    AnswerAction::Late(Duration::from_millis(ms))
                }
                Mode::Pass
                | Mode::RefuseSome { .. }
                | Mode::ResetMidResponse { .. }
                | Mode::ResetBeforeResponse { .. }
                | Mode::AnswerInstead { .. } => AnswerAction::Pass,
            }
        })
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of file descriptors: some are freed when connections end.
            connections.join_next().await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if shared.refuses() {
            reset(&client);
            continue;
        }
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(shared.upstream).await else {
                // As if there were no proxy.
                reset(&client);
                return;
            };
            for stream in [&client, &server] {
                // Small messages back and forth: waiting to fill a packet would slow them.
                let _ = stream.set_nodelay(true);
            }
            serve(client, server, &shared).await;
        });
    }
}

async fn serve(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let mut first = [0];
    let is_handshake = matches!(client.peek(&mut first).await, Ok(1)) && first[0] == TLS_HANDSHAKE;
    match &shared.tls {
        Some(tls) if is_handshake => {
            let Ok(mut client) = tls.acceptor().accept(client).await else {
                return;
            };
            if !matches!(pass(&mut client, &mut server, shared).await, Ok(true)) {
                reset(client.get_ref().0);
                reset(&server);
            }
        }
        Some(_) | None => {
            if !matches!(pass(&mut client, &mut server, shared).await, Ok(true)) {
                reset(&client);
                reset(&server);
            }
        }
    }
}

/// Closes by a reset, once it is dropped.
fn reset(stream: &TcpStream) {
    // Fails only for a stream that is closed.
    let _ = stream.set_zero_linger();
}

/// Forwards both directions. Returns false where both connections must be reset.
async fn pass<S>(client: &mut S, server: &mut TcpStream, shared: &Shared) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut mode = shared.mode.subscribe();
    let (mut asked, mut answer) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut asking, mut server_listens, mut at_rest) = (false, true, true);
    let mut reading = RequestReader::new(Arc::clone(&shared.witness));
    loop {
        tokio::select! {
            changed = mode.changed() => {
                let now = *mode.borrow_and_update();
                if changed.is_err() || (at_rest && matches!(now, Mode::RefuseSome { .. })) {
                    return Ok(true);
                }
            }
            read = client.read(&mut asked), if server_listens => match read? {
                0 => {
                    server.shutdown().await?;
                    server_listens = false;
                }
                length => {
                    reading.read_request(&asked[..length]);
                    server.write_all(&asked[..length]).await?;
                    (asking, at_rest) = (true, false);
                }
            },
            read = server.read(&mut answer) => match read? {
                0 => return Ok(true),
                length => {
                    let begins = std::mem::take(&mut asking);
                    reading.response_started();
                    let action = if begins { shared.draw_action(length) } else { AnswerAction::Pass };
                    let passed = match action {
                        AnswerAction::Pass => length,
                        AnswerAction::Late(late) => {
                            tokio::time::sleep(late).await;
                            length
                        }
                        AnswerAction::Lost => return Ok(false),
                        AnswerAction::Replaced(status) => {
                            client.write_all(&bare_response(status)).await?;
                            client.shutdown().await?;
                            return Ok(true);
                        }
                        AnswerAction::Cut(chosen) => part(chosen, length),
                    };
                    client.write_all(&answer[..passed]).await?;
                    client.flush().await?;
                    if passed < length {
                        return Ok(false);
                    }
                    // Perhaps not the end of the answer; closing too early is a fault as well.
                    at_rest = true;
                }
            },
        }
    }
}

/// A response with a status only, which closes the connection.
fn bare_response(status: u16) -> Vec<u8> {
    format!("HTTP/1.1 {status} Bare\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
}

/// At least a byte of `length`, and not all of them.
fn part(chosen: u64, length: usize) -> usize {
    let most = length.saturating_sub(1).max(1) as u64;
    usize::try_from(chosen % most + 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

    /// Answers every request, and counts them.
    async fn application() -> (SocketAddr, watch::Receiver<u64>, JoinSet<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, seen) = watch::channel(0);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let asked = asked.clone();
                connections.spawn(async move {
                    let mut buffer = [0; 1_024];
                    while let Ok(1..) = stream.read(&mut buffer).await {
                        asked.send_modify(|asked| *asked += 1);
                        if stream.write_all(ANSWER).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (address, seen, serving)
    }

    /// What a client reads of one answer, and how it ended.
    async fn ask<S>(stream: &mut S) -> (Vec<u8>, Option<io::ErrorKind>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut received = Vec::new();
        if let Err(error) = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await {
            return (received, Some(error.kind()));
        }
        let mut buffer = [0; 1_024];
        while received.len() < ANSWER.len() {
            match stream.read(&mut buffer).await {
                Ok(0) => return (received, Some(io::ErrorKind::UnexpectedEof)),
                Ok(length) => received.extend_from_slice(&buffer[..length]),
                Err(error) => return (received, Some(error.kind())),
            }
        }
        (received, None)
    }

    async fn ask_once(chaos: &Chaos) -> (Vec<u8>, Option<io::ErrorKind>) {
        match TcpStream::connect(chaos.address()).await {
            Ok(mut stream) => ask(&mut stream).await,
            Err(error) => (Vec::new(), Some(error.kind())),
        }
    }

    #[tokio::test]
    async fn without_chaos_everything_passes() {
        let (address, _, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1, None).await.unwrap();
        let mut stream = TcpStream::connect(chaos.address()).await.unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&mut stream).await, (ANSWER.to_vec(), None));
        }
        let done = ChaosCounts {
            connections: 1,
            answers: 3,
            ..ChaosCounts::default()
        };
        assert_eq!(chaos.counts(), done);
    }

    #[tokio::test]
    async fn a_cut_answer_is_a_part_and_a_reset() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1, None).await.unwrap();
        chaos.set(Mode::ResetMidResponse { one_in: 1 });
        for _ in 0..20 {
            let (received, error) = ask_once(&chaos).await;
            assert_eq!(error, Some(io::ErrorKind::ConnectionReset));
            assert!(received.len() < ANSWER.len());
            assert!(ANSWER.starts_with(&received));
        }
        assert_eq!(*seen.borrow(), 20);
        assert_eq!(chaos.counts().reset_mid_response, 20);
    }

    #[tokio::test]
    async fn a_lost_answer_is_a_reset_after_the_application_was_asked() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1, None).await.unwrap();
        chaos.set(Mode::ResetBeforeResponse { one_in: 1 });
        let reset = Some(io::ErrorKind::ConnectionReset);
        assert_eq!(ask_once(&chaos).await, (Vec::new(), reset));
        assert_eq!(*seen.borrow(), 1);
        assert_eq!(chaos.counts().reset_before_response, 1);
        chaos.set(Mode::Pass);
        assert_eq!(ask_once(&chaos).await, (ANSWER.to_vec(), None));
    }

    #[tokio::test]
    async fn answers_over_tls_are_passed_cut_and_lost() {
        let (address, seen, _serving) = application().await;
        let directory = tempfile::tempdir().unwrap();
        let tls = Tls::create(directory.path()).unwrap();
        let chaos = Chaos::in_front_of(address, 1, Some(tls.clone()))
            .await
            .unwrap();
        let mut stream = tls.connect(chaos.address(), false).await.unwrap();
        assert_eq!(ask(&mut stream).await, (ANSWER.to_vec(), None));
        chaos.set(Mode::ResetMidResponse { one_in: 1 });
        let (received, error) = ask(&mut stream).await;
        assert!(received.len() < ANSWER.len() && ANSWER.starts_with(&received));
        assert!(error.is_some());
        chaos.set(Mode::ResetBeforeResponse { one_in: 1 });
        let mut stream = tls.connect(chaos.address(), false).await.unwrap();
        let (received, error) = ask(&mut stream).await;
        assert!(received.is_empty() && error.is_some(), "{error:?}");
        // The application was asked each time, also by those that do not use TLS.
        assert!(ask_once(&chaos).await.1.is_some());
        assert_eq!(*seen.borrow(), 4);
    }

    #[tokio::test]
    async fn another_answer_comes_after_the_application_was_asked() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1, None).await.unwrap();
        chaos.set(Mode::AnswerInstead { one_in: 1 });
        for asked in 1..=20 {
            let (received, error) = ask_once(&chaos).await;
            let received = String::from_utf8(received).unwrap();
            let statuses = ["HTTP/1.1 502", "HTTP/1.1 503", "HTTP/1.1 504"];
            assert!(
                statuses.iter().any(|status| received.starts_with(status)),
                "{received}"
            );
            assert!(!received.contains("hello"));
            // The complete answer was received, so the only error may be the end of the stream.
            assert!(
                matches!(error, None | Some(io::ErrorKind::UnexpectedEof)),
                "{error:?}"
            );
            assert_eq!(*seen.borrow(), asked);
        }
        assert_eq!(chaos.counts().answered_instead, 20);
    }

    #[tokio::test]
    async fn a_refused_connection_does_not_reach_the_application() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1, None).await.unwrap();
        let mut at_rest = TcpStream::connect(chaos.address()).await.unwrap();
        assert_eq!(ask(&mut at_rest).await.1, None);
        chaos.set(Mode::RefuseSome { one_in: 1 });
        assert_eq!(at_rest.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(ask_once(&chaos).await.1.is_some());
        assert_eq!(*seen.borrow(), 1);
        assert_eq!(chaos.counts().refused, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_answer_is_late() {
        let (address, _, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1, None).await.unwrap();
        chaos.set(Mode::Delay { ms: 60_000 });
        let began = tokio::time::Instant::now();
        assert_eq!(ask_once(&chaos).await, (ANSWER.to_vec(), None));
        assert!(began.elapsed() >= Duration::from_mins(1));
        assert_eq!(chaos.counts().delayed, 1);
    }

    #[test]
    fn a_part_is_neither_nothing_nor_all() {
        for chosen in 0..100 {
            assert!((1..5).contains(&part(chosen, 5)));
        }
    }
}
