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
            // Not `output`, which takes the errors as well and would keep them from the user.
            let child = shell(command).stdout(Stdio::piped()).spawn()?;
            let output = child.wait_with_output().await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_gives_what_it_printed_or_how_it_failed() {
        assert_eq!(Real.ask("echo 3").await.unwrap(), "3\n");
        let failed = Real.ask("echo 3; exit 7").await.unwrap_err();
        assert!(failed.to_string().contains('7'), "{failed}");
        assert!(Real.run("exit 0").await.is_ok());
        assert!(Real.run("exit 7").await.is_err());
    }

    /// Where it writes its errors to is where we do.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_errors_of_a_command_are_the_users_to_read() {
        let ours = std::fs::read_link("/proc/self/fd/2").unwrap();
        let told = Real.ask("readlink /proc/self/fd/2").await.unwrap();
        assert_eq!(told.trim_end(), ours.to_str().unwrap());
    }
}
