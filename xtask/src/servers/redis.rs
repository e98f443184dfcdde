//! A throwaway Redis.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Launch, find_in_path};

/// How long a local Redis may take to answer a PING; one that takes longer is still loading.
const PING_PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn find_programs() -> Option<PathBuf> {
    find_in_path("redis-server")
}

/// Redis' default settings, persistence included, except for directory and port.
pub(super) fn prepare(programs: &Path, directory: &Path, port: u16) -> Launch {
    let mut command = Command::new(programs.join("redis-server"));
    command
        .current_dir(directory)
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
        .arg(directory);
    Launch {
        command,
        companion: None,
        url: format!("redis://127.0.0.1:{port}/0"),
        stop_signal: "TERM",
        answers: Box::new(move || ping(port).is_ok_and(|answer| &answer == b"+PONG")),
    }
}

fn ping(port: u16) -> std::io::Result<[u8; 5]> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, PING_PATIENCE)?;
    stream.set_read_timeout(Some(PING_PATIENCE))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
