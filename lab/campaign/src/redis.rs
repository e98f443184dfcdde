//! A Redis server that is flushed and killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::free_address;

/// The timeout of a command to the local Redis.
const PATIENCE: Duration = Duration::from_secs(5);
/// Another process may take the port between its choice and the server's start.
const START_ATTEMPTS: usize = 3;
/// The line that Redis prints when it accepts connections.
const READY: &str = "eady to accept connections";

/// A Redis without persistence. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Redis {
    port: u16,
    child: Option<Child>,
}

impl Redis {
    /// Starts one on a free port.
    pub(crate) fn start() -> Result<Self> {
        let mut attempt = 1;
        loop {
            let port = free_address()?.port();
            let mut redis = Self { port, child: None };
            match redis.start_again() {
                Ok(()) => return Ok(redis),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Deletes all keys. Returns their number.
    pub(crate) fn flush(&self) -> Result<u64> {
        let keys = self.ask("DBSIZE")?;
        let keys = keys.strip_prefix(':').and_then(|keys| keys.parse().ok());
        let answer = self.ask("FLUSHALL")?;
        if answer != "+OK" {
            bail!("Redis answered FLUSHALL with {answer}");
        }
        keys.context("Redis returned no number of keys")
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("cannot kill Redis")?;
            child.wait().context("cannot wait for Redis")?;
        }
        Ok(())
    }

    /// Starts it again at the same address, empty. Does nothing while it runs.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
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
        let mut redis = match Redis::start() {
            Ok(redis) => redis,
            Err(error) => {
                println!("SKIPPED: {error:#}");
                return;
            }
        };
        let url = redis.url();
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
        assert_eq!(redis.url(), url);
        missing(&redis);
    }
}
