//! `cargo xtask test`: set-up, then every test of the product.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::process::{Interrupt, cargo, has_cargo_tool, run_interruptible, target_directory};
use crate::servers::{self, Server, Servers};
use crate::skips;
use crate::workspace::{self, Part};
use xtask::{FEATURES, packages, sdks};

/// Tests read the browser's path from this variable. A developer's setting wins.
const BROWSER: &str = "SEMEL_CHROMIUM";

/// Which packages are built and tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything outside `lab/`, or the packages that the caller names.
    Product,
    /// The product and the verification tools, in one build.
    Workspace,
}

/// Tests that are built, with the servers that they need.
pub(crate) struct TestRun<'a> {
    root: &'a Path,
    runner_args: &'a [String],
    /// The packages and features, the same for every cargo command of a run: another selection
    /// would compile the dependencies again.
    selection: Vec<String>,
    setup: Setup,
    interrupt: Interrupt,
    has_nextest: bool,
}

impl<'a> TestRun<'a> {
    /// Builds the tests, and installs packages and SDKs while they compile.
    pub(crate) fn prepare(
        root: &'a Path,
        scope: Scope,
        may_install: bool,
        runner_args: &'a [String],
    ) -> Result<Self> {
        let interrupt = Interrupt::listen()?;
        let has_nextest = has_cargo_tool(root, "nextest");
        let selection = select(root, scope, runner_args)?;
        let mut build = runner(root, has_nextest);
        build.arg("--no-run");
        if scope == Scope::Workspace {
            // The programs of the lab too, not only its tests.
            build = cargo(root);
            build.args(["build", "--all-targets"]);
        }
        build.args(&selection).args(build_args(runner_args));
        let setup = thread::scope(|scope| {
            let setup = scope.spawn(|| Setup::prepare(root, may_install));
            let compiled = run_interruptible(&mut build, &interrupt);
            let setup = setup.join();
            compiled?;
            setup.unwrap_or_else(|_| bail!("the set-up panicked"))
        })?;
        Ok(Self {
            root,
            runner_args,
            selection,
            setup,
            interrupt,
            has_nextest,
        })
    }

    /// Runs the doc tests and the tests, and counts those that skipped themselves.
    pub(crate) fn execute(&self) -> Result<()> {
        // With arguments the caller wants particular tests, not all doc tests.
        if self.runner_args.is_empty() && self.has_nextest {
            let mut doc_tests = cargo(self.root);
            doc_tests.args(["test", "--quiet", "--doc"]);
            doc_tests
                .args(&self.selection)
                .envs(self.setup.environment());
            run_interruptible(&mut doc_tests, &self.interrupt)?;
        }
        let mut tests = runner(self.root, self.has_nextest);
        tests.args(&self.selection);
        if self.runner_args.is_empty() {
            // One run shows every failure.
            tests.arg("--no-fail-fast");
        }
        tests.args(self.runner_args).envs(self.setup.environment());
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        if self.has_nextest {
            let passed = run_interruptible(&mut tests, &self.interrupt);
            let skipped = skips::report(&target_directory(self.root)?, is_ci);
            passed.and(skipped)
        } else {
            if self.runner_args.iter().all(|argument| argument != "--") {
                tests.arg("--");
            }
            run_and_count_skips(tests.arg("--show-output"), is_ci)
        }
    }
}

fn select(root: &Path, scope: Scope, runner_args: &[String]) -> Result<Vec<String>> {
    // Cargo refuses a feature of a package that is not selected.
    if names_a_package(runner_args) {
        return Ok(vec!["--all-features".to_owned()]);
    }
    let features = FEATURES.into_iter().map(str::to_owned);
    Ok(match scope {
        Scope::Product => {
            let product = workspace::names(root, Part::Product)?;
            let packages = workspace::flags(&product).map(str::to_owned);
            features.chain(packages).collect()
        }
        Scope::Workspace => features.chain(["--workspace".to_owned()]).collect(),
    })
}

/// The test runner: nextest where it is installed, else cargo's own.
pub(crate) fn runner(root: &Path, has_nextest: bool) -> Command {
    let mut command = cargo(root);
    if has_nextest {
        command.args(["nextest", "run"]);
    } else {
        command.arg("test");
    }
    command
}

/// The servers, SDKs and programs of a test run.
struct Setup {
    servers: Servers,
    variables: Vec<(&'static str, OsString)>,
}

impl Setup {
    fn prepare(root: &Path, may_install: bool) -> Result<Self> {
        let interrupt = Interrupt::listen()?;
        // One installation of all packages is quicker than several.
        servers::install_programs(may_install);
        let servers = servers::start(servers::NEEDED, may_install, &interrupt)?;
        let sdks = sdks::install(root, may_install, &interrupt)?;
        packages::install(root, &sdks, &interrupt)?;
        let mut variables: Vec<_> = sdks
            .environment()
            .map(|(name, value)| (name, value.into()))
            .collect();
        let given = env::var_os(BROWSER).is_some_and(|path| !path.is_empty());
        if !given
            && let Some(browser) = servers::ensure_program("chromium", "chromium", may_install)
        {
            variables.push((BROWSER, browser.into()));
        }
        Ok(Self { servers, variables })
    }

    fn environment(&self) -> impl Iterator<Item = (&str, OsString)> {
        let servers = self.servers.environment();
        servers
            .map(|(name, url)| (name, url.into()))
            .chain(self.variables.iter().cloned())
    }
}

/// Runs cargo's own test runner, passes its output on, and counts the tests that skipped
/// themselves.
fn run_and_count_skips(tests: &mut Command, is_ci: bool) -> Result<()> {
    let mut child = tests.stdout(Stdio::piped()).spawn()?;
    let mut lines = Vec::new();
    let output = child.stdout.take().context("the output is piped")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        lines.push(line);
    }
    let status = child.wait()?;
    // Cargo's runner does not say which test printed a line: each line counts.
    let skipped = skips::print(lines.iter().map(String::as_str), is_ci);
    if !status.success() {
        bail!("the tests failed: {status}");
    }
    skipped
}

/// The arguments that select what is built, without filters and what the test binaries read.
fn build_args(runner_args: &[String]) -> Vec<&String> {
    let mut selected = Vec::new();
    let mut arguments = runner_args.iter().take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == "-p" || argument == "--package" {
            selected.push(argument);
            selected.extend(arguments.next());
        } else if argument.starts_with("-p") || argument.starts_with("--package=") {
            selected.push(argument);
        }
    }
    selected
}

/// Starts the named servers and runs any command beside them.
pub(crate) fn run_beside(
    root: &Path,
    with: &[Server],
    may_install: bool,
    command: &[String],
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let servers = servers::start(with, may_install, &interrupt)?;
    let (program, arguments) = command.split_first().context("no command was given")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root)
        .envs(servers.environment());
    run_interruptible(&mut command, &interrupt)
}

/// Cargo ignores `-p` beside `--workspace`, so only one of them is passed.
fn names_a_package(runner_args: &[String]) -> bool {
    runner_args
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument.starts_with("-p") || argument.starts_with("--package"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_replaces_the_workspace() {
        let args = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(names_a_package(&args(&["-p", "semel-core"])));
        assert!(names_a_package(&args(&["-psemel-core"])));
        assert!(names_a_package(&args(&["--package=semel-core"])));
        assert!(!names_a_package(&args(&["expiry"])));
        assert!(!names_a_package(&args(&["--", "-p"])));
    }

    #[test]
    fn the_build_gets_the_packages_and_no_filter() {
        let args: Vec<_> = "-p a --package=b expiry -E test(x) -- -p c"
            .split(' ')
            .map(str::to_owned)
            .collect();
        assert_eq!(build_args(&args), ["-p", "a", "--package=b"]);
    }
}
