//! `[region]`.

use std::time::Duration;

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

const LIST: &str = "regions = { eu = \"https://eu.example\", us = \"https://us.example:8443\" }\n";

fn load_region(text: &str) -> Result<Config, Report> {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    load_with(
        text,
        flags,
        &[
            ("SECRET", SECRET),
            ("SHORT", "guessable"),
            ("BLANK", "a secret with blanks, although long"),
        ],
    )
}

fn problems(text: &str) -> Vec<String> {
    let report = load_region(text).err();
    let problems = report.iter().flat_map(Report::problems);
    problems.map(ToString::to_string).collect()
}

#[test]
fn the_list_and_its_rules_are_read() {
    let text = format!(
        "[region]\nname = \"eu\"\nversion = 7\n{LIST}secret_env = \"SECRET\"\n\
         tenant_home = {{ \"acct_us_*\" = \"us\", acme = \"eu\" }}\n\
         [policy]\nupstream_timeout = \"10s\"\n\
         [[route]]\nmatch = \"POST /a\"\nin_flight = \"wait\"\nwait_max = \"15s\"\n"
    );
    let region = load_region(&text).unwrap().region.unwrap();
    assert_eq!(region.name(), "eu");
    let list = region.table().published();
    let names: Vec<&str> = list.names.iter().map(|name| &**name).collect();
    assert_eq!((list.version, &names[..]), (7, &["eu", "us"][..]));
    assert!(list.tenant_homes.is_some());
    let rules = &region.table().tenant_homes;
    assert_eq!(
        (&*rules[0].tenant, rules[0].is_prefix, &*rules[0].home),
        ("acct_us_", true, "us")
    );
    // The application's time, that of a wait, and twenty seconds.
    assert_eq!(
        semel_http::Homes::timeout(&*region),
        Duration::from_secs(45)
    );
    assert!(load_region("").unwrap().region.is_none());
}

#[test]
fn what_is_wrong_is_reported_at_its_place() {
    let with = |lines: &str| format!("[region]\nname = \"eu\"\nversion = 7\n{LIST}{lines}");
    let secret = "secret_env = \"SECRET\"\n";
    for (text, expected) in [
        (
            "[region]\n".to_owned(),
            &["no `name`", "no `regions`", "no `version`"][..],
        ),
        (with(""), &["semel.toml:1:1: [region] has no secret"]),
        (
            with("secret_env = \"NONE\""),
            &["semel.toml:5:14: environment variable NONE is not set"],
        ),
        (
            with("secret_env = \"SHORT\""),
            &["semel.toml:5:1: the secret of the regions needs at least 22"],
        ),
        (
            with("secret_env = \"BLANK\""),
            &["semel.toml:5:1: the secret of the regions needs"],
        ),
        (
            with(secret).replace("name = \"eu\"", "name = \"ap\""),
            &["semel.toml:2:8: region \"ap\" is not in `regions`"],
        ),
        (
            with(&format!("{secret}tenant_home = {{ acme = \"ap\" }}")),
            &["semel.toml:6:24: region \"ap\" is not in `regions`"],
        ),
        (
            with(&format!("{secret}tenant_home = {{ acme = 7 }}")),
            &["semel.toml:6:24: `acme` must be a string, not an integer"],
        ),
        (
            with(&format!("{secret}timeout = \"60s\"")),
            &[
                "semel.toml:6:11: `timeout` must be longer than a request may take at its home, which is 1m",
            ],
        ),
        (
            with(secret).replace("https://us.example:8443", "us.example"),
            &["semel.toml:4:45: invalid region URL"],
        ),
        (
            with(secret).replace("https://us.example:8443", "https://us.example/path"),
            &["semel.toml:4:45: invalid region URL"],
        ),
        (
            with(secret).replace("us =", "US ="),
            &["invalid name of a region \"US\""],
        ),
        (
            with(secret).replace("version = 7", "version = 0"),
            &["semel.toml:3:11: `version` must be an integer from 1"],
        ),
        (
            with(&format!("{secret}tenant_homes = {{}}")),
            &["did you mean `tenant_home`?"],
        ),
    ] {
        let found = problems(&text);
        assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
        for (found, part) in found.iter().zip(expected) {
            assert!(found.contains(part), "{text}\n{found}");
            assert!(!found.contains("guessable"), "{found}");
        }
    }
}

#[test]
fn one_region_alone_needs_no_secret() {
    let text = "[region]\nname = \"eu\"\nversion = 1\nregions = { eu = \"http://127.0.0.1:1\" }\n";
    assert!(load_region(text).unwrap().region.is_some());
}

#[test]
fn an_address_without_tls_is_a_warning_outside_of_this_machine() {
    let text = "[region]\nname = \"eu\"\nversion = 1\nsecret_env = \"SECRET\"\n\
                regions = { ap = \"http://127.0.0.1:1\", eu = \"http://eu.example\" }\n";
    let warnings = load_region(text).unwrap().warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("\"eu\" is not https"), "{warnings:?}");
}
