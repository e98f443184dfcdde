//! Rule: links between the repository's own files point to existing files.

use super::tree::{Problem, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().filter(|file| file.has_extension("md")) {
        let mut in_code_block = false;
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code_block = !in_code_block;
            }
            if in_code_block {
                continue;
            }
            for target in targets(line) {
                let found = resolve(&file.path, target).is_some_and(|path| tree.has(&path));
                if !found {
                    problems.push(file.problem(
                        index + 1,
                        format!(
                            "the link `{target}` points to no file: fix the path or remove the link"
                        ),
                    ));
                }
            }
        }
    }
    problems
}

/// The paths of inline links `[text](path#section "title")` and of reference links
/// `[text]: path`, without those into the web.
fn targets(line: &str) -> Vec<&str> {
    let inline = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let reference = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .map(|(_, target)| target);
    inline
        .chain(reference)
        .filter_map(|target| target.split_whitespace().next())
        .filter_map(|target| target.split('#').next())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .filter(|target| !target.starts_with("mailto:"))
        .collect()
}

/// The path from the root, unless it leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> usize {
        check(&Tree::fake(&[
            ("docs/a.md", text),
            ("docs/b.md", ""),
            ("README.md", ""),
        ]))
        .len()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(broken("[c](c.md) and [d](../d.md)"), 2);
        assert_eq!(broken("[out](../../elsewhere.md)"), 1);
        assert_eq!(broken("[c]: c.md"), 1);
    }

    #[test]
    fn good_links_and_code_pass() {
        assert_eq!(
            broken("[b](b.md#part) [up](../README.md) [dir](../docs/) [root](/README.md)"),
            0
        );
        assert_eq!(broken("[web](https://example.com/a.md) [here](#part)"), 0);
        assert_eq!(broken("```\n[c](c.md)\n```"), 0);
    }
}
