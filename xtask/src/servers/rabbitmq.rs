//! A throwaway RabbitMQ.

use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Launch, find_in_path, free_port};

/// Debian keeps the scripts here. The wrapper in the search path switches to another user, who cannot
/// read the directory.
const DEBIAN_SCRIPTS: &str = "/usr/lib/rabbitmq/bin";
const PROGRAM: &str = "rabbitmq-server";
/// Erlang's name service. RabbitMQ would start it as a daemon that keeps running.
const EPMD: &str = "epmd";
/// How long a RabbitMQ that listens may take to greet.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);

/// Finds the scripts only where Erlang is installed: they need it.
pub(super) fn find_programs() -> Option<PathBuf> {
    find_in_path(EPMD)?;
    let debian = PathBuf::from(DEBIAN_SCRIPTS);
    if debian.join(PROGRAM).is_file() {
        return Some(debian);
    }
    find_in_path(PROGRAM)
}

/// RabbitMQ's default settings except for directory, ports and name: all files are in the directory,
/// and it listens on the loopback interface only.
pub(super) fn prepare(programs: &Path, directory: &Path, port: u16) -> Result<Launch> {
    let epmd = find_in_path(EPMD).context("Erlang's `epmd` is not in the search path")?;
    let epmd_port = free_port()?.to_string();
    let plugins = directory.join("enabled_plugins");
    fs::write(&plugins, "[].\n")?;
    let config = directory.join("rabbitmq.conf");
    fs::write(
        &config,
        format!("listeners.tcp.default = 127.0.0.1:{port}\n"),
    )?;

    // In the foreground, so that it can be stopped as a child.
    let mut companion = Command::new(epmd.join(EPMD));
    companion
        .current_dir(directory)
        .args(["-port", &epmd_port, "-address", "127.0.0.1"]);

    let mut command = Command::new(programs.join(PROGRAM));
    command
        .current_dir(directory)
        // The developer's settings for another RabbitMQ must not apply.
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_default())
        // The cookie is in the home directory.
        .env("HOME", directory)
        // Makes the script replace itself with the server, so that the process id we hold is
        // the server's.
        .env("RUNNING_UNDER_SYSTEMD", "true")
        .env("ERL_EPMD_PORT", &epmd_port)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_CONF_ENV_FILE", directory.join("no-such-file"))
        .env("RABBITMQ_NODENAME", "semel@localhost")
        .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
        .env("RABBITMQ_MNESIA_BASE", directory.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", directory.join("logs"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_PID_FILE", directory.join("pid"))
        .env("RABBITMQ_CONFIG_FILE", &config)
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", &plugins)
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}",
        );
    Ok(Launch {
        command,
        companion: Some(companion),
        url: format!("amqp://127.0.0.1:{port}/%2f"),
        stop_signal: "TERM",
        answers: Box::new(move || greeting(port).is_ok()),
    })
}

/// The first bytes of `connection.start`, which only a broker that is up sends.
fn greeting(port: u16) -> std::io::Result<[u8; 7]> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, GREETING_PATIENCE)?;
    stream.set_read_timeout(Some(GREETING_PATIENCE))?;
    stream.write_all(b"AMQP\x00\x00\x09\x01")?;
    let mut greeting = [0; 7];
    stream.read_exact(&mut greeting)?;
    Ok(greeting)
}
