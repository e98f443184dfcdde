//! Rule: SQL lives in `.sql` files, one statement each, with a comment that explains it.

use super::tree::{Problem, SourceFile, Tree};

/// Statements about data and schema: in files only.
const DATA_WORDS: [&str; 11] = [
    "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "DROP", "WITH",
    "TRUNCATE", "ANALYZE",
];
/// Statements about the connection.
const SESSION_WORDS: [&str; 8] = [
    "BEGIN",
    "COMMIT",
    "END",
    "ROLLBACK",
    "SAVEPOINT",
    "RELEASE",
    "PRAGMA",
    "VACUUM",
];
/// Files that set up connections and control transactions: a query file for each `COMMIT` would not
/// help the reader.
const SESSION_FILES: [&str; 2] = [
    "crates/semel-sqlite/src/connection.rs",
    "crates/semel-sqlite/src/migrate.rs",
];

/// Looks for string literals that begin with an SQL word in capitals.
pub(super) fn check_sources(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(|file| file.is_crate_source()) {
        let session_allowed = SESSION_FILES.contains(&file.path.as_str());
        for (number, word) in literals(file) {
            let banned =
                DATA_WORDS.contains(&word) || (SESSION_WORDS.contains(&word) && !session_allowed);
            if banned {
                problems.push(file.problem(
                    number,
                    format!(
                        "SQL in a string ({word} …): put it into a file under queries/ and \
                         include it with include_str!; transaction control and pragmas go into \
                         {}",
                        SESSION_FILES.join(", "),
                    ),
                ));
            }
        }
    }
    problems
}

/// The first word of every string literal outside tests, with its line.
fn literals(file: &SourceFile) -> Vec<(usize, &str)> {
    let code_lines = file.code_lines();
    let lines: Vec<&str> = file.text.lines().collect();
    let mut words = Vec::new();
    for (number, line) in file
        .lines_of_code()
        .filter(|(number, _)| *number <= code_lines)
    {
        // Every piece after a quote may be the inside of a literal; a piece that is not would
        // have to begin with a bare SQL word in capitals to be mistaken for one.
        for (index, piece) in line.split('"').enumerate().skip(1) {
            // A literal that opens at the end of a line begins on the next one.
            let is_last = index == line.matches('"').count();
            let opens_next_line = is_last && matches!(piece.trim(), "" | "\\");
            let start = if opens_next_line {
                lines.get(number).copied()
            } else {
                Some(piece)
            };
            words.extend(start.and_then(sql_word).map(|word| (number, word)));
        }
    }
    words
}

fn sql_word(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text
        .find(|c: char| !c.is_ascii_uppercase())
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    // `CREATED` and `BEGIN_MARK` are names, `"SELECT"` alone is a word.
    let ends_here = rest
        .chars()
        .next()
        .is_none_or(|c| c.is_whitespace() || c == ';');
    (!word.is_empty() && ends_here).then_some(word)
}

pub(super) fn check_queries(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        let is_query = file.path.starts_with("crates/") && file.path.contains("/queries/");
        if !is_query || !file.has_extension("sql") {
            continue;
        }
        let why = file
            .text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("--"));
        if why.is_none_or(|why| why.trim().is_empty()) {
            problems.push(file.problem(1, "begin the query with a `--` comment that explains it"));
        }
        let statements = count_statements(&file.text);
        if statements != 1 {
            problems.push(file.problem(
                0,
                format!("a query file holds one statement, this one {statements}: split it"),
            ));
        }
    }
    problems
}

/// Counts what semicolons separate, outside comments and quotes.
fn count_statements(sql: &str) -> usize {
    let mut statements = 0;
    let mut in_statement = false;
    let mut rest = sql;
    while let Some(next) = rest.chars().next() {
        let skipped = match next {
            '-' if rest.starts_with("--") => rest.find('\n'),
            '/' if rest.starts_with("/*") => rest.find("*/").map(|end| end + 1),
            '\'' | '"' => {
                in_statement = true;
                rest[1..].find(next).map(|end| end + 1)
            }
            ';' => {
                statements += usize::from(in_statement);
                in_statement = false;
                Some(0)
            }
            other => {
                in_statement |= !other.is_whitespace();
                Some(other.len_utf8() - 1)
            }
        };
        // A comment or quote without an end takes the rest of the file.
        rest = skipped.map_or("", |skipped| &rest[skipped + 1..]);
    }
    statements + usize::from(in_statement)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_problems(path: &str, text: &str) -> usize {
        check_sources(&Tree::fake(&[(path, text)])).len()
    }

    #[test]
    fn sql_in_a_string_is_found() {
        let path = "crates/semel-sqlite/src/store.rs";
        assert_eq!(source_problems(path, "let a = \"SELECT 1\";"), 1);
        assert_eq!(source_problems(path, "let a = r#\"INSERT INTO b\"#;"), 1);
        assert_eq!(source_problems(path, "let a = \"\n   DELETE FROM b\";"), 1);
        assert_eq!(source_problems(path, "let a = \"\\\n   UPDATE b\";"), 1);
        assert_eq!(source_problems(path, "run(\"COMMIT\");"), 1);
        assert_eq!(source_problems(path, "run(\"PRAGMA x;\");"), 1);
    }

    #[test]
    fn other_strings_tests_and_comments_pass() {
        let path = "crates/semel-sqlite/src/store.rs";
        assert_eq!(source_problems(path, "let a = \"select a policy\";"), 0);
        assert_eq!(source_problems(path, "let a = \"CREATED\";"), 0);
        assert_eq!(source_problems(path, "// \"SELECT 1\""), 0);
        assert_eq!(
            source_problems(path, "#[cfg(test)]\nmod tests {\n\"SELECT 1\"\n}"),
            0
        );
        assert_eq!(
            source_problems("crates/semel-sqlite/tests/a.rs", "\"SELECT 1\""),
            0
        );
        assert_eq!(source_problems("bench/src/main.rs", "\"SELECT 1\""), 0);
        assert_eq!(source_problems(SESSION_FILES[0], "run(\"COMMIT\");"), 0);
        assert_eq!(source_problems(SESSION_FILES[0], "run(\"SELECT 1\");"), 1);
    }

    #[test]
    fn a_query_file_has_a_comment_and_one_statement() {
        let problems = |text| check_queries(&Tree::fake(&[("crates/a/queries/b.sql", text)])).len();
        assert_eq!(
            problems("-- Fenced; see transition.rs.\nSELECT ';--' FROM \"a;b\"; /* ; */\n"),
            0
        );
        assert_eq!(problems("SELECT 1;"), 1);
        assert_eq!(problems("--\nSELECT 1"), 1);
        assert_eq!(problems("-- why\nSELECT 1; SELECT 2"), 1);
        assert_eq!(problems("-- why\n"), 1);
    }
}
