//! The tenant rule: from a flag, a variable or the file.

use std::sync::Arc;

use super::*;
use crate::tenant::KeySource;

fn flags(tenant: Option<&str>) -> Flags {
    Flags {
        upstream: Some("http://app".parse().unwrap()),
        tenant: tenant.map(|rule| rule.parse().unwrap()),
        ..Flags::default()
    }
}

fn named(config: &Config) -> String {
    match &config.tenant {
        TenantFrom::Authorization { rotating } => format!("authorization, rotating: {rotating}"),
        TenantFrom::Header(name) => format!("header:{name}"),
        TenantFrom::Jwt { claim, keys } => match keys {
            KeySource::Fixed(_) => format!("jwt:{claim}, fixed"),
            KeySource::Remote(keys) => format!("jwt:{claim}, {keys:?}"),
        },
        TenantFrom::None => "none".to_owned(),
    }
}

#[test]
fn without_a_rule_the_choices_are_explained() {
    for text in ["", "[tenant]", "[tenant]\nrotating = true"] {
        let report = load_exactly(text, flags(None), &[]).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        let shown = report.render(Style::Plain);
        for part in [
            "no tenant rule",
            "--tenant",
            "SEMEL_TENANT",
            "[tenant]",
            "authorization ",
            "jwt:sub ",
            "header:NAME ",
            "none ",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
    }
}

#[test]
fn a_flag_overrides_the_variable_which_overrides_the_file() {
    let file = "[tenant]\nfrom = \"jwt:sub\"\nsecret_env = \"JWT\"\nissuer = \"a\"";
    let jwt = ("JWT", "secret");
    let variable = ("SEMEL_TENANT", "header:X-Account-Id");
    for (flag, variables, expected) in [
        (None, &[jwt][..], "jwt:sub, fixed"),
        (None, &[jwt, variable], "header:x-account-id"),
        (Some("none"), &[jwt, variable], "none"),
        (Some("jwt:org"), &[jwt, variable], "jwt:org, fixed"),
    ] {
        let config = load_exactly(file, flags(flag), variables).unwrap();
        assert_eq!(named(&config), expected);
    }
    let rule = |rule| load_exactly("", flags(Some(rule)), &[]);
    let authorization = named(&rule("authorization").unwrap());
    assert_eq!(authorization, "authorization, rotating: false");
    let without_keys = rule("jwt:sub").unwrap_err().to_string();
    assert!(without_keys.starts_with("--tenant: there are no keys"));
    let rotating = "[tenant]\nfrom = \"authorization\"\nrotating = true";
    let rotating = load_exactly(rotating, flags(None), &[]).unwrap();
    assert_eq!(named(&rotating), "authorization, rotating: true");
}

#[test]
fn an_invalid_variable_is_the_only_problem() {
    let report = load_exactly("", flags(None), &[("SEMEL_TENANT", "cookie")]).unwrap_err();
    assert_eq!(report.problems().len(), 1, "{report}");
    let report = report.to_string();
    assert!(report.starts_with("SEMEL_TENANT: invalid tenant rule"));
}

#[test]
fn keys_may_come_from_a_url() {
    let load = |url: &str| {
        let text = format!("[tenant]\nfrom = \"jwt:sub\"\njwks_url = \"{url}\"");
        load_exactly(&text, flags(None), &[])
    };
    for url in [
        "http://127.0.0.1:9/jwks.json?a=b",
        "http://localhost/jwks",
        "http://[::1]:80/",
    ] {
        let expected = format!("jwt:sub, RemoteKeys({url})");
        assert_eq!(named(&load(url).unwrap()), expected);
    }
    for (url, part) in [
        ("jwks.json", "use https"),
        ("/jwks.json", "no host"),
        ("http://issuer.example/jwks.json", "use https"),
        ("ftp://issuer.example/jwks.json", "use https"),
        (
            "https://user:secret@issuer.example/",
            "remove the user name",
        ),
    ] {
        let report = load(url).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        let report = report.to_string();
        assert!(
            report.starts_with("semel.toml:3:12: ") && report.contains(part),
            "{url}: {report}"
        );
        assert!(!report.contains("secret"), "{report}");
    }
}

#[test]
fn a_reload_keeps_the_keys_of_the_same_issuer() {
    let load = |settings: &str| {
        let text = format!("[tenant]\nfrom = \"jwt:sub\"\n{settings}");
        let config = load_exactly(&text, flags(None), &[("JWT", "secret")]);
        config.unwrap().tenant
    };
    let remote = |tenant: &TenantFrom| {
        if let TenantFrom::Jwt { keys, .. } = tenant
            && let KeySource::Remote(keys) = keys
        {
            return Some(Arc::clone(keys));
        }
        None
    };
    let url = "jwks_url = \"http://localhost/a\"\n";
    let running = load(url);
    for (settings, kept) in [
        (url.to_owned(), true),
        (format!("{url}audience = \"payments\""), false),
        ("jwks_url = \"http://localhost/b\"".to_owned(), false),
        ("secret_env = \"JWT\"".to_owned(), false),
    ] {
        let mut loaded = load(&settings);
        loaded.keep_fetched_keys(&running);
        let same = remote(&loaded)
            .zip(remote(&running))
            .is_some_and(|(one, other)| Arc::ptr_eq(&one, &other));
        assert_eq!(same, kept, "{settings}");
    }
}
