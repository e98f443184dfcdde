//! A Redis server that is flushed, killed, cut off and promoted.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::process::free_address;
use crate::tls::Tls;

/// The timeout of a command to the local Redis.
const PATIENCE: Duration = Duration::from_secs(5);
/// Another process may take the port between its choice and the server's start.
const START_ATTEMPTS: usize = 3;
/// A port at which there is no server: the first one needs root, and has had no use for decades.
const NO_SERVER: u16 = 1;
/// The line that Redis prints when it accepts connections.
const READY: &str = "eady to accept connections";

/// A Redis that saves nothing but what it copies from a primary. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Redis {
    /// For commands of the campaign.
    port: u16,
    /// For gateways.
    tls_port: u16,
    tls: Tls,
    directory: TempDir,
    child: Option<Child>,
}

impl Redis {
    /// Starts one on a free port.
    pub(crate) fn start(tls: &Tls) -> Result<Self> {
        let mut attempt = 1;
        loop {
            let mut redis = Self {
                port: free_address()?.port(),
                tls_port: free_address()?.port(),
                tls: tls.clone(),
                directory: tempfile::tempdir()?,
                child: None,
            };
            match redis.start_again() {
                Ok(()) => return Ok(redis),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    /// For gateways.
    pub(crate) fn tls_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.tls_port).into()
    }

    /// Becomes a replica: it takes over all that the primary has, and nothing else.
    pub(crate) fn follow(&self, primary: &Self) -> Result<()> {
        self.command(&format!("REPLICAOF 127.0.0.1 {}", primary.port))
    }

    /// Keeps what it has, as a replica whose primary cannot be reached.
    pub(crate) fn follow_nothing(&self) -> Result<()> {
        self.command(&format!("REPLICAOF 127.0.0.1 {NO_SERVER}"))
    }

    /// Becomes a primary with what it has. Returns the number of its keys.
    pub(crate) fn lead(&self) -> Result<u64> {
        self.command("REPLICAOF NO ONE")?;
        self.keys()
    }

    /// Deletes all keys. Returns their number.
    pub(crate) fn flush(&self) -> Result<u64> {
        let keys = self.keys()?;
        self.command("FLUSHALL")?;
        Ok(keys)
    }

    fn keys(&self) -> Result<u64> {
        let keys = self.ask("DBSIZE")?;
        let keys = keys.strip_prefix(':').and_then(|keys| keys.parse().ok());
        keys.context("Redis returned no number of keys")
    }

    fn command(&self, command: &str) -> Result<()> {
        let answer = self.ask(command)?;
        // A replica of the same primary already says so after its OK.
        if !answer.starts_with("+OK") {
            bail!("Redis answered {command} with {answer}");
        }
        Ok(())
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("cannot kill Redis")?;
            child.wait().context("cannot wait for Redis")?;
        }
        Ok(())
    }

    /// Starts it again at the same address, empty, or with what it once copied from a primary. Does
    /// nothing while it runs.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--tls-port", &self.tls_port.to_string()])
            .args(["--tls-auth-clients", "no", "--tls-cert-file"])
            .arg(&self.tls.certificate)
            .arg("--tls-ca-cert-file")
            .arg(&self.tls.certificate)
            .arg("--tls-key-file")
            .arg(&self.tls.key)
            // By default it waits for more replicas.
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(self.directory.path())
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start redis-server: is the package `redis-server` installed?")?;
        let output = child.stdout.take();
        // Stored first, so that it is killed on any error below.
        self.child = Some(child);
        let mut log = String::new();
        // Redis tolerates that its standard output is closed afterwards.
        for line in BufReader::new(output.context("Redis has no output")?).lines() {
            let line = line?;
            if line.contains(READY) {
                return Ok(());
            }
            log.push_str(&line);
            log.push('\n');
        }
        self.kill()?;
        bail!("Redis ended instead of answering:\n{log}")
    }

    /// The first line of the answer.
    fn ask(&self, command: &str) -> Result<String> {
        let address = (Ipv4Addr::LOCALHOST, self.port).into();
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)
            .context("Redis does not take a connection")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_flushed_killed_and_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let tls = Tls::create(directory.path()).unwrap();
        let mut redis = match Redis::start(&tls) {
            Ok(redis) => redis,
            Err(error) => {
                println!("SKIPPED: {error:#}");
                return;
            }
        };
        let address = redis.tls_address();
        let set = |redis: &Redis| assert_eq!(redis.ask("SET a b").unwrap(), "+OK");
        let missing = |redis: &Redis| assert_eq!(redis.ask("GET a").unwrap(), "$-1");
        set(&redis);
        assert_eq!(redis.ask("GET a").unwrap(), "$1");
        assert_eq!(redis.flush().unwrap(), 1);
        assert_eq!(redis.flush().unwrap(), 0);
        missing(&redis);
        set(&redis);

        redis.kill().unwrap();
        redis.kill().unwrap();
        assert!(redis.flush().is_err());

        redis.start_again().unwrap();
        redis.start_again().unwrap();
        assert_eq!(redis.tls_address(), address);
        missing(&redis);
    }

    #[tokio::test]
    async fn a_replica_that_was_cut_off_leads_with_what_it_had() {
        let directory = tempfile::tempdir().unwrap();
        let tls = Tls::create(directory.path()).unwrap();
        let start = || Redis::start(&tls);
        let (primary, replica) = match (start(), start()) {
            (Ok(primary), Ok(replica)) => (primary, replica),
            (Err(error), _) | (_, Err(error)) => {
                println!("SKIPPED: {error:#}");
                return;
            }
        };
        replica.follow(&primary).unwrap();
        assert_eq!(primary.ask("SET a b").unwrap(), "+OK");
        while replica.ask("GET a").unwrap() != "$1" {
            // sleeps because Redis replicates in another process.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        replica.follow_nothing().unwrap();
        assert_eq!(primary.ask("DEL a").unwrap(), ":1");
        assert_eq!(replica.lead().unwrap(), 1);
        assert_eq!(replica.ask("GET a").unwrap(), "$1");
        primary.follow(&replica).unwrap();
        while primary.ask("GET a").unwrap() != "$1" {
            // sleeps because Redis replicates in another process.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
