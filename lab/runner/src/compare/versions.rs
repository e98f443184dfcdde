//! The versions that really run, as reported by the programs and installations.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// The versions of the interpreters.
pub(super) fn interpreters() -> Value {
    json!({
        "node": command_output(Command::new("node").arg("--version")),
        "python": command_output(Command::new("python3").arg("--version")),
    })
}

/// The current date, in the format of the report.
pub(super) fn date() -> Option<String> {
    command_output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))
}

/// The installed versions of the requested npm packages.
pub(super) fn of_node(home: &Path, packages: &[&str]) -> Vec<String> {
    let names = packages.iter().filter_map(|package| {
        // The name may begin with an @ of its own.
        let (name, _) = package.rsplit_once('@')?;
        let manifest = home.join("node_modules").join(name).join("package.json");
        let manifest: Value = serde_json::from_slice(&fs::read(manifest).ok()?).ok()?;
        Some(format!("{name} {}", manifest["version"].as_str()?))
    });
    names.collect()
}

/// The installed versions of the requested packages in a virtual environment.
pub(super) fn of_python(home: &Path, packages: &[&str]) -> Vec<String> {
    let mut pip = Command::new(home.join("bin/python"));
    pip.args(["-m", "pip", "--disable-pip-version-check", "freeze"]);
    let all = command_output(&mut pip).unwrap_or_default();
    let wanted = |name: &str| packages.iter().any(|package| plain(package) == plain(name));
    all.lines()
        .filter_map(|line| line.split_once("=="))
        .filter(|(name, _)| wanted(name))
        .map(|(name, version)| format!("{name} {version}"))
        .collect()
}

/// A package's name alone, as the registry compares names.
fn plain(package: &str) -> String {
    let name = package.split(['[', '=']).next().unwrap_or(package);
    name.replace('_', "-").to_lowercase()
}

/// The version of a server, from the command that starts it, perhaps through a wrapper.
pub(super) fn of_server(command: &Command) -> Option<String> {
    let program = Path::new(command.get_program());
    let mut arguments = command.get_args().map(Path::new);
    let known = |path: &Path| path.ends_with("postgres") || path.ends_with("redis-server");
    let program = if known(program) {
        program
    } else {
        arguments.find(|argument| known(argument))?
    };
    let output = command_output(Command::new(program).arg("--version"))?;
    // Redis adds details of its build.
    let parts: Vec<&str> = output.split_whitespace().take(3).collect();
    Some(parts.join(" "))
}

fn command_output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_version_is_read_from_the_manifest() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("node_modules/@a/b");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("package.json"), r#"{"version": "1.2.4"}"#).unwrap();
        let found = of_node(home.path(), &["@a/b@1.2.3", "absent@1.0.0"]);
        assert_eq!(found, ["@a/b 1.2.4"]);
    }

    #[test]
    fn names_are_compared_as_a_registry_does() {
        assert_eq!(
            plain("aws-lambda-powertools[redis]==3.37.0"),
            plain("aws_lambda_powertools")
        );
        assert_ne!(plain("redis==8.1.0"), plain("boto3"));
    }

    #[test]
    fn a_server_is_found_behind_a_wrapper() {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", "--", "nowhere/bin/postgres", "-D", "data"]);
        assert_eq!(of_server(&command), None);
        assert_eq!(of_server(&Command::new("true")), None);
    }
}
