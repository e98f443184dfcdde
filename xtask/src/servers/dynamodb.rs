//! Throwaway servers that speak DynamoDB's protocol.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};

use super::Launch;
use crate::{sdks, workspace_root};

/// How long a local server may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long its indexes stay behind the table, in milliseconds: they do at AWS.
const INDEX_DELAY: &str = "5";

/// The directory of a program, where it is installed.
pub(super) fn find_programs(program: &str) -> Option<PathBuf> {
    let installed = sdks::directory_of(sdks::DYNAMODB, &workspace_root().ok()?)?;
    let package = format!("node_modules/@{program}/linux-x64");
    let directory = installed.join(package);
    directory.join(program).is_file().then_some(directory)
}

/// ExtendDB without the delay of a quarter of a second for each new table.
pub(super) fn prepare_extenddb(programs: &Path, directory: &Path, port: u16) -> Result<Launch> {
    let program = |arguments: &[&str]| {
        let mut command = Command::new(programs.join("extenddb"));
        command
            .current_dir(directory)
            // It writes its certificate there.
            .env("HOME", directory)
            .args(arguments);
        command
    };
    let settings =
        |name, value| program(&["settings", "--config", "extenddb.toml", "set", name, value]);
    for mut command in [
        program(&["init", "--config", "extenddb.toml"]),
        settings("control_plane_delay_seconds", "0"),
        settings("index_propagation_delay_ms", INDEX_DELAY),
    ] {
        let quiet = command.stdin(Stdio::null()).output()?;
        if !quiet.status.success() {
            bail!(
                "{command:?} failed: {}",
                String::from_utf8_lossy(&quiet.stderr)
            );
        }
    }
    let port_text = port.to_string();
    Ok(launch(
        program(&[
            "serve",
            "--config",
            "extenddb.toml",
            "--foreground",
            "--port",
            &port_text,
        ]),
        port,
    ))
}

/// dynoxide, in memory.
pub(super) fn prepare_dynoxide(programs: &Path, directory: &Path, port: u16) -> Launch {
    let mut command = Command::new(programs.join("dynoxide"));
    command.current_dir(directory).args([
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        &port.to_string(),
    ]);
    launch(command, port)
}

fn launch(command: Command, port: u16) -> Launch {
    Launch {
        command,
        companion: None,
        url: format!("http://127.0.0.1:{port}"),
        stop_signal: "KILL",
        answers: Box::new(move || answers(port).unwrap_or_default()),
    }
}

/// Whether it answers a request, even with an error.
fn answers(port: u16) -> std::io::Result<bool> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    Ok(&answer == b"HTTP")
}
