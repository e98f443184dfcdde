//! Hides secrets in text from servers.

use std::collections::HashSet;

/// So many consecutive characters of a secret are hidden: a server may truncate what it echoes,
/// and half a token is enough to guess by. Fewer may be an ordinary word.
const PART: usize = 8;
pub(crate) const HIDDEN: &str = "[hidden]";

/// Hides secrets and parts of them in text from a server. Not for our own text, where parts could be
/// ordinary words.
pub(crate) fn hide<'a>(text: &str, secrets: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<char> = text.chars().collect();
    // JSON has backslashes where the secret has none: `\/`, `\"`.
    let (places, plain): (Vec<usize>, Vec<char>) = all
        .iter()
        .enumerate()
        .filter(|(_, character)| **character != '\\')
        .unzip();
    let mut hidden = vec![false; all.len()];
    for secret in secrets {
        let secret: Vec<char> = secret.chars().filter(|c| *c != '\\').collect();
        let length = secret.len().min(PART);
        if length == 0 {
            continue;
        }
        let parts: HashSet<&[char]> = secret.windows(length).collect();
        for (at, found) in plain.windows(length).enumerate() {
            if parts.contains(found) {
                hidden[places[at]..=places[at + length - 1]].fill(true);
            }
        }
    }
    let mut safe = String::with_capacity(text.len());
    for (at, character) in all.into_iter().enumerate() {
        if !hidden[at] {
            safe.push(character);
        } else if at == 0 || !hidden[at - 1] {
            safe.push_str(HIDDEN);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_whole_and_in_part() {
        let secrets = ["Bearer abcdefghijkl/mnop", "s3cret"];
        for (text, safe) in [
            ("", ""),
            ("nothing of it", "nothing of it"),
            ("<Bearer abcdefghijkl/mnop>", "<[hidden]>"),
            ("token=abcdefghijkl/mnop,", "token=[hidden],"),
            // Truncated by the server at either end.
            ("token cdefghij…", "token [hidden]…"),
            ("…kl/mnop", "…kl/mnop"),
            // As JSON has it.
            (r#""abcdefghijkl\/mnop""#, r#""[hidden]""#),
            ("s3cret and s3cre", "[hidden] and s3cre"),
            ("é s3crets3cret é", "é [hidden] é"),
        ] {
            assert_eq!(hide(text, secrets.into_iter()), safe, "{text}");
        }
        assert_eq!(hide("\\", ["\\", ""].into_iter()), "\\");
    }
}
