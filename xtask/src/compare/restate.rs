//! Restate's server, and what it has to be told.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::keeper::Kept;
use super::stage::{CONNECT_PATIENCE, Hall};
use super::subjects::Guard;
use crate::servers;

/// Restate looks at the service before it answers.
const REGISTER_PATIENCE: Duration = Duration::from_secs(30);
/// Service and handler, as the adapter names them.
pub(super) const PATH: &str = "/app/work";

impl Hall<'_> {
    /// Restate's server, which is the store and the entrance at once, with the ports of its
    /// ingress and of its admin API.
    pub(super) fn restate(&self, own: &Path) -> Result<(Kept, u16, u16)> {
        let home = self.shop.node("restate", Guard::Restate.packages())?;
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
        let kept = self.keep("restate-server", command, ingress, own)?;
        Ok((kept, ingress, admin))
    }
}

/// Tells Restate's server where the service is, and waits for a first answer: it gets under way
/// only then.
pub(super) fn register(admin: u16, ingress: u16, service: u16) -> Result<()> {
    let place = format!(r#"{{"uri":"http://127.0.0.1:{service}"}}"#);
    let answer = posted(admin, "/deployments", &place)?;
    ensure!(
        answer == "201",
        "Restate does not take the service: {answer}"
    );
    let answer = posted(ingress, PATH, "{}")?;
    ensure!(answer == "200", "Restate does not answer: {answer}");
    Ok(())
}

/// The status of the answer.
fn posted(port: u16, path: &str, body: &str) -> Result<String> {
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
    Ok(status.unwrap_or("nothing").to_owned())
}
