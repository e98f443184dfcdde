//! A Redis primary and its replica behind one address, which a failover moves to the replica.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::faults::FaultInjector;
use crate::redis::Redis;
use crate::tls::Tls;

/// Dropping it kills both servers.
#[derive(Debug)]
pub(crate) struct RedisPair {
    servers: [Redis; 2],
    /// The index of the primary.
    primary: usize,
    forwarder: Forwarder,
}

/// Forwards connections to an address that changes, as managed services do.
#[derive(Debug)]
struct Forwarder {
    address: SocketAddr,
    target: Arc<watch::Sender<Target>>,
    _accepting: JoinSet<()>,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    address: SocketAddr,
    /// Whether connections to earlier targets stay open.
    keeps_connections: bool,
}

impl RedisPair {
    pub(crate) async fn start(tls: &Tls) -> Result<Self> {
        let servers = [Redis::start(tls)?, Redis::start(tls)?];
        servers[1].follow(&servers[0])?;
        let forwarder = Forwarder::start(servers[0].tls_address()).await?;
        Ok(Self {
            servers,
            primary: 0,
            forwarder,
        })
    }

    /// Where the primary is, always.
    pub(crate) fn url(&self) -> String {
        format!("rediss://{}/0", self.forwarder.address)
    }

    pub(crate) fn primary(&self) -> &Redis {
        &self.servers[self.primary]
    }

    pub(crate) fn primary_mut(&mut self) -> &mut Redis {
        &mut self.servers[self.primary]
    }

    fn replica(&self) -> &Redis {
        &self.servers[1 - self.primary]
    }

    /// Promotes the replica with what it has, and moves the address to it. Returns the number of its
    /// keys.
    fn fail_over(&mut self, keeps_connections: bool) -> Result<u64> {
        let keys = self.replica().lead()?;
        self.primary = 1 - self.primary;
        self.forwarder.target.send_replace(Target {
            address: self.primary().tls_address(),
            keeps_connections,
        });
        self.replica().follow(self.primary())?;
        Ok(keys)
    }
}

impl Forwarder {
    async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("cannot listen")?;
        let address = listener.local_addr()?;
        let target = Arc::new(watch::Sender::new(Target {
            address: to,
            keeps_connections: false,
        }));
        let mut accepting = JoinSet::new();
        accepting.spawn(forward(listener, Arc::clone(&target)));
        Ok(Self {
            address,
            target,
            _accepting: accepting,
        })
    }
}

async fn forward(listener: TcpListener, target: Arc<watch::Sender<Target>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            // Out of file descriptors: some are freed when connections end.
            connections.join_next().await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let mut target = target.subscribe();
        connections.spawn(async move {
            let address = target.borrow_and_update().address;
            let Ok(mut server) = TcpStream::connect(address).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = target.wait_for(|now| now.address != address && !now.keeps_connections) => {}
            }
        });
    }
}

impl FaultInjector {
    /// Cuts the replica off for a while, and promotes it with what it had then. Counted only if it had
    /// something, and responses were erased meanwhile.
    pub(crate) async fn fail_over_redis(&self, lag_ms: u64, keeps_connections: bool) -> Result<()> {
        let _recovering = self.recovering.redis().lock().await;
        self.test_bed.redis().replica().follow_nothing()?;
        let erased = self.recorder.erasures();
        sleep(Duration::from_millis(lag_ms)).await;
        let keys = self.test_bed.redis().fail_over(keeps_connections)?;
        if keys > 0 && self.recorder.erasures() > erased {
            self.recorder.fault("fail_over_redis", "redis");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that greets with its name, and then waits.
    async fn server(name: u8) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(&[name]).await.unwrap();
                open.push(stream);
            }
        });
        address
    }

    async fn greeting(forwarder: &Forwarder) -> (TcpStream, u8) {
        let mut stream = TcpStream::connect(forwarder.address).await.unwrap();
        let name = stream.read_u8().await.unwrap();
        (stream, name)
    }

    #[tokio::test]
    async fn connections_are_closed_or_kept_when_the_target_changes() {
        let (a, b) = (server(b'a').await, server(b'b').await);
        let forwarder = Forwarder::start(a).await.unwrap();
        let (mut first, name) = greeting(&forwarder).await;
        assert_eq!(name, b'a');
        let move_to = |address, keeps_connections| {
            forwarder.target.send_replace(Target {
                address,
                keeps_connections,
            });
        };
        move_to(b, true);
        let (mut second, name) = greeting(&forwarder).await;
        assert_eq!(name, b'b');
        first.write_all(b"x").await.unwrap();
        move_to(a, false);
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(greeting(&forwarder).await.1, b'a');
    }
}
