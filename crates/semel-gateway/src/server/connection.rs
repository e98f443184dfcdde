//! One client connection, from the handshake to the close.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Verdict};
use super::bridge::Bridge;
use super::wire::{Stream, Wire};
use super::{Handler, Limits, Peer, ResponseBody, Tls};

/// How an HTTP/2 client begins when nothing was agreed before (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first read: most heads fit, so that hyper finds its request whole.
const FIRST_READ: usize = 4096;

/// Serves one connection. Ends when either side closes, a limit is reached, or `shutdown` is
/// called and the requests under way are answered.
pub(super) async fn run<S, RB>(
    stream: TcpStream,
    address: SocketAddr,
    service: S,
    limits: Arc<Limits>,
    tls: Option<Tls>,
    shutdown: CancellationToken,
    permit: OwnedSemaphorePermit,
) where
    S: Handler<RB>,
    RB: ResponseBody,
{
    // Answers are written whole; waiting to join them with more only adds latency.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let secure = tls.is_some();
    let greeting = async {
        let stream = greet(stream, tls).await?;
        sniff(stream).await
    };
    let greeted = tokio::select! {
        biased;
        greeted = timeout(limits.header_timeout, greeting) => greeted,
        () = shutdown.cancelled() => return,
    };
    let Ok(Ok(Some((stream, ahead, protocol)))) = greeted else {
        return;
    };

    let activity = Arc::new(Activity::new());
    let bridge = Bridge {
        service,
        peer: Peer::new(address, secure),
        activity: Arc::clone(&activity),
        body_idle_timeout: limits.body_idle_timeout,
    };
    let scanned = protocol == Protocol::Http1;
    let wire = Wire::new(
        stream,
        ahead,
        scanned,
        Arc::clone(&activity),
        &limits,
        permit,
    );
    let io = TokioIo::new(wire);
    match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                // Ours tells an idle connection from a slow head and needs no timer per request.
                .header_read_timeout(None)
                .max_header_size(limits.max_header_bytes)
                .serve_connection(io, bridge)
                .with_upgrades();
            drive(
                pin!(connection),
                http1::UpgradeableConnection::graceful_shutdown,
                &activity,
                &limits,
                &shutdown,
            )
            .await;
        }
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits.max_concurrent_streams)
                .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
                // A peer that is gone without a word is found by a ping.
                .keep_alive_interval(limits.idle_timeout)
                .keep_alive_timeout(limits.header_timeout)
                .serve_connection(io, bridge);
            drive(
                pin!(connection),
                http2::Connection::graceful_shutdown,
                &activity,
                &limits,
                &shutdown,
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

async fn greet(stream: TcpStream, tls: Option<Tls>) -> io::Result<Stream> {
    Ok(match tls {
        Some(tls) => Stream::Tls(Box::new(tls.acceptor.accept(stream).await?)),
        None => Stream::Plain(stream),
    })
}

/// Finds out which protocol the client speaks. What was read for it is returned, to be read
/// again. `None` if the client left without a word.
async fn sniff(mut stream: Stream) -> io::Result<Option<(Stream, BytesMut, Protocol)>> {
    if let Stream::Tls(tls) = &stream
        && tls.get_ref().1.alpn_protocol() == Some(b"h2")
    {
        return Ok(Some((stream, BytesMut::new(), Protocol::Http2)));
    }
    let mut ahead = BytesMut::with_capacity(FIRST_READ);
    loop {
        if stream.read_buf(&mut ahead).await? == 0 {
            return Ok(None);
        }
        let common = ahead.len().min(PREFACE.len());
        if ahead[..common] != PREFACE[..common] {
            return Ok(Some((stream, ahead, Protocol::Http1)));
        }
        if common == PREFACE.len() {
            return Ok(Some((stream, ahead, Protocol::Http2)));
        }
    }
}

/// Polls a connection together with its timer and the call to stop.
async fn drive<C>(
    mut connection: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
    activity: &Activity,
    limits: &Limits,
    shutdown: &CancellationToken,
) where
    C: Future<Output = hyper::Result<()>>,
{
    let mut stop = pin!(shutdown.cancelled());
    let mut timer = pin!(sleep_until(Instant::now() + limits.idle_timeout));
    let mut finishing = false;
    poll_fn(|cx| {
        loop {
            // First of all, so that a request which has arrived is answered even if the call to
            // stop came at the same time.
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
            // One timer for the connection's life. It is moved forward only when it fires, or
            // when a head turns out to come in pieces.
            if let Some(deadline) = activity.head_deadline(limits)
                && deadline < timer.deadline()
            {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            match activity.verdict(now, limits) {
                Verdict::Wait(deadline) => timer.as_mut().reset(deadline),
                // The first time a client is told to go, the second time it is put out.
                Verdict::Idle if !finishing => {
                    finishing = true;
                    finish(connection.as_mut());
                    timer.as_mut().reset(now + limits.header_timeout);
                }
                Verdict::Idle | Verdict::SlowHead => return Poll::Ready(()),
            }
        }
    })
    .await;
}
