//! The authority of a request: one application may serve several hosts, each with its own data.

use serde::{Deserialize, Serialize};

use super::Error;

/// The most hosts that can be declared equivalent.
pub const MAX_HOSTS: usize = 256;

/// The longest name of a host, with its port.
const MAX_HOST_BYTES: usize = 261;

/// Whether two hosts are the same target. By default each is its own.
///
/// ```
/// use semel_core::fingerprint::Hosts;
///
/// let hosts = Hosts::equivalent([["api.example", "api2.example"]])?;
/// # Ok::<(), semel_core::fingerprint::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "HostsText", into = "HostsText")]
pub struct Hosts {
    /// Groups of equivalent hosts, sorted; `None` where the host does not count.
    groups: Option<Vec<Vec<String>>>,
}

/// As a configuration and a store write it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum HostsText {
    Word(HostsWord),
    Groups(Vec<Vec<String>>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HostsWord {
    Any,
}

impl Default for Hosts {
    fn default() -> Self {
        Self {
            groups: Some(Vec::new()),
        }
    }
}

impl Hosts {
    /// The host does not count: the application serves all hosts alike.
    pub const fn any() -> Self {
        Self { groups: None }
    }

    /// The hosts of each group are the same target. A host is a name or an address, with its port
    /// where clients send one.
    ///
    /// # Errors
    /// [`Error::Host`] names what is not a host, is in two groups, or is alone in its group.
    pub fn equivalent<G, H>(groups: impl IntoIterator<Item = G>) -> Result<Self, Error>
    where
        G: IntoIterator<Item = H>,
        H: AsRef<str>,
    {
        let mut known: Vec<String> = Vec::new();
        let mut sorted: Vec<Vec<String>> = Vec::new();
        for group in groups {
            let mut hosts = Vec::new();
            for name in group {
                let host = parse(name.as_ref())?;
                if known.contains(&host) {
                    return Err(refused(name.as_ref(), "it is listed twice"));
                }
                if known.len() == MAX_HOSTS {
                    return Err(refused(name.as_ref(), "there are too many: at most 256"));
                }
                known.push(host.clone());
                hosts.push(host);
            }
            if let [alone] = &hosts[..] {
                return Err(refused(
                    alone,
                    "it is alone in its group; add an equivalent one",
                ));
            }
            hosts.sort_unstable();
            if !hosts.is_empty() {
                sorted.push(hosts);
            }
        }
        sorted.sort_unstable();
        Ok(Self {
            groups: Some(sorted),
        })
    }

    /// The authorities of one request as they are compared; `None` where they do not count. A
    /// request that names several hosts is the same as another only if all are.
    pub fn canonical<'a>(
        &self,
        authorities: impl IntoIterator<Item = Authority<'a>>,
    ) -> Option<Vec<Vec<u8>>> {
        let groups = self.groups.as_ref()?;
        let mut all = Vec::with_capacity(1);
        for Authority { scheme, host } in authorities {
            let host = canonical(host, scheme);
            let is_listed = |group: &&Vec<String>| group.iter().any(|name| name.as_bytes() == host);
            let first = groups
                .iter()
                .find(is_listed)
                .and_then(|group| group.first());
            let host = first.map_or(host, |first| first.as_bytes().to_vec());
            if !all.contains(&host) {
                all.push(host);
            }
        }
        Some(all)
    }
}

/// A host, and perhaps a port, as a client sent it in `Host`, in `:authority` or in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Where it is known: it has a default port.
    pub scheme: Option<&'a str>,
    /// `api.example:8443`
    pub host: &'a [u8],
}

/// In lower case, without a default or empty port, without the root's dot.
fn canonical(authority: &[u8], scheme: Option<&str>) -> Vec<u8> {
    let mut host = authority.to_ascii_lowercase();
    let colon = host.iter().rposition(|byte| *byte == b':');
    let port = colon.and_then(|at| {
        let digits = str::from_utf8(&host[at + 1..]).ok()?;
        let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| (at, digits.parse::<u16>().ok(), digits.is_empty()))
    });
    let mut kept = None;
    if let Some((at, number, is_empty)) = port {
        let default = match scheme {
            Some("http") => Some(80),
            Some("https") => Some(443),
            Some(_) | None => None,
        };
        if is_empty || number.is_some() {
            host.truncate(at);
            kept = number.filter(|_| number != default);
        }
    }
    if host.len() > 1 && host.ends_with(b".") {
        host.pop();
    }
    if let Some(port) = kept {
        host.extend_from_slice(format!(":{port}").as_bytes());
    }
    host
}

fn parse(name: &str) -> Result<String, Error> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if name.is_empty() || name.len() > MAX_HOST_BYTES || !name.bytes().all(is_allowed) {
        let problem =
            "write a host as clients send it, such as \"api.example\" or \"api.example:8443\"";
        return Err(refused(name, problem));
    }
    // ASCII, as checked above.
    Ok(String::from_utf8_lossy(&canonical(name.as_bytes(), None)).into_owned())
}

fn refused(name: &str, problem: &'static str) -> Error {
    Error::Host {
        name: name.to_owned(),
        problem,
    }
}

impl TryFrom<HostsText> for Hosts {
    type Error = Error;

    fn try_from(text: HostsText) -> Result<Self, Error> {
        match text {
            HostsText::Word(HostsWord::Any) => Ok(Self::any()),
            HostsText::Groups(groups) => Self::equivalent(groups),
        }
    }
}

impl From<Hosts> for HostsText {
    fn from(hosts: Hosts) -> Self {
        match hosts.groups {
            None => Self::Word(HostsWord::Any),
            Some(groups) => Self::Groups(groups),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(hosts: &Hosts, scheme: Option<&str>, host: &str) -> Vec<String> {
        let host = host.as_bytes();
        let canonical = hosts.canonical([Authority { scheme, host }]).unwrap();
        let text = |host| String::from_utf8(host).unwrap();
        canonical.into_iter().map(text).collect()
    }

    #[test]
    fn case_default_port_and_root_dot_do_not_count() {
        for (scheme, host, canonical) in [
            (None, "API.example", "api.example"),
            (None, "api.example.", "api.example"),
            (None, "api.example.:8443", "api.example:8443"),
            (None, "api.example:", "api.example"),
            (None, "api.example:443", "api.example:443"),
            (Some("https"), "api.example:443", "api.example"),
            (Some("https"), "api.example:0443", "api.example"),
            (Some("https"), "api.example:80", "api.example:80"),
            (Some("http"), "api.example:80", "api.example"),
            (Some("http"), "[::1]:80", "[::1]"),
            (None, "[::1]", "[::1]"),
            (None, "a:99999", "a:99999"),
            (None, ".", "."),
        ] {
            assert_eq!(
                compared(&Hosts::default(), scheme, host),
                [canonical],
                "{host}"
            );
        }
    }

    #[test]
    fn equivalent_hosts_are_one_and_others_are_not() {
        let hosts = Hosts::equivalent([["b.example", "A.example:8443"]]).unwrap();
        let same = hosts == Hosts::equivalent([["a.example:8443", "b.example."]]).unwrap();
        assert!(same, "neither case nor order matters");
        assert_eq!(compared(&hosts, None, "B.example"), ["a.example:8443"]);
        assert_eq!(compared(&hosts, None, "a.example"), ["a.example"]);
        assert_eq!(compared(&hosts, None, "c.example"), ["c.example"]);
        let both = ["b.example", "c.example", "a.example:8443"].map(|host| Authority {
            scheme: None,
            host: host.as_bytes(),
        });
        assert_eq!(hosts.canonical(both).unwrap().len(), 2);
        assert_eq!(Hosts::any().canonical(both), None);
    }

    #[test]
    fn invalid_groups_are_refused() {
        for (groups, problem) in [
            (vec![vec!["a"]], "alone"),
            (vec![vec!["a", "b"], vec!["c", "A"]], "twice"),
            (vec![vec!["a", "a."]], "twice"),
            (vec![vec!["a", ""]], "write a host"),
            (vec![vec!["a", "http://b"]], "write a host"),
            (vec![vec!["a", "*.b"]], "write a host"),
        ] {
            let error = Hosts::equivalent(&groups).unwrap_err().to_string();
            assert!(error.contains(problem), "{groups:?}: {error}");
        }
        let many = (0..=MAX_HOSTS).map(|number| format!("h{number}"));
        let error = Hosts::equivalent([many]).unwrap_err().to_string();
        assert!(error.contains("too many"), "{error}");
    }

    #[test]
    fn stored_form_is_read_back() {
        let named = Hosts::equivalent([["b", "a"]]).unwrap();
        for (hosts, text) in [
            (Hosts::any(), r#""any""#),
            (Hosts::default(), "[]"),
            (named, r#"[["a","b"]]"#),
        ] {
            assert_eq!(serde_json::to_string(&hosts).unwrap(), text);
            assert_eq!(serde_json::from_str::<Hosts>(text).unwrap(), hosts);
        }
        assert!(serde_json::from_str::<Hosts>(r#"[["a"]]"#).is_err());
    }
}
