//! `GET /.semel/errors/{code}`: the pages of `docs/errors`, to which the `type` of a problem points, and the page
//! about retrying that each of them links.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{
    ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Response, StatusCode};

/// Path prefix of the pages, on both listeners.
pub const ERROR_PATH: &str = "/.semel/errors/";

macro_rules! pages {
    ($($code:ident)*) => {
        [$((
            stringify!($code),
            include_str!(concat!("../../../docs/errors/", stringify!($code), ".md")),
        )),*]
    };
}

/// The pages by code, in Markdown.
static PAGES: [(&str, &str); 41] = pages! {
    admin_body_incomplete
    admin_body_too_large
    admin_cross_site
    admin_decision_invalid
    admin_decision_not_json
    admin_event_not_found
    admin_internal
    admin_method_not_allowed
    admin_not_an_operator
    admin_not_local
    admin_nothing_here
    admin_operation_conflict
    admin_operation_not_found
    admin_query_invalid
    admin_store_unavailable
    admin_too_many_attempts
    admin_unauthenticated
    idempotency_contract_changed
    idempotency_home_unavailable
    idempotency_key_expired
    idempotency_key_in_progress
    idempotency_key_malformed
    idempotency_key_missing
    idempotency_key_reused
    idempotency_outcome_pending
    idempotency_outcome_unknown
    idempotency_region_mismatch
    idempotency_replay_unavailable
    idempotency_response_not_stored
    idempotency_store_unavailable
    operation_not_executed
    path_ambiguous
    request_incomplete
    request_invalid
    request_malformed
    request_too_large
    server_overloaded
    tenant_unavailable
    tenant_unresolved
    upstream_failed
    upstream_unreachable
};

/// The name and the text of the page about retrying.
const RETRY: (&str, &str) = ("retry", include_str!("../../../docs/retry.md"));

/// All pages.
fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.into_iter().chain([RETRY])
}

/// Answers a request below [`ERROR_PATH`].
pub(crate) fn answer(method: &Method, path: &str) -> Response<Bytes> {
    let code = path.strip_prefix(ERROR_PATH).unwrap_or_default();
    let Some((code, page)) = pages().find(|(known, _)| *known == code) else {
        return respond(
            StatusCode::NOT_FOUND,
            "text/plain",
            "no such error code\n".into(),
        );
    };
    if method != Method::GET && method != Method::HEAD {
        let mut refused = respond(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "use GET\n".into(),
        );
        let headers = refused.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    respond(StatusCode::OK, "text/html", render(code, page))
}

fn respond(status: StatusCode, kind: &str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Ok(kind) = HeaderValue::try_from(format!("{kind}; charset=utf-8")) {
        headers.insert(CONTENT_TYPE, kind);
    }
    let policy = HeaderValue::from_static("default-src 'none'");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A page as HTML: headings, tables, lists of one line each, code and paragraphs are all that these pages have.
fn render(code: &str, page: &str) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{code}</title>\n"
    );
    let (mut in_table, mut in_code) = (false, false);
    let lines = page.lines();
    for line in lines.filter(|line| !line.starts_with("|---") && *line != "| | |") {
        if line.starts_with("```") {
            in_code = !in_code;
            html.push_str(if in_code { "<pre>\n" } else { "</pre>\n" });
            continue;
        }
        if in_code {
            html.push_str(&escape(line));
            html.push('\n');
            continue;
        }
        let row = line.strip_prefix("| ").map(|row| row.trim_end_matches('|'));
        if row.is_some() != in_table {
            in_table = row.is_some();
            html.push_str(if in_table { "<table>\n" } else { "</table>\n" });
        }
        // Writing to a string cannot fail.
        let _ = if let Some(row) = row {
            let cells = row
                .split(" | ")
                .map(|cell| format!("<td>{}</td>", inline(cell.trim())));
            writeln!(html, "<tr>{}</tr>", cells.collect::<String>())
        } else if let Some(title) = line.strip_prefix("# ") {
            writeln!(html, "<h1>{}</h1>", inline(title))
        } else if let Some(title) = line.strip_prefix("## ") {
            writeln!(html, "<h2>{}</h2>", inline(title))
        } else if let Some(title) = line.strip_prefix("### ") {
            writeln!(html, "<h3>{}</h3>", inline(title))
        } else if let Some(item) = line.strip_prefix("- ") {
            writeln!(html, "<li>{}</li>", inline(item))
        } else if line.is_empty() {
            Ok(())
        } else {
            writeln!(html, "<p>{}</p>", inline(line))
        };
    }
    html
}

/// Text with code, emphasis and links. A link to another page of this directory stays a link, one to
/// the rest of the documentation becomes its text.
fn inline(text: &str) -> String {
    let escaped = escape(text);
    let mut html = String::new();
    for (place, part) in escaped.split('`').enumerate() {
        if place % 2 == 1 {
            let _ = write!(html, "<code>{part}</code>");
        } else {
            html.push_str(part);
        }
    }
    let strong = alternate(&html, "**", "strong");
    links(&alternate(&strong, "*", "em"))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Replaces pairs of `mark` by an element.
fn alternate(text: &str, mark: &str, element: &str) -> String {
    let mut parts = text.split(mark);
    let mut html = parts.next().unwrap_or_default().to_owned();
    for (place, part) in parts.enumerate() {
        let slash = if place % 2 == 0 { "" } else { "/" };
        let _ = write!(html, "<{slash}{element}>{part}");
    }
    html
}

fn links(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](")
        && let Some((target, behind)) = after.split_once(')')
        && let Some((before, label)) = before.rsplit_once('[')
    {
        // From `docs/errors` and from `docs`.
        let page = target.strip_suffix(".md").map(|page| {
            let page = page.strip_prefix("../").unwrap_or(page);
            page.strip_prefix("errors/").unwrap_or(page)
        });
        let _ = match page.filter(|page| pages().any(|(known, _)| known == *page)) {
            Some(page) => write!(html, "{before}<a href=\"{page}\">{label}</a>"),
            None => write!(html, "{before}{label}"),
        };
        rest = behind;
    }
    html + rest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_of_the_documentation_is_served() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let files = std::fs::read_dir(directory).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let codes: BTreeSet<String> = names
            .filter(|name| name != "README.md")
            .map(|name| name.trim_end_matches(".md").to_owned())
            .collect();
        let served = PAGES.iter().map(|(code, _)| (*code).to_owned());
        assert_eq!(served.collect::<BTreeSet<_>>(), codes);
    }

    #[test]
    fn a_page_is_rendered_as_html() {
        let page = "# `a_code`\n\n| | |\n|---|---|\n| status | 409 |\n\n## What <it> means\n\
                    **Not** *twice*. See [`other`](request_invalid.md), [docs](../http.md#x).\n";
        let html = render("a_code", page);
        let body = html.split_once("<title>a_code</title>\n").unwrap().1;
        assert_eq!(
            body,
            "<h1><code>a_code</code></h1>\n<table>\n<tr><td>status</td><td>409</td></tr>\n</table>\n\
             <h2>What &lt;it&gt; means</h2>\n<p><strong>Not</strong> <em>twice</em>. See \
             <a href=\"request_invalid\"><code>other</code></a>, docs.</p>\n"
        );
    }

    #[test]
    fn no_markup_is_left_in_any_page() {
        for (code, page) in PAGES {
            let html = render(code, page);
            assert!(
                html.contains(&format!("<h1><code>{code}</code></h1>")),
                "{html}"
            );
        }
        for (code, page) in pages() {
            let html = render(code, page);
            // Code may look like markup.
            let outside = html.split("<pre>").map(|part| part.rsplit("</pre>").next());
            let text: String = outside.flatten().collect();
            for mark in ["](", "**", "`", "\n#", "\n|", "\n- "] {
                assert!(!text.contains(mark), "{mark} in {code}: {html}");
            }
        }
    }

    #[test]
    fn every_page_links_the_page_about_retrying() {
        for (code, page) in PAGES {
            let html = render(code, page);
            assert!(html.contains("<a href=\"retry\">"), "{code}");
        }
        let page = answer(&Method::GET, "/.semel/errors/retry");
        assert_eq!(page.status(), StatusCode::OK);
        let html = std::str::from_utf8(page.body()).unwrap();
        assert!(
            html.contains("<a href=\"idempotency_outcome_unknown\">"),
            "{html}"
        );
        assert!(html.contains("<h1>How to retry</h1>"), "{html}");
    }

    #[test]
    fn an_unknown_code_is_not_found() {
        let get = |path| answer(&Method::GET, path).status();
        assert_eq!(get("/.semel/errors/idempotency_key_reused"), StatusCode::OK);
        for path in [
            "/.semel/errors/",
            "/.semel/errors/README",
            "/.semel/errors/no_such_code",
        ] {
            assert_eq!(get(path), StatusCode::NOT_FOUND, "{path}");
        }
        let post = answer(&Method::POST, "/.semel/errors/idempotency_key_reused");
        assert_eq!(post.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
