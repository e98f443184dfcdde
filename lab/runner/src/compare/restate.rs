//! Restate's server, and its registration.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::deployment::{CONNECT_PATIENCE, CompareContext};
use super::subjects::Guard;
use super::supervisor::SupervisedProcess;
use crate::servers;

/// Restate calls the service before it answers.
const REGISTER_PATIENCE: Duration = Duration::from_secs(30);
/// Service and handler, as the adapter names them.
pub(super) const PATH: &str = "/app/work";

impl CompareContext<'_> {
    /// Starts Restate's server, which is both the store and the ingress. Returns the ports of its ingress
    /// and its admin API.
    pub(super) fn restate(&self, own: &Path) -> Result<(SupervisedProcess, u16, u16)> {
        let home = self.installer.node("restate", Guard::Restate.packages())?;
        let place = home.join("node_modules/@restatedev");
        let binary = fs::read_dir(&place)?
            .filter_map(|entry| Some(entry.ok()?.path().join("bin/restate-server")))
            .find(|path| path.is_file())
            .context("Restate has no server for this system")?;
        let [ingress, admin, fabric] = [
            servers::free_port()?,
            servers::free_port()?,
            servers::free_port()?,
        ];
        let address = |port: u16| format!("127.0.0.1:{port}");
        let mut command = Command::new(binary);
        command
            .args(["--no-logo", "--base-dir"])
            .arg(own.join("restate-data"))
            .env("RESTATE_INGRESS__BIND_ADDRESS", address(ingress))
            .env("RESTATE_ADMIN__BIND_ADDRESS", address(admin))
            .env("RESTATE_BIND_ADDRESS", address(fabric))
            .env("DO_NOT_TRACK", "1")
            .env("RUST_LOG", "warn");
        let kept = self.supervise("restate-server", command, ingress, own)?;
        Ok((kept, ingress, admin))
    }
}

/// Registers the service at Restate's server, and waits for a first answer: it is ready only then.
pub(super) fn register(admin: u16, ingress: u16, service: u16) -> Result<()> {
    let place = format!(r#"{{"uri":"http://127.0.0.1:{service}"}}"#);
    let answer = post(admin, "/deployments", &place)?;
    ensure!(
        answer == "201",
        "Restate did not accept the service: {answer}"
    );
    let answer = post(ingress, PATH, "{}")?;
    ensure!(answer == "200", "Restate does not answer: {answer}");
    Ok(())
}

/// Sends a POST request. Returns the status of the answer.
fn post(port: u16, path: &str, body: &str) -> Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
    stream.set_read_timeout(Some(REGISTER_PATIENCE))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-work: quick\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split_whitespace().nth(1);
    Ok(status.unwrap_or("no status").to_owned())
}
