//! One client connection, from the TLS handshake to the close.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, TimerAction};
use super::bridge::Bridge;
use super::wire::{Stream, Wire};
use super::{Handler, Limits, Peer, ResponseBody, Tls};

/// The HTTP/2 connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Size of the first read: most request heads fit.
const FIRST_READ: usize = 4096;

/// More than the scanner adds to a head that is too large.
const HEAD_ENDING: usize = 64;

/// When the kernel begins to check that a silent client is still there, and how often it does. A
/// client that has closed only its own side looks the same as one that is gone.
const KEEP_ALIVE_TIME: Duration = Duration::from_mins(1);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How long a stopping server waits for the first byte of a connection that it has accepted. The
/// client may have sent its request already, and a close would look like a failed execution to it.
const FIRST_BYTE_GRACE: Duration = Duration::from_secs(1);

/// The two steps in which a server stops.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    /// It is asked to stop: responses ask clients to close their connections.
    pub(super) asked: CancellationToken,
    /// It stops: connections are closed once their running requests are answered.
    pub(super) now: CancellationToken,
}

/// Serves one connection. Ends when either side closes, a limit is reached, or the server stops and
/// the running requests are answered.
pub(super) async fn run<S, RB>(
    stream: TcpStream,
    address: SocketAddr,
    service: S,
    limits: Arc<Limits>,
    tls: Option<Tls>,
    stop: Stop,
    permit: OwnedSemaphorePermit,
) where
    S: Handler<RB>,
    RB: ResponseBody,
{
    // Responses are written in one piece; Nagle's algorithm would only add latency.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_TIME)
        .with_interval(KEEP_ALIVE_INTERVAL);
    if SockRef::from(&stream)
        .set_tcp_keepalive(&keep_alive)
        .is_err()
    {
        return;
    }
    let secure = tls.is_some();
    let handshake = async {
        let stream = accept_tls(stream, tls).await?;
        detect_protocol(stream).await
    };
    let opened = tokio::select! {
        biased;
        opened = timeout(limits.header_timeout, handshake) => opened,
        () = async {
            stop.now.cancelled().await;
            tokio::time::sleep(FIRST_BYTE_GRACE).await;
        } => return,
    };
    let Ok(Ok(Some((stream, buffered, protocol)))) = opened else {
        return;
    };

    let activity = Arc::new(Activity::new(protocol == Protocol::Http2));
    let bridge = Bridge {
        service,
        peer: Peer::new(address, secure),
        activity: Arc::clone(&activity),
        body_idle_timeout: limits.body_idle_timeout,
        max_header_bytes: limits.max_header_bytes,
        requests: AtomicU64::new(0),
    };
    let scanned = protocol == Protocol::Http1;
    let wire = Wire::new(
        stream,
        buffered,
        scanned,
        Arc::clone(&activity),
        &limits,
        permit,
    );
    let io = TokioIo::new(wire);
    match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                // `drive` tells an idle connection from a slow head, and needs no timer per request.
                .header_read_timeout(None)
                // The scanner refuses first, and completes the head for hyper.
                .max_header_size(limits.max_header_bytes + HEAD_ENDING)
                .serve_connection(io, bridge)
                .with_upgrades();
            drive(
                pin!(connection),
                http1::UpgradeableConnection::graceful_shutdown,
                &activity,
                &limits,
                &stop,
            )
            .await;
        }
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits.max_concurrent_streams)
                // `Bridge` refuses first, with a response that names the limit.
                .max_header_list_size(
                    u32::try_from(limits.max_header_bytes.saturating_mul(2)).unwrap_or(u32::MAX),
                )
                // A ping detects a peer that vanished without closing.
                .keep_alive_interval(limits.idle_timeout)
                .keep_alive_timeout(limits.header_timeout)
                .serve_connection(io, bridge);
            drive(
                pin!(connection),
                http2::Connection::graceful_shutdown,
                &activity,
                &limits,
                &stop,
            )
            .await;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

async fn accept_tls(stream: TcpStream, tls: Option<Tls>) -> io::Result<Stream> {
    Ok(match tls {
        Some(tls) => Stream::Tls(Box::new(tls.acceptor.accept(stream).await?)),
        None => Stream::Plain(stream),
    })
}

/// Detects which protocol the client speaks. Returns the bytes read so far, to be parsed again.
/// `None` if the client closed without sending anything.
async fn detect_protocol(mut stream: Stream) -> io::Result<Option<(Stream, BytesMut, Protocol)>> {
    if let Stream::Tls(tls) = &stream
        && tls.get_ref().1.alpn_protocol() == Some(b"h2")
    {
        return Ok(Some((stream, BytesMut::new(), Protocol::Http2)));
    }
    let mut buffered = BytesMut::with_capacity(FIRST_READ);
    loop {
        if stream.read_buf(&mut buffered).await? == 0 {
            return Ok(None);
        }
        let common = buffered.len().min(PREFACE.len());
        if buffered[..common] != PREFACE[..common] {
            return Ok(Some((stream, buffered, Protocol::Http1)));
        }
        if common == PREFACE.len() {
            return Ok(Some((stream, buffered, Protocol::Http2)));
        }
    }
}

/// Polls a connection together with its timer and the shutdown signal.
async fn drive<C>(
    mut connection: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
    activity: &Activity,
    limits: &Limits,
    stop: &Stop,
) where
    C: Future<Output = hyper::Result<()>>,
{
    let mut asked = pin!(stop.asked.cancelled());
    let mut stop = pin!(stop.now.cancelled());
    let mut closing = false;
    let mut timer = pin!(sleep_until(activity.first_check(limits)));
    let mut finishing = false;
    poll_fn(|cx| {
        loop {
            if !closing && asked.as_mut().poll(cx).is_ready() {
                closing = true;
                activity.note_closing();
            }
            // Polled first, so that a request which has arrived is answered even if the shutdown
            // came at the same time.
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                return Poll::Ready(());
            }
            if !finishing && stop.as_mut().poll(cx).is_ready() {
                finishing = true;
                finish(connection.as_mut());
                continue;
            }
            // One timer per connection. It is reset only when it fires, or when a head arrives in
            // pieces.
            if let Some(deadline) = activity.head_deadline(limits)
                && deadline < timer.deadline()
            {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            match activity.timer_action(now, limits) {
                TimerAction::Wait(deadline) => timer.as_mut().reset(deadline),
                // First a graceful shutdown, then a hard close.
                TimerAction::Idle if !finishing => {
                    finishing = true;
                    finish(connection.as_mut());
                    timer.as_mut().reset(now + limits.header_timeout);
                }
                TimerAction::Stalled => {
                    tracing::debug!("the client does not read its response");
                    return Poll::Ready(());
                }
                TimerAction::Idle | TimerAction::SlowHead => return Poll::Ready(()),
            }
        }
    })
    .await;
}
