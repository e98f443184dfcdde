//! Connections and commands, as a trait: tests use connections in memory and a paused clock.

use std::io;
use std::pin::Pin;
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::Address;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connections and commands.
pub trait Environment: Send + Sync {
    /// Opens a connection. It is closed by dropping it.
    fn connect<'a>(&'a self, to: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;

    /// Runs a command and returns what it printed, or an error if it failed.
    fn output<'a>(&'a self, command: &'a str) -> BoxFuture<'a, io::Result<String>>;

    /// Runs a command to its end; an error if it failed. Processes that it started may continue.
    fn run<'a>(&'a self, command: &'a str) -> BoxFuture<'a, io::Result<()>>;
}

/// The network and the shell.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn connect<'a>(&'a self, to: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(to.endpoint()).await?;
            stream.set_nodelay(true)?;
            if to.secure {
                return encrypted(stream, to).await;
            }
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn output<'a>(&'a self, command: &'a str) -> BoxFuture<'a, io::Result<String>> {
        Box::pin(async move {
            // Not `output`, which would capture stderr and hide it from the user.
            let child = shell(command).stdout(Stdio::piped()).spawn()?;
            let output = child.wait_with_output().await?;
            ended(output.status)?;
            String::from_utf8(output.stdout)
                .map_err(|_| io::Error::other("the command printed bytes that are not UTF-8"))
        })
    }

    fn run<'a>(&'a self, command: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            // No pipe: a server that the command starts would hold it open.
            ended(shell(command).stdout(Stdio::null()).status().await?)
        })
    }
}

/// Inherits stderr, so that the user sees the command's errors.
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
    Err(io::Error::other(
        "this binary was built without TLS: https:// is not available",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_returns_its_output_or_its_failure() {
        assert_eq!(SystemEnvironment.output("echo 3").await.unwrap(), "3\n");
        let failed = SystemEnvironment
            .output("echo 3; exit 7")
            .await
            .unwrap_err();
        assert!(failed.to_string().contains('7'), "{failed}");
        assert!(SystemEnvironment.run("exit 0").await.is_ok());
        assert!(SystemEnvironment.run("exit 7").await.is_err());
    }

    /// A command inherits our stderr.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_command_writes_its_errors_to_our_stderr() {
        let ours = std::fs::read_link("/proc/self/fd/2").unwrap();
        let command_stderr = SystemEnvironment
            .output("readlink /proc/self/fd/2")
            .await
            .unwrap();
        assert_eq!(command_stderr.trim_end(), ours.to_str().unwrap());
    }
}
