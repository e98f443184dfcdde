//! A throwaway NATS with JetStream.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Launch, find_daemon};

/// How long a local NATS may take to greet; one that takes longer is still recovering its streams.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);
const PROGRAM: &str = "nats-server";

pub(super) fn find_programs() -> Option<PathBuf> {
    find_daemon(PROGRAM)
}

/// NATS' default settings except for directory, port and JetStream, which is off by default.
pub(super) fn prepare(programs: &Path, directory: &Path, port: u16) -> Launch {
    let mut command = Command::new(programs.join(PROGRAM));
    command
        .current_dir(directory)
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .arg("--jetstream")
        .arg("--store_dir")
        .arg(directory);
    Launch {
        command,
        companion: None,
        url: format!("nats://127.0.0.1:{port}"),
        // Ends at once; the streams are in files already.
        stop_signal: "TERM",
        answers: Box::new(move || greeting(port).is_ok_and(|greeting| &greeting == b"INFO")),
    }
}

fn greeting(port: u16) -> std::io::Result<[u8; 4]> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, GREETING_PATIENCE)?;
    stream.set_read_timeout(Some(GREETING_PATIENCE))?;
    stream.write_all(b"PING\r\n")?;
    let mut greeting = [0; 4];
    stream.read_exact(&mut greeting)?;
    Ok(greeting)
}
