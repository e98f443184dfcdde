//! A proxy in front of the gateway that resets, stalls, refuses, or is down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the proxy does with a request, in per cent.
const RESET_BEFORE: u64 = 5;
const RESET_AFTER: u64 = 5;
const STALL_BEFORE: u64 = 5;
const STALL_AFTER: u64 = 5;
const REFUSED: u64 = 5;

const TOO_MANY: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    gateway: String,
    requests: Arc<AtomicU64>,
    listening: Option<JoinHandle<()>>,
}

impl Proxy {
    /// `gateway` is a URL.
    pub(crate) async fn start(gateway: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut proxy = Self {
            address: listener.local_addr()?,
            gateway: gateway.trim_start_matches("http://").to_owned(),
            requests: Arc::default(),
            listening: None,
        };
        proxy.serve(listener);
        Ok(proxy)
    }

    /// Nothing listens any more.
    pub(crate) async fn stop(&mut self) {
        if let Some(task) = self.listening.take() {
            task.abort();
            let _ = task.await;
        }
    }

    pub(crate) async fn restart(&mut self) -> Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.serve(listener);
        Ok(())
    }

    fn serve(&mut self, listener: TcpListener) {
        let (gateway, requests) = (self.gateway.clone(), Arc::clone(&self.requests));
        self.listening = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let nth = requests.fetch_add(1, Ordering::Relaxed);
                let gateway = gateway.clone();
                tokio::spawn(async move {
                    // A connection that breaks is what this proxy is for.
                    let _ = pass_on(stream, &gateway, mix(nth) % 100).await;
                });
            }
        }));
    }
}

/// One request a connection.
async fn pass_on(mut client: TcpStream, gateway: &str, chance: u64) -> Result<()> {
    let request = read_message(&mut client).await?;
    if chance < RESET_BEFORE {
        return Ok(());
    }
    if chance < RESET_BEFORE + REFUSED {
        client.write_all(TOO_MANY).await?;
        return Ok(());
    }
    let chance = chance - RESET_BEFORE - REFUSED;
    if chance < STALL_BEFORE {
        return wait_for_end(client).await;
    }
    let mut server = TcpStream::connect(gateway).await?;
    server.write_all(&request).await?;
    let response = read_message(&mut server).await?;
    if chance < STALL_BEFORE + RESET_AFTER {
        return Ok(());
    }
    if chance < STALL_BEFORE + RESET_AFTER + STALL_AFTER {
        return wait_for_end(client).await;
    }
    client.write_all(&response).await?;
    client.shutdown().await?;
    wait_for_end(client).await
}

/// The client gives up.
async fn wait_for_end(mut client: TcpStream) -> Result<()> {
    while client.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}

/// A head and a body with a length.
async fn read_message(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(Ok(0), |length| length.trim().parse())?;
            if bytes.len() >= end + 4 + length {
                return Ok(bytes);
            }
        }
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "it ended");
    }
}

/// Spreads a counter: the same requests fail in every run of one schedule.
fn mix(nth: u64) -> u64 {
    let mut x = nth.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
