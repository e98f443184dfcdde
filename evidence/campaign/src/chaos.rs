//! A network between a gateway and its application on which connections are reset.
//!
//! It reads no HTTP. An answer begins where the application speaks after the client spoke, which
//! is exact for the gateway: it sends one request at a time over a connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::random::Random;
use crate::witness::{Reading, Witness};

/// How much is read at once: a whole answer of the payments example and its head.
const CHUNK: usize = 16 * 1024;

/// What goes wrong.
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
    /// One answer in so many is swallowed, and a bare 502, 503 or 504 is given instead: what a
    /// balancer says that lost patience with an application that has done its part.
    AnswerInstead {
        /// On average.
        one_in: u64,
    },
    /// One connection in so many is not taken. Setting it lets go of those that are at rest, so
    /// that there are new ones.
    RefuseSome {
        /// On average.
        one_in: u64,
    },
    /// Every answer begins so much later.
    Delay {
        /// How much.
        ms: u64,
    },
}

/// What was really done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Done {
    /// Connections taken.
    pub(crate) connections: u64,
    /// Answers that began.
    pub(crate) answers: u64,
    /// Answers cut after some of their bytes.
    pub(crate) reset_mid_response: u64,
    /// Answers of which nothing was passed on.
    pub(crate) reset_before_response: u64,
    /// Answers swallowed, with another in their place.
    pub(crate) answered_instead: u64,
    /// Connections refused.
    pub(crate) refused: u64,
    /// Answers delayed.
    pub(crate) delayed: u64,
}

/// The network. Dropped, it is gone, and all connections are cut.
#[derive(Debug)]
pub(crate) struct Chaos {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    witness: Arc<Witness>,
    mode: watch::Sender<Mode>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    done: Done,
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Late(Duration),
    Lost,
    /// Another status in its place.
    Replaced(u16),
    /// Cut after a part of what came, chosen by the number.
    Cut(u64),
}

impl Chaos {
    /// Listens on a free port, and leads to `upstream`. All chance comes from the seed.
    pub(crate) async fn in_front_of(upstream: SocketAddr, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("cannot listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            witness: Arc::default(),
            mode: watch::Sender::default(),
            inner: Mutex::new(Inner {
                random: Random::new(seed),
                done: Done::default(),
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

    /// Where the gateway is to be sent.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what goes wrong, from the next answer or connection on.
    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Who sees what the application is given.
    pub(crate) fn witness(&self) -> &Witness {
        &self.shared.witness
    }

    /// What was really done so far.
    pub(crate) fn done(&self) -> Done {
        self.shared.count(|inner| inner.done)
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
                inner.done.refused += 1;
            } else {
                inner.done.connections += 1;
            }
            refused
        })
    }

    /// Decides about an answer that begins with so many bytes.
    fn fate(&self, length: usize) -> Fate {
        let mode = *self.mode.borrow();
        self.count(|inner| {
            inner.done.answers += 1;
            match mode {
                // One byte has no middle.
                Mode::ResetMidResponse { one_in } if length > 1 && inner.random.one_in(one_in) => {
                    inner.done.reset_mid_response += 1;
                    Fate::Cut(inner.random.next())
                }
                Mode::ResetBeforeResponse { one_in } if inner.random.one_in(one_in) => {
                    inner.done.reset_before_response += 1;
                    Fate::Lost
                }
                Mode::AnswerInstead { one_in } if inner.random.one_in(one_in) => {
                    inner.done.answered_instead += 1;
                    Fate::Replaced(502 + u16::try_from(inner.random.below(3)).unwrap_or_default())
                }
                Mode::Delay { ms } => {
                    inner.done.delayed += 1;
                    Fate::Late(Duration::from_millis(ms))
                }
                Mode::Pass
                | Mode::RefuseSome { .. }
                | Mode::ResetMidResponse { .. }
                | Mode::ResetBeforeResponse { .. }
                | Mode::AnswerInstead { .. } => Fate::Pass,
            }
        })
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of file descriptors: some come back when connections end.
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
            let Ok(mut server) = TcpStream::connect(shared.upstream).await else {
                // What the client would have met without us.
                reset(&client);
                return;
            };
            let mut client = client;
            for stream in [&client, &server] {
                // Small messages back and forth: waiting to fill a packet would slow them.
                let _ = stream.set_nodelay(true);
            }
            if !matches!(pass(&mut client, &mut server, &shared).await, Ok(true)) {
                reset(&client);
                reset(&server);
            }
        });
    }
}

/// Closes by a reset, once it is dropped.
fn reset(stream: &TcpStream) {
    // Fails only for a stream that is closed.
    let _ = stream.set_zero_linger();
}

/// Passes on what both say. Says whether it ended as the two wished.
async fn pass(client: &mut TcpStream, server: &mut TcpStream, shared: &Shared) -> io::Result<bool> {
    let mut mode = shared.mode.subscribe();
    let (mut asked, mut answer) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut asking, mut server_listens, mut at_rest) = (false, true, true);
    let mut reading = Reading::new(Arc::clone(&shared.witness));
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
                    reading.asked(&asked[..length]);
                    server.write_all(&asked[..length]).await?;
                    (asking, at_rest) = (true, false);
                }
            },
            read = server.read(&mut answer) => match read? {
                0 => return Ok(true),
                length => {
                    let begins = std::mem::take(&mut asking);
                    reading.answered();
                    let fate = if begins { shared.fate(length) } else { Fate::Pass };
                    let passed = match fate {
                        Fate::Pass => length,
                        Fate::Late(late) => {
                            tokio::time::sleep(late).await;
                            length
                        }
                        Fate::Lost => return Ok(false),
                        Fate::Replaced(status) => {
                            client.write_all(&bare(status)).await?;
                            client.shutdown().await?;
                            return Ok(true);
                        }
                        Fate::Cut(chosen) => part(chosen, length),
                    };
                    client.write_all(&answer[..passed]).await?;
                    if passed < length {
                        return Ok(false);
                    }
                    // Perhaps not its end; a connection let go of too early is chaos, too.
                    at_rest = true;
                }
            },
        }
    }
}

/// An answer of nothing but its status, after which the connection is over.
fn bare(status: u16) -> Vec<u8> {
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

    /// Answers whatever comes, as often as it comes, and counts.
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
    async fn ask(stream: &mut TcpStream) -> (Vec<u8>, Option<io::ErrorKind>) {
        let mut heard = Vec::new();
        if let Err(error) = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await {
            return (heard, Some(error.kind()));
        }
        let mut buffer = [0; 1_024];
        while heard.len() < ANSWER.len() {
            match stream.read(&mut buffer).await {
                Ok(0) => return (heard, Some(io::ErrorKind::UnexpectedEof)),
                Ok(length) => heard.extend_from_slice(&buffer[..length]),
                Err(error) => return (heard, Some(error.kind())),
            }
        }
        (heard, None)
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
        let chaos = Chaos::in_front_of(address, 1).await.unwrap();
        let mut stream = TcpStream::connect(chaos.address()).await.unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&mut stream).await, (ANSWER.to_vec(), None));
        }
        let done = Done {
            connections: 1,
            answers: 3,
            ..Done::default()
        };
        assert_eq!(chaos.done(), done);
    }

    #[tokio::test]
    async fn a_cut_answer_is_a_part_and_a_reset() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1).await.unwrap();
        chaos.set(Mode::ResetMidResponse { one_in: 1 });
        for _ in 0..20 {
            let (heard, error) = ask_once(&chaos).await;
            assert_eq!(error, Some(io::ErrorKind::ConnectionReset));
            assert!(heard.len() < ANSWER.len());
            assert!(ANSWER.starts_with(&heard));
        }
        assert_eq!(*seen.borrow(), 20);
        assert_eq!(chaos.done().reset_mid_response, 20);
    }

    #[tokio::test]
    async fn a_lost_answer_is_a_reset_after_the_application_was_asked() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1).await.unwrap();
        chaos.set(Mode::ResetBeforeResponse { one_in: 1 });
        let reset = Some(io::ErrorKind::ConnectionReset);
        assert_eq!(ask_once(&chaos).await, (Vec::new(), reset));
        assert_eq!(*seen.borrow(), 1);
        assert_eq!(chaos.done().reset_before_response, 1);
        chaos.set(Mode::Pass);
        assert_eq!(ask_once(&chaos).await, (ANSWER.to_vec(), None));
    }

    #[tokio::test]
    async fn another_answer_comes_after_the_application_was_asked() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1).await.unwrap();
        chaos.set(Mode::AnswerInstead { one_in: 1 });
        for asked in 1..=20 {
            let (heard, error) = ask_once(&chaos).await;
            let heard = String::from_utf8(heard).unwrap();
            let statuses = ["HTTP/1.1 502", "HTTP/1.1 503", "HTTP/1.1 504"];
            assert!(
                statuses.iter().any(|status| heard.starts_with(status)),
                "{heard}"
            );
            assert!(!heard.contains("hello"));
            // The whole answer was heard, so that there was no error but perhaps the end.
            assert!(
                matches!(error, None | Some(io::ErrorKind::UnexpectedEof)),
                "{error:?}"
            );
            assert_eq!(*seen.borrow(), asked);
        }
        assert_eq!(chaos.done().answered_instead, 20);
    }

    #[tokio::test]
    async fn a_refused_connection_does_not_reach_the_application() {
        let (address, seen, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1).await.unwrap();
        let mut at_rest = TcpStream::connect(chaos.address()).await.unwrap();
        assert_eq!(ask(&mut at_rest).await.1, None);
        chaos.set(Mode::RefuseSome { one_in: 1 });
        assert_eq!(at_rest.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(ask_once(&chaos).await.1.is_some());
        assert_eq!(*seen.borrow(), 1);
        assert_eq!(chaos.done().refused, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_answer_is_late() {
        let (address, _, _serving) = application().await;
        let chaos = Chaos::in_front_of(address, 1).await.unwrap();
        chaos.set(Mode::Delay { ms: 60_000 });
        let began = tokio::time::Instant::now();
        assert_eq!(ask_once(&chaos).await, (ANSWER.to_vec(), None));
        assert!(began.elapsed() >= Duration::from_mins(1));
        assert_eq!(chaos.done().delayed, 1);
    }

    #[test]
    fn a_part_is_neither_nothing_nor_all() {
        for chosen in 0..100 {
            assert!((1..5).contains(&part(chosen, 5)));
        }
    }
}
