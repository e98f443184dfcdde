//! The systemd units, the container file and the proxy match `deploy/semel.toml`.

use std::time::Duration;

use semel_gateway::config::{Config, Environment, Flags, Source};

use crate::deploy::{path, text};

/// The time after `drain` in which the gateway marks abandoned records as unknown.
const SHUTDOWN_WRITES: Duration = Duration::from_secs(5);

/// `deploy/semel.toml` with a token file in place of the systemd credential.
fn config() -> Config {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("admin-token");
    std::fs::write(&token, "a-token-of-the-tests").unwrap();
    let given = "/run/credentials/semel-gateway.service/admin-token";
    let toml = text("deploy/semel.toml");
    assert!(toml.contains(given));
    let file = directory.path().join("semel.toml");
    std::fs::write(&file, toml.replace(given, token.to_str().unwrap())).unwrap();
    let source = Source {
        file: Some(file),
        flags: Flags::default(),
        environment: Environment::from_pairs([] as [(&str, &str); 0]),
    };
    source.load().unwrap_or_else(|report| panic!("{report:?}"))
}

/// The settings of a file, without comments.
fn lines(name: &str) -> Vec<String> {
    let text = text(name);
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// What follows `start` on the lines that begin with it.
fn values(name: &str, start: &str) -> Vec<String> {
    let lines = lines(name);
    let values = lines.iter().filter_map(|line| line.strip_prefix(start));
    let values = values.map(|value| value.trim().trim_end_matches(';').to_owned());
    let values: Vec<String> = values.collect();
    assert!(!values.is_empty(), "{name} does not set {start}");
    values
}

fn seconds(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let number = number.parse().unwrap();
    match unit {
        "" | "s" => Duration::from_secs(number),
        "h" => Duration::from_hours(number),
        _ => panic!("{text}"),
    }
}

#[test]
fn a_unit_is_not_killed_while_it_drains() {
    let drain = config().drain_delay + config().drain;
    for unit in ["gateway", "worker"] {
        let name = format!("deploy/systemd/semel-{unit}.service");
        let stop = &values(&name, "TimeoutStopSec=")[0];
        assert!(seconds(stop) > drain + SHUTDOWN_WRITES, "{name}");
        let starts = &values(&name, "ExecStart=")[0];
        assert!(
            starts.starts_with(&format!("/usr/bin/semel {unit} --config ")),
            "{starts}"
        );
    }
}

#[test]
fn the_proxy_does_not_retry_and_its_timeouts_exceed_the_gateways() {
    let (name, config) = ("deploy/nginx/semel.conf", config());
    let passed = values(name, "proxy_pass ").len();
    assert_eq!(values(name, "proxy_next_upstream "), vec!["off"; passed]);
    for wait in values(name, "proxy_read_timeout ") {
        assert!(seconds(&wait) > config.policy.upstream_timeout, "{wait}");
    }
    let kept = &values(name, "keepalive_timeout ")[0];
    assert!(seconds(kept) < config.limits.idle_timeout, "{kept}");
    // Both servers are those of the configuration.
    let servers = values(name, "server ");
    for listen in [config.listen, config.admin.listen] {
        assert!(servers.contains(&listen.to_string()), "{servers:?}");
    }
    // The proxy sets the tenant header.
    let tenant = lines("deploy/semel.toml");
    let tenant = tenant
        .iter()
        .find_map(|line| line.strip_prefix("from = \"header:"));
    let header = tenant.unwrap().trim_end_matches('"');
    values(name, &format!("proxy_set_header {header} "));
}

#[test]
fn everything_the_container_file_copies_and_builds_exists() {
    let name = "deploy/container/Containerfile";
    let mut copied = Vec::new();
    for copy in values(name, "COPY ") {
        if copy.starts_with("--from=") {
            continue;
        }
        let sources: Vec<&str> = copy.split(' ').collect();
        for source in &sources[..sources.len() - 1] {
            assert!(path(source).exists(), "{source}");
            copied.push((*source).to_owned());
        }
    }
    // Cargo needs all workspace members.
    let members = values("Cargo.toml", "members = [");
    for member in members[0].trim_end_matches(']').split(", ") {
        let top = member.trim_matches('"').split('/').next().unwrap();
        assert!(copied.iter().any(|source| source == top), "{member}");
    }
    let manifest = text("crates/semel-cli/Cargo.toml");
    assert!(
        text(name).contains("cargo build --profile dist --features dist --locked -p semel-cli ")
    );
    assert!(manifest.contains("name = \"semel-cli\"\n"));
    assert!(manifest.contains("[[bin]]\nname = \"semel\"\n"));
    assert!(text(name).contains("target/dist/semel "));
    // The image has the workspace's rust-version.
    let version = &values("Cargo.toml", "rust-version = ")[0];
    let image = &values(name, "FROM docker.io/library/rust:")[0];
    assert!(image.starts_with(version.trim_matches('"')), "{image}");
}
