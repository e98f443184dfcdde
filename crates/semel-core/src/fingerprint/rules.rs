//! The fingerprint options of a route.

mod stored;

use serde::{Deserialize, Serialize};

use super::media::is_token;
use super::timestamp::{self, Precision};
use super::{Error, Hosts, Pointer};
use crate::canonical::{self, Child, Numbers, Tree, number};

pub use stored::RulesId;

/// The most options of one route: each is looked up in every body.
pub const MAX_RULES: usize = 64;

/// The longest JSON text of a default.
pub const MAX_DEFAULT: usize = 64 * 1024;

/// The options of a route as they are written in the configuration. A store keeps them as JSON,
/// for processes with another configuration.
///
/// ```
/// use semel_core::fingerprint::{Options, Rules};
///
/// let rules = Rules::new(&Options {
///     headers: vec!["API-Version".into()],
///     ignore: vec!["/metadata/trace_id".into()],
///     defaults: vec![("/channel".into(), r#""web""#.into())],
///     decimals: vec!["/amount".into()],
///     ..Options::default()
/// })?;
/// # Ok::<(), semel_core::fingerprint::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Names of headers that are part of what the client means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// JSON Pointers to what does not matter. A member or array element that is there is the
    /// same as one that is not; indexes count the elements as they were sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
    /// JSON Pointers, and the JSON text of what an absent member means. It is put in where the
    /// object around it exists; `null` is not absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<(String, String)>,
    /// JSON Pointers to decimal numbers. Of strings, `"10.0"` and `"10.00"` are equal; of
    /// numbers, also those that a double cannot hold are compared, exactly. A string never
    /// equals a number. Exponents in strings, leading zeros, `+` and `-0` are no decimals and
    /// stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decimals: Vec<String>,
    /// JSON Pointers to all that matters: everything else in the body is left out. What stands on
    /// the way to such a value still counts. Empty: the whole body matters. Excludes `ignore`, and
    /// every other pointer has to lead into one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// JSON Pointers to strings in which the case of ASCII letters does not matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enums: Vec<String>,
    /// JSON Pointers to RFC 3339 timestamps, and how much of each counts. They are compared as
    /// instants; a string that is not a timestamp stays as it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timestamps: Vec<(String, Precision)>,
}

/// Validated [`Options`]; the default has none. A change of them changes the fingerprints of
/// requests that they touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    id: RulesId,
    headers: Vec<String>,
    ignore: Vec<Pointer>,
    defaults: Vec<Fallback>,
    values: Vec<(Pointer, ValueRule)>,
    fields: Vec<Pointer>,
    /// `None`: the path counts as it was sent, and the authority does not.
    hosts: Option<Hosts>,
    /// Whether the body is compared as a validated command.
    is_command: bool,
}

/// How the value at a pointer is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueRule {
    Decimal,
    Enum,
    Timestamp(Precision),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fallback {
    pointer: Pointer,
    canonical: Vec<u8>,
}

impl Rules {
    /// Validates the options.
    ///
    /// # Errors
    /// [`Error`] names the option, what is wrong with it, and the way out.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let Options {
            headers,
            ignore,
            defaults,
            decimals,
            fields,
            enums,
            timestamps,
        } = options;
        let pointers = ignore.len() + decimals.len() + fields.len() + enums.len();
        if headers.len() + defaults.len() + timestamps.len() + pointers > MAX_RULES {
            return Err(Error::TooLarge);
        }
        let decimals = decimals.iter().map(|text| (text, ValueRule::Decimal));
        let enums = enums.iter().map(|text| (text, ValueRule::Enum));
        let timestamps = timestamps
            .iter()
            .map(|(text, precision)| (text, ValueRule::Timestamp(*precision)));
        let values: Vec<(Pointer, ValueRule)> = decimals
            .chain(enums)
            .chain(timestamps)
            .map(|(text, rule)| Ok((text.parse()?, rule)))
            .collect::<Result<_, Error>>()?;
        let ignore = inner_pointers(ignore)?;
        let fields = inner_pointers(fields)?;
        let mut defaults = defaults
            .iter()
            .map(|(text, json)| Fallback::new(inner(text)?, json, &values))
            .collect::<Result<Vec<_>, _>>()?;
        // Object by object: see `Tree::insert`.
        defaults.sort_by(|a, b| a.pointer.tokens().cmp(b.pointer.tokens()));
        let mut rules = Self {
            id: RulesId::DEFAULT,
            headers: header_names(headers)?,
            ignore,
            defaults,
            values,
            fields,
            hosts: None,
            is_command: false,
        };
        rules.check_overlaps()?;
        rules.check_fields()?;
        if rules != Self::default() {
            rules.id = RulesId::of(&rules.to_text());
        }
        Ok(rules)
    }

    /// Names of the semantic headers, lowercased and sorted: the caller puts the lines of each
    /// into the [`super::Request`].
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// Changes a parsed body so that what is meant to be equal is.
    pub(super) fn apply(&self, tree: &mut Tree<'_>) {
        if !self.fields.is_empty() {
            let fields: Vec<_> = self.fields.iter().map(Pointer::tokens).collect();
            tree.keep_only(&fields);
        }
        // Looked up before anything is removed: an index counts the elements as sent.
        let ignored: Vec<usize> = self
            .ignore
            .iter()
            .filter_map(|pointer| tree.find(pointer.tokens()))
            .collect();
        for node in ignored {
            tree.remove(node);
        }
        let values = self.values.iter();
        normalize(
            tree,
            values.map(|(pointer, rule)| (pointer.tokens(), *rule)),
        );
        for Fallback { pointer, canonical } in &self.defaults {
            if let Some((name, parent)) = pointer.tokens().split_last()
                && let Some(object) = tree.find(parent)
                && tree.is_object(object)
            {
                tree.insert(object, name, canonical);
            }
        }
    }

    /// Overlapping rules would depend on their order.
    fn check_overlaps(&self) -> Result<(), Error> {
        let defaults = self.defaults.iter().map(|default| &default.pointer);
        let shaping: Vec<&Pointer> = self.ignore.iter().chain(defaults).collect();
        let fields: Vec<&Pointer> = self.fields.iter().collect();
        for group in [shaping, fields] {
            let overlaps = |one: &Pointer, other: &Pointer| one.covers(other) || other.covers(one);
            for (at, one) in group.iter().enumerate() {
                if let Some(other) = group[..at].iter().find(|other| overlaps(one, other)) {
                    return Err(overlap(one, other));
                }
            }
        }
        // One inside of another is no contradiction: each is about a value of its own.
        for (at, (one, rule)) in self.values.iter().enumerate() {
            let mut before = self.values[..at].iter();
            if before.any(|(other, ruled)| one == other && rule != ruled) {
                return Err(overlap(one, one));
            }
        }
        Ok(())
    }

    /// With an allow-list, a rule about anything else has no effect.
    fn check_fields(&self) -> Result<(), Error> {
        if self.fields.is_empty() {
            return Ok(());
        }
        if let Some(ignored) = self.ignore.first() {
            return Err(Error::FieldsAndIgnore {
                pointer: ignored.to_string(),
            });
        }
        let values = self.values.iter().map(|(pointer, _)| pointer);
        let defaults = self.defaults.iter().map(|default| &default.pointer);
        let outside = values
            .chain(defaults)
            .find(|pointer| !self.fields.iter().any(|field| field.covers(pointer)));
        match outside {
            Some(pointer) => Err(Error::OutsideFields {
                pointer: pointer.to_string(),
            }),
            None => Ok(()),
        }
    }
}

fn overlap(one: &Pointer, other: &Pointer) -> Error {
    Error::Overlap {
        one: one.to_string(),
        other: other.to_string(),
    }
}

impl Fallback {
    /// The value gets the rules of the route that point into it.
    fn new(pointer: Pointer, json: &str, rules: &[(Pointer, ValueRule)]) -> Result<Self, Error> {
        if json.len() > MAX_DEFAULT {
            return Err(Error::TooLarge);
        }
        let depth = pointer.tokens().len();
        let inside = rules.iter().filter(|(at, _)| pointer.covers(at));
        let mut canonical = Vec::new();
        let written = canonical::parse(json.as_bytes()).and_then(|mut tree| {
            normalize(
                &mut tree,
                inside.map(|(at, rule)| (&at.tokens()[depth..], *rule)),
            );
            canonical::write(&tree, Numbers::Exact, &mut canonical)
        });
        match written {
            Ok(()) => Ok(Self { pointer, canonical }),
            Err(reason) => Err(Error::Default {
                pointer: pointer.to_string(),
                reason,
            }),
        }
    }
}

fn normalize<'p>(tree: &mut Tree<'_>, rules: impl Iterator<Item = (&'p [Box<str>], ValueRule)>) {
    for (tokens, rule) in rules {
        if let Some(node) = tree.find(tokens)
            && let Some(canonical) = rule.normalized(tree.look(node))
        {
            tree.replace(node, &canonical);
        }
    }
}

impl ValueRule {
    /// The bytes to compare; nothing where the rule does not apply and the value stays as it is.
    fn normalized(self, value: Child<'_>) -> Option<Vec<u8>> {
        let mut canonical = Vec::new();
        match (self, value) {
            (Self::Decimal, Child::Text(text)) => {
                canonical::write_string(number::plain_decimal(text)?, &mut canonical);
            }
            (Self::Decimal, Child::Number(lexeme)) => {
                number::write_exact(lexeme, &mut canonical).ok()?;
            }
            (Self::Enum, Child::Text(text)) => {
                canonical::write_string(&text.to_ascii_lowercase(), &mut canonical);
            }
            (Self::Timestamp(precision), Child::Text(text)) => {
                // Not JSON, so that no other value is written the same.
                let units = timestamp::parse(text, precision)?;
                canonical.extend_from_slice(format!("@{units}").as_bytes());
            }
            (Self::Enum | Self::Timestamp(_), Child::Number(_)) | (_, Child::Other) => return None,
        }
        Some(canonical)
    }
}

fn inner_pointers(texts: &[String]) -> Result<Vec<Pointer>, Error> {
    texts.iter().map(|text| inner(text)).collect()
}

/// A pointer to something inside the body.
fn inner(text: &str) -> Result<Pointer, Error> {
    let pointer: Pointer = text.parse()?;
    if pointer.tokens().is_empty() {
        let problem = "it points at the whole body; point at a member";
        return Err(Error::Pointer {
            pointer: text.to_owned(),
            problem,
        });
    }
    Ok(pointer)
}

fn header_names(names: &[String]) -> Result<Vec<String>, Error> {
    let mut lowered: Vec<String> = names
        .iter()
        .map(|name| header_name(name))
        .collect::<Result<_, _>>()?;
    lowered.sort_unstable();
    lowered.dedup();
    Ok(lowered)
}

fn header_name(name: &str) -> Result<String, Error> {
    let refused = |problem| {
        Err(Error::Header {
            name: name.to_owned(),
            problem,
        })
    };
    let lowered = name.to_ascii_lowercase();
    if !is_token(name.as_bytes()) {
        return refused("not a header name");
    }
    if is_credential(&lowered) {
        return refused("a credential may change between attempts; leave it out");
    }
    Ok(lowered)
}

/// Never part of a fingerprint, whatever the options: a refreshed token would make a retry misuse.
pub(super) fn is_credential(lowered: &str) -> bool {
    matches!(lowered, "authorization" | "proxy-authorization" | "cookie")
}
