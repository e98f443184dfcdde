//! `secret_env` and `secret_file`: secrets come from the environment or from files, never from the
//! configuration itself.

use semel_worker::webhook::{MAX_SECRETS, Scheme};

use super::table::Table;
use super::{Environment, read_file};

/// Reads all secrets of a table; `None` if one is missing or invalid, which is reported. `scheme`
/// checks the form of each secret, if it is known. `required` is the message for a table without
/// secrets; without it their number is not checked.
pub(super) fn read(
    table: &mut Table<'_>,
    scheme: Option<&Scheme>,
    environment: &Environment,
    required: Option<&str>,
) -> Option<Vec<String>> {
    let problems = table.problems;
    let names = table.one_or_more("secret_env", |name| Ok::<_, String>(name.to_owned()));
    let paths = table.one_or_more("secret_file", |path| Ok::<_, String>(path.to_owned()));
    let count = names.len() + paths.len();
    let from_environment = names.into_iter().map(|name| {
        let secret = environment.require(name.get_ref());
        let origin = format!("environment variable {}", name.get_ref());
        (origin, name.span(), secret)
    });
    let from_files = paths.into_iter().map(|path| {
        (
            path.get_ref().clone(),
            path.span(),
            from_file(path.get_ref()),
        )
    });
    let mut secrets = Vec::new();
    for (origin, span, secret) in from_environment.chain(from_files) {
        let checked = secret.and_then(|secret| match scheme.map(|scheme| scheme.check(&secret)) {
            Some(Err(problem)) => Err(format!("{origin}: {problem}")),
            Some(Ok(())) | None => Ok(secret),
        });
        match checked {
            Ok(secret) => secrets.push(secret),
            Err(problem) => problems.at(span, problem),
        }
    }
    let given = table
        .key_span("secret_file")
        .or(table.key_span("secret_env"));
    match (given, required) {
        (None, Some(message)) => problems.at(table.span(), message),
        (Some(span), Some(_)) if !(1..=MAX_SECRETS).contains(&count) => {
            let message = format!("expected 1 to {MAX_SECRETS} secrets, found {count}");
            problems.at(span, message);
        }
        (Some(_) | None, _) => {}
    }
    (count == secrets.len() && (1..=MAX_SECRETS).contains(&count)).then_some(secrets)
}

/// The secret in a file.
pub(super) fn from_file(path: &str) -> Result<String, String> {
    // Editors end a file with a line break, which is not part of the secret.
    let text = read_file(path.as_ref())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    Ok(text.to_owned())
}
