//! Rule: `semel-core` depends on no async runtime, no HTTP and no SQL.
//!
//! That is the purpose of the crate: it contains the domain and nothing else, and works with any
//! runtime, framework or database.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::tree::Problem;

const CORE: &str = "semel-core";
const CORE_MANIFEST: &str = "crates/semel-core/Cargo.toml";

/// The direct dependencies of core. Adding one needs a review.
const ALLOWED_DIRECTLY: [&str; 10] = [
    "bytes",
    // Of the same project as `sha2`: keys are hashed with it.
    "hmac",
    "itoa",
    "ryu-js",
    "serde",
    "serde_json",
    "sfv",
    "sha2",
    "thiserror",
    "uuid",
];

/// Packages that core must not depend on, directly or indirectly.
const BANNED: [(&str, &[&str]); 3] = [
    (
        "an async runtime",
        &[
            "async-executor",
            "async-io",
            "async-std",
            "embassy-executor",
            "futures-executor",
            "glommio",
            "mio",
            "monoio",
            "smol",
            "tokio",
        ],
    ),
    (
        "HTTP",
        &[
            "actix-web",
            "axum",
            "axum-core",
            "h2",
            "http",
            "http-body",
            "hyper",
            "hyper-util",
            "isahc",
            "pingora",
            "reqwest",
            "tonic",
            "tower",
            "tower-http",
            "tower-service",
            "ureq",
            "warp",
        ],
    ),
    (
        "SQL or a database",
        &[
            "diesel",
            "libsqlite3-sys",
            "mysql",
            "postgres",
            "postgres-protocol",
            "redis",
            "rocksdb",
            "rusqlite",
            "sea-orm",
            "sqlite",
            "sqlx",
            "sqlx-core",
            "tokio-postgres",
        ],
    ),
];

pub(super) fn check(metadata: &Value) -> Result<Vec<Problem>> {
    let names: BTreeMap<&str, &str> = array(metadata, "/packages")?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
        .collect();
    let edges: BTreeMap<&str, Vec<&str>> = array(metadata, "/resolve/nodes")?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, normal_dependencies(node))))
        .collect();
    let name = |id: &str| names.get(id).copied().unwrap_or("?");
    let core = names
        .iter()
        .find_map(|(id, name)| (*name == CORE).then_some(*id))
        .context("the workspace has no semel-core")?;

    let mut problems = Vec::new();
    for id in edges.get(core).into_iter().flatten() {
        if !ALLOWED_DIRECTLY.contains(&name(id)) {
            problems.push(problem(format!(
                "semel-core depends on {}, which is not on its list: do without it, put what \
                 needs it in another crate, or argue for it in ALLOWED_DIRECTLY of `xtask tidy`",
                name(id),
            )));
        }
    }
    let mut seen = BTreeSet::from([core]);
    let mut to_visit = vec![(core, vec![CORE])];
    while let Some((id, route)) = to_visit.pop() {
        for dependency in edges.get(id).into_iter().flatten() {
            if !seen.insert(dependency) {
                continue;
            }
            let mut route = route.clone();
            route.push(name(dependency));
            for (kind, banned) in BANNED {
                if banned.contains(&name(dependency)) {
                    problems.push(problem(format!(
                        "semel-core must not know {kind}, but depends on it: {}; turn the feature \
                         off that brings it, or move the code that needs it to another crate",
                        route.join(" -> "),
                    )));
                }
            }
            to_visit.push((dependency, route));
        }
    }
    Ok(problems)
}

/// Dependencies that end up in the product: not those of tests and build scripts.
fn normal_dependencies(node: &Value) -> Vec<&str> {
    let is_normal = |dependency: &&Value| {
        dependency["dep_kinds"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    };
    node["deps"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_normal)
        .filter_map(|dependency| dependency["pkg"].as_str())
        .collect()
}

fn array<'a>(metadata: &'a Value, pointer: &str) -> Result<&'a Vec<Value>> {
    metadata
        .pointer(pointer)
        .and_then(Value::as_array)
        .with_context(|| format!("cargo metadata has no {pointer}"))
}

fn problem(message: String) -> Problem {
    Problem {
        path: CORE_MANIFEST.to_owned(),
        line: 0,
        message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn depends(pkg: &str, kind: &Value) -> Value {
        json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]})
    }

    fn tree(core_deps: &[Value]) -> Value {
        let normal = Value::Null;
        json!({
            "packages": [
                {"id": "c", "name": "semel-core"}, {"id": "b", "name": "bytes"},
                {"id": "t", "name": "tokio"}, {"id": "l", "name": "left-pad"},
            ],
            "resolve": {"nodes": [
                {"id": "c", "deps": core_deps},
                {"id": "b", "deps": []},
                {"id": "t", "deps": []},
                {"id": "l", "deps": [depends("t", &normal)]},
            ]},
        })
    }

    #[test]
    fn allowed_and_test_dependencies_pass() {
        let tree = tree(&[depends("b", &Value::Null), depends("t", &json!("dev"))]);
        assert_eq!(check(&tree).unwrap(), []);
    }

    #[test]
    fn a_runtime_is_found_however_deep() {
        let problems = check(&tree(&[depends("l", &Value::Null)])).unwrap();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0]
                .message
                .contains("left-pad, which is not on its list")
        );
        assert!(
            problems[1]
                .message
                .contains("semel-core -> left-pad -> tokio")
        );
    }

    #[test]
    fn metadata_without_core_is_an_error() {
        let empty = json!({"packages": [], "resolve": {"nodes": []}});
        assert!(check(&empty).is_err());
        assert!(check(&json!({})).is_err());
    }
}
