//! Rule: nothing outside `lab/` depends on a package in `lab/`, not even for its tests.
//!
//! The product then builds and tests without compiling the verification tools: the test command
//! selects the packages outside `lab/`, and none of them depends on one in `lab/`.

use std::path::Path;

use serde_json::Value;

use super::tree::Problem;

/// Reads the declared dependencies of every kind: normal, build and dev.
pub(super) fn check(metadata: &Value, root: &Path) -> Vec<Problem> {
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let in_workspace = |path: &str| {
        Path::new(path)
            .strip_prefix(root)
            .ok()
            .map(Path::to_path_buf)
    };
    let manifest = |package: &Value| in_workspace(package["manifest_path"].as_str()?);
    let mut problems = Vec::new();
    for package in packages() {
        let Some(path) = manifest(package).filter(|path| !path.starts_with("lab")) else {
            continue;
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for dependency in dependencies {
            let target = dependency["path"].as_str().and_then(in_workspace);
            if target.is_some_and(|target| target.starts_with("lab")) {
                problems.push(Problem {
                    path: path.display().to_string(),
                    line: 0,
                    message: format!(
                        "depends on {}, which is in lab/: the verification tools depend on the \
                         product, never the reverse; move the shared code to semel-testkit",
                        dependency["name"].as_str().unwrap_or("?"),
                    ),
                });
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn product_that_depends_on_lab_is_reported() {
        let depends =
            |name: &str| json!([{"name": name, "path": format!("/w/{name}"), "kind": "dev"}]);
        let metadata = json!({"packages": [
            {"manifest_path": "/w/crates/a/Cargo.toml", "dependencies": depends("lab/checker")},
            {"manifest_path": "/w/crates/b/Cargo.toml", "dependencies": depends("crates/a")},
            {"manifest_path": "/w/lab/bench/Cargo.toml", "dependencies": depends("lab/checker")},
            {"manifest_path": "/registry/c/Cargo.toml", "dependencies": depends("lab")},
        ]});
        let problems = check(&metadata, Path::new("/w"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].path, "crates/a/Cargo.toml");
    }
}
