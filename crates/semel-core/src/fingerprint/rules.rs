//! The fingerprint options of a route.

use super::media::is_token;
use super::{Error, Pointer};
use crate::canonical::{self, Child, Numbers, Tree, number};

/// The most options of one route: each is looked up in every body.
pub const MAX_RULES: usize = 64;

/// The longest JSON text of a default.
pub const MAX_DEFAULT: usize = 64 * 1024;

/// The options of a route as they are written in the configuration.
///
/// ```
/// use semel_core::fingerprint::{Options, Rules};
///
/// let rules = Rules::new(&Options {
///     headers: vec!["API-Version".into()],
///     ignore: vec!["/metadata/trace_id".into()],
///     defaults: vec![("/channel".into(), r#""web""#.into())],
///     decimals: vec!["/amount".into()],
/// })?;
/// # Ok::<(), semel_core::fingerprint::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Names of headers that are part of what the client means.
    pub headers: Vec<String>,
    /// JSON Pointers to what does not matter. A member or array element that is there is the
    /// same as one that is not; indexes count the elements as they were sent.
    pub ignore: Vec<String>,
    /// JSON Pointers, and the JSON text of what an absent member means. It is put in where the
    /// object around it exists; `null` is not absent.
    pub defaults: Vec<(String, String)>,
    /// JSON Pointers to decimal numbers. Of strings, `"10.0"` and `"10.00"` are equal; of
    /// numbers, also those that a double cannot hold are compared, exactly. A string never
    /// equals a number. Exponents in strings, leading zeros, `+` and `-0` are no decimals and
    /// stay as they are.
    pub decimals: Vec<String>,
}

/// Validated [`Options`]; the default has none. A change of them changes the fingerprints of
/// requests that they touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    headers: Vec<String>,
    ignore: Vec<Pointer>,
    defaults: Vec<Fallback>,
    decimals: Vec<Pointer>,
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
        } = options;
        if headers.len() + ignore.len() + defaults.len() + decimals.len() > MAX_RULES {
            return Err(Error::TooLarge);
        }
        let decimals: Vec<Pointer> = decimals
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?;
        let ignore: Vec<Pointer> = ignore
            .iter()
            .map(|text| inner(text))
            .collect::<Result<_, _>>()?;
        let mut defaults = defaults
            .iter()
            .map(|(text, json)| Fallback::new(inner(text)?, json, &decimals))
            .collect::<Result<Vec<_>, _>>()?;
        // Object by object: see `Tree::insert`.
        defaults.sort_by(|a, b| a.pointer.tokens().cmp(b.pointer.tokens()));
        let rules = Self {
            headers: header_names(headers)?,
            ignore,
            defaults,
            decimals,
        };
        rules.disjoint()?;
        Ok(rules)
    }

    /// Names of the semantic headers, lowercased and sorted: the caller puts the lines of each
    /// into the [`super::Request`].
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// Changes a parsed body so that what is meant to be equal is.
    pub(super) fn apply(&self, tree: &mut Tree<'_>) {
        // Looked up before anything is removed: an index counts the elements as sent.
        let ignored: Vec<usize> = self
            .ignore
            .iter()
            .filter_map(|pointer| tree.find(pointer.tokens()))
            .collect();
        for node in ignored {
            tree.remove(node);
        }
        decimals(tree, self.decimals.iter().map(Pointer::tokens));
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
    fn disjoint(&self) -> Result<(), Error> {
        let defaults = || self.defaults.iter().map(|default| &default.pointer);
        let shaping: Vec<&Pointer> = self.ignore.iter().chain(defaults()).collect();
        for (at, one) in shaping.iter().enumerate() {
            let overlap = shaping[..at]
                .iter()
                .find(|other| one.covers(other) || other.covers(one));
            if let Some(other) = overlap {
                return Err(Error::Overlap {
                    one: one.to_string(),
                    other: other.to_string(),
                });
            }
        }
        Ok(())
    }
}

impl Fallback {
    /// The value gets the decimal rules of the route that point into it.
    fn new(pointer: Pointer, json: &str, rules: &[Pointer]) -> Result<Self, Error> {
        if json.len() > MAX_DEFAULT {
            return Err(Error::TooLarge);
        }
        let depth = pointer.tokens().len();
        let inside = rules.iter().filter(|rule| pointer.covers(rule));
        let mut canonical = Vec::new();
        let written = canonical::parse(json.as_bytes()).and_then(|mut tree| {
            decimals(&mut tree, inside.map(|rule| &rule.tokens()[depth..]));
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

fn decimals<'p>(tree: &mut Tree<'_>, pointers: impl Iterator<Item = &'p [Box<str>]>) {
    for tokens in pointers {
        if let Some(node) = tree.find(tokens)
            && let Some(canonical) = decimal(tree.look(node))
        {
            tree.replace(node, &canonical);
        }
    }
}

/// The canonical bytes of a decimal; nothing where it is not one and stays as it is.
fn decimal(value: Child<'_>) -> Option<Vec<u8>> {
    let mut canonical = Vec::new();
    match value {
        Child::Text(text) => canonical::write_string(number::plain_decimal(text)?, &mut canonical),
        Child::Number(lexeme) => number::write_exact(lexeme, &mut canonical).ok()?,
        Child::Other => return None,
    }
    Some(canonical)
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
