//! Rule: the modules of `semel-http` import each other without a cycle. The steps of the request
//! pipeline import only steps before them, and `pipeline` is the one module that imports all of
//! them: it alone knows their order.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Problem, SourceFile, Tree};

const SOURCES: &str = "crates/semel-http/src/";

/// In order.
const STEPS: [&str; 6] = [
    "extract",
    "fingerprint",
    "reserve",
    "execute",
    "complete",
    "respond",
];

const PIPELINE: &str = "pipeline";

/// The modules that each module imports.
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut imports = Imports::new();
    let mut problems = Vec::new();
    let files: Vec<_> = tree.files().filter_map(module_of).collect();
    let modules: BTreeSet<&str> = files.iter().map(|(module, _)| *module).collect();
    if modules.is_empty() {
        return problems;
    }
    for (module, file) in &files {
        for name in imported_names(file) {
            if modules.contains(name) {
                let imported = imports.entry(module).or_default();
                // A module and its children are one module here.
                imported.extend((name != *module).then_some(name));
            } else {
                problems.push(file.problem(
                    0,
                    format!("imports crate::{name} through the crate root: name its module"),
                ));
            }
        }
    }
    if let Some(cycle) = find_cycle(&imports) {
        problems.push(problem(
            cycle[0],
            format!(
                "modules import each other in a cycle: {}",
                cycle.join(" -> ")
            ),
        ));
    }
    problems.extend(check_steps(&imports));
    problems
}

fn check_steps(imports: &Imports<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let empty = BTreeSet::new();
    let imported_by = |module: &str| imports.get(module).unwrap_or(&empty);
    for (at, step) in STEPS.iter().enumerate() {
        if !imported_by(PIPELINE).contains(step) {
            problems.push(problem(
                PIPELINE,
                format!("does not import the step {step}: the pipeline calls every step"),
            ));
        }
        for later in &STEPS[at..] {
            if imported_by(step).contains(later) {
                problems.push(problem(
                    step,
                    format!("imports the later step {later}: let the pipeline call it"),
                ));
            }
        }
    }
    for (module, imported) in imports {
        if *module != PIPELINE && STEPS.iter().all(|step| imported.contains(step)) {
            problems.push(problem(
                module,
                "imports all steps: only the pipeline knows their order".to_owned(),
            ));
        }
    }
    problems
}

/// The module that a file belongs to, with the file. `lib.rs` only declares the others.
fn module_of(file: &SourceFile) -> Option<(&str, &SourceFile)> {
    let path = file.path.strip_prefix(SOURCES)?.strip_suffix(".rs")?;
    let module = path.split('/').next()?;
    (module != "lib").then_some((module, file))
}

/// The names right after `crate::` in the code of a file: in `use` items, their groups, and paths.
fn imported_names(file: &SourceFile) -> BTreeSet<&str> {
    let code = file.code_lines();
    let mut names = BTreeSet::new();
    let mut depth = 0_usize;
    for (_, line) in file.lines_of_code().filter(|(at, _)| *at <= code) {
        let mut rest = line;
        // The rest of a group that began on a line before this one.
        if depth > 0 {
            rest = read_group(rest, &mut depth, &mut names);
        }
        while let Some(at) = rest.find("crate::") {
            rest = &rest[at + "crate::".len()..];
            match rest.strip_prefix('{') {
                Some(group) => {
                    depth = 1;
                    rest = read_group(group, &mut depth, &mut names);
                }
                None => {
                    names.insert(first_name(rest));
                }
            }
        }
    }
    names.remove("");
    names
}

/// Reads the names of a group up to its end or the end of the line, and returns what follows it.
fn read_group<'a>(text: &'a str, depth: &mut usize, names: &mut BTreeSet<&'a str>) -> &'a str {
    let mut at_name = *depth == 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => *depth += 1,
            '}' => {
                *depth -= 1;
                if *depth == 0 {
                    return &text[at + 1..];
                }
            }
            ',' => at_name = *depth == 1,
            ' ' => {}
            _ if at_name && *depth == 1 => {
                names.insert(first_name(&text[at..]));
                at_name = false;
            }
            _ => {}
        }
    }
    ""
}

fn first_name(text: &str) -> &str {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    &text[..end]
}

/// A cycle, with its first module repeated at its end.
fn find_cycle<'a>(imports: &Imports<'a>) -> Option<Vec<&'a str>> {
    let mut done = BTreeSet::new();
    let mut path = Vec::new();
    imports
        .keys()
        .find_map(|module| visit(module, imports, &mut path, &mut done))
}

fn visit<'a>(
    module: &'a str,
    imports: &Imports<'a>,
    path: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if let Some(at) = path.iter().position(|on_path| *on_path == module) {
        return Some([&path[at..], &[module]].concat());
    }
    if !done.insert(module) {
        return None;
    }
    path.push(module);
    let imported = imports.get(module).into_iter().flatten();
    let cycle = imported
        .into_iter()
        .find_map(|imported| visit(imported, imports, path, done));
    path.pop();
    cycle
}

fn problem(module: &str, message: String) -> Problem {
    Problem {
        path: format!("{SOURCES}{module}.rs"),
        line: 0,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMPORTS_ALL: &str = "use crate::{\n    complete,\n    execute::{self, run}, extract,\n};\n\
        use crate::fingerprint;\nfn run() { crate::reserve::reserve(); crate::respond::respond() }\n";

    /// The messages about a crate with the six steps, a pipeline, and these files.
    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<_> = files
            .iter()
            .map(|(name, text)| (format!("{SOURCES}{name}.rs"), *text))
            .chain(
                STEPS
                    .iter()
                    .chain([&"route"])
                    .filter(|step| files.iter().all(|(name, _)| name != *step))
                    .map(|step| (format!("{SOURCES}{step}.rs"), "")),
            )
            .collect();
        let files: Vec<_> = paths
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let problems = check(&Tree::fake(&files));
        problems
            .into_iter()
            .map(|found| found.to_string())
            .collect()
    }

    #[test]
    fn pipeline_that_imports_its_steps_passes() {
        let respond = "use crate::complete::Completed;\n//! crate::pipeline\n\
            #[cfg(test)]\nmod tests { use crate::pipeline; }\n";
        let files = [(PIPELINE, IMPORTS_ALL), ("respond", respond)];
        assert_eq!(messages(&files), Vec::<String>::new());
    }

    #[test]
    fn cycle_is_reported_with_its_path() {
        let found = messages(&[
            (PIPELINE, IMPORTS_ALL),
            ("route", "use crate::rules::Rules;"),
            ("rules", "use crate::{route, extract};"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("route -> rules -> route"), "{found:?}");
    }

    #[test]
    fn cycle_through_a_child_module_is_reported() {
        let found = messages(&[
            (PIPELINE, IMPORTS_ALL),
            ("phases/call", "use super::x;\nuse crate::{\n    route,\n};"),
            ("route", "fn a() -> crate::phases::Phases"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("phases -> route -> phases"), "{found:?}");
    }

    #[test]
    fn step_that_imports_a_later_step_is_reported() {
        let found = messages(&[
            (PIPELINE, IMPORTS_ALL),
            ("reserve", "use crate::execute::execute;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("later step execute"), "{found:?}");
    }

    #[test]
    fn second_module_that_imports_all_steps_is_reported() {
        let found = messages(&[(PIPELINE, IMPORTS_ALL), ("service", IMPORTS_ALL)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("service.rs: imports all"), "{found:?}");
    }

    #[test]
    fn pipeline_without_a_step_is_reported() {
        let found = messages(&[(PIPELINE, "use crate::extract;")]);
        assert_eq!(found.len(), 5, "{found:?}");
    }

    #[test]
    fn import_through_the_root_is_reported() {
        let found = messages(&[
            (PIPELINE, IMPORTS_ALL),
            ("route", "use crate::{Operation, extract};"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("crate::Operation"), "{found:?}");
    }
}
