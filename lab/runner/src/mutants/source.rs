//! The text of the files that mutants change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::VARIABLE;
use super::list::{Edit, Mutant, ON};

/// The expression with which a crate includes its statements, all of them in one place.
const STATEMENTS: &str = r#"include_str!(concat!("../queries/", stringify!($name), ".sql"))"#;
/// The file of that expression, in the crate.
const STATEMENTS_FILE: &str = "src/queries.rs";

/// The files that differ in the copy, with their text.
pub(super) type Changed = BTreeMap<String, String>;

/// One replacement in a file.
struct Change<'a> {
    whose: &'a str,
    start: usize,
    end: usize,
    text: String,
}

/// Applies every edit of every mutant to the text in `root`.
pub(super) fn mutated(root: &Path, all: &[Mutant]) -> Result<Changed> {
    mutated_by(all, |file| {
        fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))
    })
}

fn mutated_by(all: &[Mutant], read: impl Fn(&str) -> Result<String>) -> Result<Changed> {
    let mut sources: BTreeMap<&str, Vec<(&Mutant, &Edit)>> = BTreeMap::new();
    let mut statements: BTreeMap<&str, Vec<(&Mutant, &str, &Edit)>> = BTreeMap::new();
    for mutant in all {
        for edit in &mutant.edits {
            match edit.statement() {
                Some((package, name)) => {
                    // The file is not changed, but the text must be in it.
                    place(mutant, edit, &read(&edit.file)?)?;
                    let edits = statements.entry(package).or_default();
                    edits.push((mutant, name, edit));
                }
                None => sources.entry(&edit.file).or_default().push((mutant, edit)),
            }
        }
    }
    let mut texts = Changed::new();
    for (file, edits) in sources {
        let text = read(file)?;
        let mut changes = Vec::new();
        for (mutant, edit) in edits {
            let start = place(mutant, edit, &text)?;
            changes.push(Change {
                whose: &mutant.name,
                start,
                end: start + edit.find.len(),
                text: edit.replace.replace(ON, &alive(&mutant.name)),
            });
        }
        let text = apply(file, &text, changes)?;
        texts.insert(file.to_owned(), text);
    }
    for (package, edits) in statements {
        let file = format!("{package}/{STATEMENTS_FILE}");
        let text = match texts.remove(&file) {
            Some(text) => text,
            None => read(&file)?,
        };
        texts.insert(file.clone(), with_statements(&file, &text, &edits)?);
    }
    Ok(texts)
}

/// The position of an edit. An error if the text does not occur exactly once.
fn place(mutant: &Mutant, edit: &Edit, text: &str) -> Result<usize> {
    let (name, file) = (&mutant.name, &edit.file);
    let mut found = text.match_indices(&edit.find);
    match (found.next(), found.next()) {
        (Some((start, _)), None) => Ok(start),
        (None, _) => bail!(
            "{name}: {file} no longer contains what is to be replaced:\n{}",
            edit.find
        ),
        (Some(_), Some(_)) => bail!(
            "{name}: {file} contains what is to be replaced more than once:\n{}",
            edit.find
        ),
    }
}

/// The text with all changes in it. Overlapping changes are an error.
fn apply(file: &str, text: &str, mut changes: Vec<Change<'_>>) -> Result<String> {
    changes.sort_by_key(|change| change.start);
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    let mut before = "";
    for change in changes {
        if change.start < copied {
            bail!(
                "{before} and {} change the same place in {file}",
                change.whose
            );
        }
        out.push_str(&text[copied..change.start]);
        out.push_str(&change.text);
        copied = change.end;
        before = change.whose;
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// The crate's statements, with another text while a mutant of it is active.
fn with_statements(file: &str, text: &str, edits: &[(&Mutant, &str, &Edit)]) -> Result<String> {
    if text.matches(STATEMENTS).count() != 1 {
        bail!("{file} does not take its statements in as expected, in one place:\n{STATEMENTS}");
    }
    let mut out = text.replace(
        STATEMENTS,
        &format!("mutated(stringify!($name), {STATEMENTS})"),
    );
    // A mutant may change a statement in several places.
    let mut texts: BTreeMap<(&str, &str), Vec<&Edit>> = BTreeMap::new();
    for (mutant, statement, edit) in edits {
        let edits = texts.entry((*statement, &mutant.name)).or_default();
        edits.push(edit);
    }
    out.push_str("\nfn mutated(name: &str, text: &'static str) -> &'static str {\n");
    out.push_str("    let instead = match name {\n");
    for ((statement, name), edits) in texts {
        // Writing to a String cannot fail.
        let _ = write!(out, "        {statement:?} if {} => text", alive(name));
        for edit in edits {
            let _ = write!(out, ".replacen({:?}, {:?}, 1)", edit.find, edit.replace);
        }
        out.push_str(",\n");
    }
    out.push_str("        _ => return text,\n    };\n");
    out.push_str("    Box::leak(instead.into_boxed_str())\n}\n");
    Ok(out)
}

/// An expression that is true if the environment selects this mutant.
fn alive(name: &str) -> String {
    format!("(std::env::var_os({VARIABLE:?}).is_some_and(|mutant| mutant == {name:?}))")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "crates/a/src/lib.rs";
    const TEXT: &str = "fn a() { if guarded() { stop() } go() }\nfn b() { go() }\n";

    fn mutant(name: &str, edits: &[(&str, &str, &str)]) -> Mutant {
        let edits = edits.iter().map(|(file, find, replace)| {
            format!("[[mutant.edit]]\nfile = {file:?}\nfind = {find:?}\nreplace = {replace:?}\n")
        });
        let text = format!(
            "[[mutant]]\nname = {name:?}\nguard = ''\nwhy = ''\ncaught_by = ['a/lib/b']\n\
             says = ['c']\n{}",
            edits.collect::<String>()
        );
        crate::mutants::list::parse(&text).unwrap().remove(0)
    }

    fn on(files: &[(&str, &str)], all: &[Mutant]) -> Result<Changed> {
        mutated_by(all, |asked| {
            let found = files.iter().find(|(file, _)| *file == asked);
            let (_, text) = found.with_context(|| format!("cannot read {asked}"))?;
            Ok((*text).to_owned())
        })
    }

    fn problem(all: &[Mutant]) -> String {
        on(&[(FILE, TEXT)], all).unwrap_err().to_string()
    }

    #[test]
    fn several_mutants_are_in_one_file() {
        let first = mutant("one", &[(FILE, "guarded()", "!{{on}} && guarded()")]);
        let second = mutant(
            "two",
            &[(FILE, "fn b() {", "fn b() { if {{on}} { stop() }")],
        );
        // Not in the order of the file.
        let changed = on(&[(FILE, TEXT)], &[second, first]).unwrap();
        let alive = |name: &str| {
            format!(
                "(std::env::var_os(\"SEMEL_MUTANT\").is_some_and(|mutant| mutant == \"{name}\"))"
            )
        };
        assert_eq!(
            changed[FILE],
            format!(
                "fn a() {{ if !{} && guarded() {{ stop() }} go() }}\nfn b() {{ if {} {{ stop() }} go() }}\n",
                alive("one"),
                alive("two")
            )
        );
    }

    #[test]
    fn what_is_not_there_exactly_once_is_an_error() {
        let gone = mutant("one", &[(FILE, "unguarded()", "{{on}}")]);
        assert!(problem(&[gone]).starts_with("one: crates/a/src/lib.rs no longer contains"));
        let twice = mutant("one", &[(FILE, "go()", "{{on}}")]);
        assert!(problem(&[twice]).contains("more than once"));
        let nowhere = mutant("one", &[("crates/b/src/lib.rs", "go()", "{{on}}")]);
        assert_eq!(problem(&[nowhere]), "cannot read crates/b/src/lib.rs");
    }

    #[test]
    fn two_edits_of_one_place_are_an_error() {
        let first = mutant("one", &[(FILE, "if guarded() {", "{{on}}")]);
        let second = mutant("two", &[(FILE, "{ stop() }", "{{on}}")]);
        let text = problem(&[first.clone(), second]);
        assert_eq!(
            text,
            "one and two change the same place in crates/a/src/lib.rs"
        );
        // Adjacent edits do not overlap.
        let beside = mutant("two", &[(FILE, " stop() }", "{{on}}")]);
        assert!(on(&[(FILE, TEXT)], &[first, beside]).is_ok());
    }

    #[test]
    fn a_statement_is_another_where_the_mutant_is_alive() {
        let queries = format!("Self {{ $($name: {STATEMENTS},)* }}\n");
        let files = [
            (
                "crates/a/queries/end.sql",
                "WHERE id = ?1\n  AND attempt = ?2\n",
            ),
            ("crates/a/src/queries.rs", queries.as_str()),
        ];
        let edit = ("crates/a/queries/end.sql", "\n  AND attempt = ?2", "");
        // Two mutants may change the same statement: only one is active at a time.
        let all = [mutant("one", &[edit]), mutant("two", &[edit])];
        let changed = on(&files, &all).unwrap();
        assert_eq!(changed.len(), 1, "the statement's own file stays as it is");
        let text = &changed["crates/a/src/queries.rs"];
        assert!(text.contains(&format!("$name: mutated(stringify!($name), {STATEMENTS})")));
        for name in ["one", "two"] {
            let arm = format!(
                "\"end\" if {} => text.replacen(\"\\n  AND attempt = ?2\", \"\", 1),\n",
                alive(name)
            );
            assert!(text.contains(&arm), "{text}");
        }

        let rotten = ("crates/a/queries/end.sql", "AND attempt = ?3", "");
        let error = on(&files, &[mutant("one", &[rotten])]).unwrap_err();
        assert!(error.to_string().contains("no longer contains"));
        let elsewhere = [files[0], ("crates/a/src/queries.rs", "Self {}")];
        let error = on(&elsewhere, &all).unwrap_err().to_string();
        assert!(error.contains("in one place"), "{error}");
    }
}
