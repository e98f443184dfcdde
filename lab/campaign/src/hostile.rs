//! Clients that hold or waste what a gateway has: they read nothing, send nothing more, or make it
//! work for nothing.

use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::faults::FaultInjector;
use crate::http::{Endpoint, Stream};
use crate::plan::Target;

/// HTTP/2 clients with a window of zero that do not read.
const NOT_READING: usize = 60;
/// Requests on each of them.
const STREAMS: u32 = 50;
/// Callers without a tenant that stop within their body.
const WITHOUT_TENANT: usize = 120;
/// Callers whose bodies are gzip members without content.
const GZIP: usize = 4;
/// Callers of the admin listener that stop within the head.
const HALF_HEADS: usize = 300;
/// The tenant of these.
pub(crate) const ATTACKER: &str = "attacker";
/// The length that bodies claim: less than `max_request` of the gateways' configuration.
const BODY: usize = 60 * 1024;
/// A gzip member without content.
const EMPTY_MEMBER: [u8; 20] = [
    0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
/// A gzip member with half an object, so that the application refuses the body.
const HALF_OBJECT: [u8; 21] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 171, 6, 0, 57, 71, 213, 21, 1, 0, 0, 0,
];
/// The most memory that a gateway may have meanwhile, in MiB.
const MAX_MEMORY: u64 = 400;
/// How many more files than before a gateway may have open afterwards: clients come and go.
const MORE_FILES: usize = 64;
/// How long a gateway may take to release what attackers held.
const RELEASED_WITHIN: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);
/// The pause of an attacker whose connection was closed.
const AGAIN: Duration = Duration::from_millis(100);

impl FaultInjector {
    /// Attacks a gateway until the phase ends, and checks what it holds meanwhile and afterwards.
    pub(crate) async fn attack(&self, target: Target, ends: Instant) -> Result<()> {
        let Some(gateway) = self.test_bed.gateway(target) else {
            return Ok(());
        };
        let process = &gateway.process;
        let to = |is_http2| Endpoint {
            address: gateway.address,
            tls: gateway.tls.clone(),
            is_http2,
        };
        let files_before = process.open_files().unwrap_or_default();
        let mut attackers = JoinSet::new();
        for _ in 0..NOT_READING {
            attackers.spawn(hold(to(true), not_reading(), ends));
        }
        for _ in 0..WITHOUT_TENANT {
            attackers.spawn(hold(to(false), without_tenant(), ends));
        }
        for number in 0..GZIP {
            attackers.spawn(repeat(to(false), number, ends));
        }
        for _ in 0..HALF_HEADS {
            let head = b"GET /metrics HTTP/1.1\r\nHost: ".to_vec();
            attackers.spawn(hold(Endpoint::plain(gateway.admin), head, ends));
        }
        self.recorder.fault("attack", process.name());
        let mut most = 0;
        while Instant::now() < ends {
            most = most.max(process.memory_mib().unwrap_or_default());
            sleep(POLL).await;
        }
        drop(attackers);
        println!("{}: at most {most} MiB while attacked", process.name());
        if most > MAX_MEMORY {
            let what = format!("{} used {most} MiB", process.name());
            self.recorder.fault("resources_held", what);
        }
        let until = Instant::now() + RELEASED_WITHIN;
        loop {
            let files = process.open_files().unwrap_or_default();
            if files <= files_before + MORE_FILES {
                return Ok(());
            }
            if Instant::now() >= until {
                let what = format!("{} has {files} open files", process.name());
                self.recorder.fault("resources_held", what);
                return Ok(());
            }
            sleep(POLL).await;
        }
    }
}

/// Sends this, and keeps the connection without reading; again where the gateway closed it.
async fn hold(to: Endpoint, bytes: Vec<u8>, ends: Instant) {
    while Instant::now() < ends {
        if let Ok(mut stream) = Stream::connect(&to).await
            && stream.write_all(&bytes).await.is_ok()
        {
            // Readable without being read: the gateway answered, or closed. Only an error ends it.
            while Instant::now() < ends && !stream.has_failed() {
                sleep(POLL).await;
            }
        }
        sleep(AGAIN).await;
    }
}

/// Sends requests whose bodies take work and mean nothing.
async fn repeat(to: Endpoint, number: usize, ends: Instant) {
    let mut body = EMPTY_MEMBER.repeat(BODY / EMPTY_MEMBER.len());
    body.extend(HALF_OBJECT);
    let mut sent = 0;
    while Instant::now() < ends {
        sent += 1;
        let head = format!(
            "POST /payments HTTP/1.1\r\nHost: shop.example\r\nAuthorization: Bearer {ATTACKER}\r\n\
             Idempotency-Key: \"attack-{number:04}-{sent:012}\"\r\nContent-Encoding: gzip\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        if let Ok(mut stream) = Stream::connect(&to).await {
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&body).await;
            let _ = timeout_at(ends, stream.read_to_end()).await;
        } else {
            sleep(AGAIN).await;
        }
    }
}

/// All but the last bytes of a body of a caller without credentials.
fn without_tenant() -> Vec<u8> {
    let mut request = format!(
        "POST /payments HTTP/1.1\r\nHost: shop.example\r\n\
         Idempotency-Key: \"0e4cf1a6-0c5f-4a0c-9d5e-2f6a8a0b7c11\"\r\n\
         Content-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n"
    )
    .into_bytes();
    request.extend(b" ".repeat(BODY - 1));
    request
}

/// An HTTP/2 connection with a window of zero, and requests on it.
fn not_reading() -> Vec<u8> {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const END_STREAM_AND_HEADERS: u8 = 5;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE = 0.
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    // Indexed GET, http; literals for the path and the authority, without indexing.
    let mut block = vec![0x82, 0x86];
    // A path that the application refuses at once: the gateway is attacked, not the application's
    // database.
    for (name, value) in [(0x04, "/nothing"), (0x01, "shop.example")] {
        block.push(name);
        block.push(u8::try_from(value.len()).unwrap_or_default());
        block.extend(value.as_bytes());
    }
    for number in 0..STREAMS {
        bytes.extend(frame(
            HEADERS,
            END_STREAM_AND_HEADERS,
            2 * number + 1,
            &block,
        ));
    }
    bytes
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default();
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}
