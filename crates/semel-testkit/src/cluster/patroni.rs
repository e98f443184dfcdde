//! Patroni: its configuration, and its REST interface.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The least that Patroni accepts.
pub(super) const TTL: Duration = Duration::from_secs(20);
const LOOP_WAIT_S: u64 = 1;
const RETRY_TIMEOUT_S: u64 = 3;
/// How long a leader that crashed may take to start again before another one takes over.
const START_TIMEOUT_S: u64 = 10;
/// Small, so that the files of a test stay small.
const MAX_WAL_SIZE: &str = "256MB";
/// What a node that was killed under load finds at the next leader when it comes back.
const WAL_KEEP_SIZE: &str = "2GB";
pub(super) const POSTGRES_PORT: u16 = 5432;
const REST_PORT: u16 = 8008;
pub(super) const ETCD_PORT: u16 = 2379;

/// A member of the cluster, as etcd knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) state: String,
}

/// The files of the nodes' certificate and its key.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// The configuration of a node. JSON is YAML.
pub(super) fn configuration(
    name: &str,
    address: Ipv4Addr,
    etcd: Ipv4Addr,
    programs: &Path,
    directory: &Path,
    data: &Path,
    tls: Option<&Tls>,
) -> Value {
    let user = json!({ "username": "postgres" });
    let mut parameters = json!({ "unix_socket_directories": directory });
    if let Some(tls) = tls {
        parameters["ssl"] = "on".into();
        parameters["ssl_cert_file"] = json!(tls.certificate);
        parameters["ssl_key_file"] = json!(tls.key);
    }
    // Where there is a certificate, other machines need TLS; Patroni and standbys use it by themselves.
    let host = if tls.is_some() { "hostssl" } else { "host" };
    json!({
        "scope": "semel",
        "name": name,
        "restapi": {
            "listen": format!("{address}:{REST_PORT}"),
            "connect_address": format!("{address}:{REST_PORT}"),
        },
        "etcd3": { "hosts": [format!("{etcd}:{ETCD_PORT}")] },
        "bootstrap": {
            "dcs": {
                "ttl": TTL.as_secs(),
                "loop_wait": LOOP_WAIT_S,
                "retry_timeout": RETRY_TIMEOUT_S,
                "primary_start_timeout": START_TIMEOUT_S,
                "failsafe_mode": false,
                "synchronous_mode": "quorum",
                "synchronous_mode_strict": true,
                "postgresql": {
                    "use_pg_rewind": true,
                    "remove_data_directory_on_rewind_failure": true,
                    "remove_data_directory_on_diverged_timelines": true,
                    "parameters": {
                        "max_connections": 200,
                        "max_wal_size": MAX_WAL_SIZE,
                        "wal_keep_size": WAL_KEEP_SIZE,
                    },
                    "pg_hba": [
                        "local all all trust",
                        format!("{host} all all all trust"),
                        format!("{host} replication all all trust"),
                    ],
                },
            },
            "initdb": [{ "encoding": "UTF8" }, "no-locale", "data-checksums"],
        },
        "postgresql": {
            "listen": format!("{address}:{POSTGRES_PORT}"),
            "connect_address": format!("{address}:{POSTGRES_PORT}"),
            "bin_dir": programs,
            "data_dir": data,
            "pgpass": directory.join("pgpass"),
            "parameters": parameters,
            "authentication": { "superuser": user, "replication": user, "rewind": user },
        },
    })
}

/// The members, if Patroni on this node can reach etcd.
pub(super) async fn members(node: Ipv4Addr, within: Duration) -> io::Result<Vec<Member>> {
    let (status, body) = ask(node, "GET", "/cluster", "", within).await?;
    if status != 200 {
        return Err(io::Error::other(format!("/cluster answered {status}")));
    }
    let cluster: Value = serde_json::from_str(&body)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members = cluster["members"].as_array().into_iter().flatten();
    Ok(members
        .map(|member| Member {
            name: text(&member["name"]),
            role: text(&member["role"]),
            state: text(&member["state"]),
        })
        .collect())
}

/// Whether PostgreSQL runs on this node.
pub(super) async fn is_running(node: Ipv4Addr, within: Duration) -> bool {
    let answer = ask(node, "GET", "/health", "", within).await;
    answer.is_ok_and(|(status, _)| status == 200)
}

/// Asks the leader to hand over to a synchronous standby. It waits for that, but not for ever.
pub(super) async fn switch_over(leader: Ipv4Addr, name: &str, within: Duration) -> io::Result<()> {
    let request = json!({ "leader": name }).to_string();
    match ask(leader, "POST", "/switchover", &request, within).await? {
        (200, _) => Ok(()),
        (503, body) if body.contains("status unknown") => Ok(()),
        (status, body) => Err(io::Error::other(format!("{status}: {body}"))),
    }
}

/// Whether etcd answers.
pub(super) async fn etcd_is_up(etcd: Ipv4Addr, within: Duration) -> bool {
    let address = SocketAddr::from((etcd, ETCD_PORT));
    let answer = timeout(within, exchange(address, "GET", "/health", "")).await;
    matches!(answer, Ok(Ok((200, _))))
}

async fn ask(
    node: Ipv4Addr,
    method: &str,
    path: &str,
    body: &str,
    within: Duration,
) -> io::Result<(u16, String)> {
    let address = SocketAddr::from((node, REST_PORT));
    timeout(within, exchange(address, method, path, body)).await?
}

/// One request in the oldest protocol, in which the end of the connection is the end of the answer.
async fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let malformed = || io::Error::other(format!("{address} answered {answer:?}"));
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let (_, content) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    Ok((status.ok_or_else(malformed)?, content.to_owned()))
}
