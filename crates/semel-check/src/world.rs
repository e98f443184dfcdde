//! What a probe needs of the outside. A test puts its own in its place: connections in memory,
//! and a clock that nobody waits for.

use std::io;
use std::pin::Pin;
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::Address;

/// Something that is waited for.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connections and commands.
pub trait World: Send + Sync {
    /// Opens a connection. It is closed by dropping it.
    fn connect<'a>(&'a self, to: &'a Address) -> Pending<'a, io::Result<Box<dyn Stream>>>;

    /// Runs a command and gives back what it printed; an error where it failed.
    fn ask<'a>(&'a self, command: &'a str) -> Pending<'a, io::Result<String>>;

    /// Runs a command to its end; an error where it failed. What it starts may go on.
    fn run<'a>(&'a self, command: &'a str) -> Pending<'a, io::Result<()>>;
}

/// The network and the shell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

impl World for Real {
    fn connect<'a>(&'a self, to: &'a Address) -> Pending<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(to.endpoint()).await?;
            stream.set_nodelay(true)?;
            if to.secure {
                return encrypted(stream, to).await;
            }
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn ask<'a>(&'a self, command: &'a str) -> Pending<'a, io::Result<String>> {
        Box::pin(async move {
            let output = shell(command).stdout(Stdio::piped()).output().await?;
            ended(output.status)?;
            String::from_utf8(output.stdout)
                .map_err(|_| io::Error::other("it printed something else than text"))
        })
    }

    fn run<'a>(&'a self, command: &'a str) -> Pending<'a, io::Result<()>> {
        Box::pin(async move {
            // No pipe: a server that the command starts would hold it open for ever.
            ended(shell(command).stdout(Stdio::null()).status().await?)
        })
    }
}

/// Its errors are the user's to read.
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
    shell.kill_on_drop(true);
    shell
}

fn ended(status: std::process::ExitStatus) -> io::Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("the command ended with {status}")))
}

#[cfg(feature = "tls")]
async fn encrypted(stream: TcpStream, to: &Address) -> io::Result<Box<dyn Stream>> {
    crate::tls::connect(stream, to).await
}

#[cfg(not(feature = "tls"))]
async fn encrypted(_: TcpStream, _: &Address) -> io::Result<Box<dyn Stream>> {
    Err(io::Error::other("https:// is not built into this binary"))
}
