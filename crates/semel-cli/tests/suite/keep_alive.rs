//! Applications that close idle connections, each in its own way, behind a link with latency: no
//! payment becomes unknown because its connection was being closed.

use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::frameworks::{App, CONFIG, installed, program};
use crate::support::GatewayDirectory;
use crate::support::http::Connection;

/// One way, as between two machines of a data centre.
const LATENCY: Duration = Duration::from_millis(1);

/// Each application closes a connection that was idle for this long.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Pauses between two bursts: shortly before, at and after the moment of the close.
const PAUSES: [i64; 9] = [-120, -60, -10, -4, -2, 0, 2, 10, 60];

/// Concurrent payments of a burst.
const BURST: usize = 16;

/// Bursts for each application. The variable makes the run as long as a release requires.
fn bursts() -> usize {
    let asked = env::var("SEMEL_KEEP_ALIVE_BURSTS").ok();
    asked.map_or(PAUSES.len() * 2, |bursts| bursts.parse().unwrap())
}

/// A link to the application.
async fn slow_link(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.unwrap();
            for stream in [&near, &far] {
                stream.set_nodelay(true).unwrap();
            }
            let ((near_read, near_write), (far_read, far_write)) =
                (near.into_split(), far.into_split());
            tokio::spawn(delay(near_read, far_write));
            tokio::spawn(delay(far_read, near_write));
        }
    });
    address
}

/// Passes bytes, and the end of the stream, after the latency.
async fn delay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (sent, mut received) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async move {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + LATENCY;
            let _ = sent.send((due, buffer[..length].to_vec()));
        }
        let _ = sent.send((Instant::now() + LATENCY, Vec::new()));
    };
    let writing = async move {
        while let Some((due, bytes)) = received.recv().await {
            // sleeps because the link has a latency
            sleep_until(due).await;
            if bytes.is_empty() || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}

async fn check(app: App) {
    let link = slow_link(app.address).await;
    let directory = GatewayDirectory::new(CONFIG);
    let gateway = directory.start(&format!("http://{link}"));
    let (before, bursts) = (app.effects().await, bursts());
    for burst in 0..bursts {
        let mut paying = JoinSet::new();
        for number in 0..BURST {
            let address = gateway.address;
            paying.spawn(async move {
                let request = format!(
                    "POST /payments HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: \"burst-{burst}-{number}\"\r\n\
                     Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
                );
                let mut connection = Connection::open(address).await.unwrap();
                connection.ask(request.as_bytes()).await.unwrap()
            });
        }
        for answer in paying.join_all().await {
            assert_eq!(answer.status(), 201, "burst {burst}: {answer:?}");
        }
        let pause = i64::try_from(KEEP_ALIVE.as_millis()).unwrap() + PAUSES[burst % PAUSES.len()];
        // sleeps because the application closes its connections by its own clock
        sleep(Duration::from_millis(pause.unsigned_abs())).await;
    }
    assert_eq!(app.effects().await - before, bursts * BURST);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_payment_is_lost_when_gunicorn_closes_idle_connections() {
    let Some(python) = installed("SEMEL_PYTHON_WEB") else {
        return;
    };
    let mut command = Command::new(python);
    command.arg(program("gunicorn_app.py"));
    check(App::start(command).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_payment_is_lost_when_uvicorn_closes_idle_connections() {
    let Some(python) = installed("SEMEL_PYTHON_WEB") else {
        return;
    };
    let mut command = Command::new(python);
    command.arg(program("uvicorn_app.py"));
    check(App::start(command).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_payment_is_lost_when_node_closes_idle_connections() {
    // Where Express is installed, Node is.
    if installed("SEMEL_EXPRESS").is_none() {
        return;
    }
    let mut command = Command::new("node");
    command.arg(program("node_http.mjs"));
    check(App::start(command).await).await;
}
