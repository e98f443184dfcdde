//! `semel gateway --check-config`, run as a process.

use std::path::Path;
use std::process::{Command, Output};

/// With the tenant rule that every configuration needs.
fn check(directory: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    run(
        "gateway --check-config --tenant=authorization",
        directory,
        args,
        variables,
    )
}

fn run(command: &str, directory: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(command.split(' '))
        .args(args)
        .current_dir(directory)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// Exit code, standard output, standard error.
fn exit_and_output(output: Output) -> (Option<i32>, String, String) {
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn valid_configuration_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let file = "[[route]]\nmatch = \"POST /payments\"\n";
    std::fs::write(directory.path().join("semel.toml"), file).unwrap();
    for (args, variables) in [
        (&["--upstream", "http://127.0.0.1:3000"][..], &[][..]),
        (&["--upstream", "http://app", "--config", "semel.toml"], &[]),
        (
            &[],
            &[
                ("SEMEL_UPSTREAM", "http://app"),
                ("SEMEL_CONFIG", "semel.toml"),
            ],
        ),
        (
            &[
                "--upstream=http://app",
                "--store=memory:",
                "--allow-volatile",
                "--dialect=stripe",
                "--listen=127.0.0.1:0",
                "--admin-listen=127.0.0.1:0",
                "--threads=2",
                "--log-format=json",
            ],
            &[],
        ),
    ] {
        let (code, out, err) = exit_and_output(check(directory.path(), args, variables));
        assert_eq!((code, &*out, &*err), (Some(0), "OK\n", ""), "{args:?}");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "a check makes no database");
}

#[test]
fn invalid_configuration_is_reported_with_every_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = "upstream = \"http://app\"\n[policy]\nretenton = \"24h\"\nlease = \"30\"\n";
    std::fs::write(directory.path().join("semel.toml"), file).unwrap();
    let (code, out, err) =
        exit_and_output(check(directory.path(), &["--config", "semel.toml"], &[]));
    assert_eq!((code, &*out), (Some(1), ""));
    for part in [
        "semel.toml:3:1: unknown key `retenton` in [policy]; did you mean `retention`?",
        "3 | retenton = \"24h\"",
        "semel.toml:4:9: invalid duration \"30\": add a unit, for example \"30s\"",
        "4 | lease = \"30\"",
    ] {
        assert!(err.contains(part), "{err}");
    }
    assert!(
        !err.contains('\u{1b}'),
        "colours belong on a terminal: {err}"
    );
}

#[test]
fn exit_code_is_1_for_failures_and_2_for_usage_errors() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = ("SEMEL_UPSTREAM", "http://app");
    for (args, variables, code, part) in [
        (&[][..], &[][..], 1, "no upstream"),
        (
            &["--config=missing.toml"],
            &[upstream],
            1,
            "--config: cannot read missing.toml",
        ),
        (
            &[],
            &[upstream, ("SEMEL_LISTEN", "8080")],
            1,
            "SEMEL_LISTEN: ",
        ),
        (
            &["--store=memory:"],
            &[upstream],
            1,
            "--store: `memory:` loses all records",
        ),
        (
            &["--admin-listen=0.0.0.0:1"],
            &[upstream],
            1,
            "--admin-listen: ",
        ),
        (&["--listen=8080"], &[upstream], 2, "--listen"),
        (
            &["--store=postgres:h"],
            &[upstream],
            2,
            "has no host and database",
        ),
        (
            &["--dialect=stripy"],
            &[upstream],
            2,
            "did you mean \"stripe\"?",
        ),
        (&["--threads=0"], &[upstream], 2, "--threads"),
        (&["--log-format=xml"], &[upstream], 2, "--log-format"),
        (&["--nonsense"], &[upstream], 2, "--nonsense"),
    ] {
        let (found, out, err) = exit_and_output(check(directory.path(), args, variables));
        assert_eq!((found, &*out), (Some(code), ""), "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}");
    }
}

#[test]
fn without_a_tenant_rule_the_command_exits_and_explains_the_choices() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = [
        "--upstream=http://127.0.0.1:9",
        "--admin-listen=127.0.0.1:0",
    ];
    let command = "gateway --listen=127.0.0.1:0";
    let output = run(command, directory.path(), &upstream, &[]);
    let (code, out, err) = exit_and_output(output);
    assert_eq!((code, &*out), (Some(1), ""), "{err}");
    for part in [
        "no tenant rule",
        "--tenant",
        "jwt:sub",
        "header:NAME",
        "none",
    ] {
        assert!(err.contains(part), "{err}");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert!(left.is_empty(), "nothing is created: {left:?}");
    let rule = "gateway --check-config --upstream=http://app --tenant=cookie";
    let (code, _, err) = exit_and_output(run(rule, directory.path(), &[], &[]));
    assert_eq!(code, Some(2), "{err}");
    let variable = ("SEMEL_TENANT", "header:X-Account-Id");
    let rule = "gateway --check-config --upstream=http://app";
    let (code, out, _) = exit_and_output(run(rule, directory.path(), &[], &[variable]));
    assert_eq!((code, &*out), (Some(0), "OK\n"));
}
