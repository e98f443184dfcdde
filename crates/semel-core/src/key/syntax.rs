//! How a header value becomes a key.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;

use sfv::visitor::Ignored;
use sfv::{BareItemFromInput, GenericBareItem, Parser};

use super::{Error, MAX_LENGTH};

/// The fewest characters of a [`Format::Token`]: 16 of them have 96 bits, if they are random.
const TOKEN_LENGTH: usize = 16;

/// Whose rules the header follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// The IETF draft: a String of RFC 9651; parameters are ignored.
    Ietf {
        /// Whether the key is also taken without quotes, as the same key.
        lenient: bool,
    },
    /// Stripe's: the value is the key, quotes included.
    Stripe,
}

/// What a key has to look like on a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Any key that the dialect accepts.
    #[default]
    Any,
    /// A UUID in its usual form of 36 characters.
    Uuid,
    /// At least 16 characters of `A-Za-z0-9._~-`, not all of them digits.
    Token,
}

impl Format {
    pub(super) fn accepts(self, key: &str) -> bool {
        match self {
            Self::Any => true,
            // `uuid` also reads other forms, which are shorter or longer.
            Self::Uuid => key.len() == 36 && uuid::Uuid::try_parse(key).is_ok(),
            Self::Token => {
                let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
                key.len() >= TOKEN_LENGTH
                    && key.bytes().all(is_token)
                    && !key.bytes().all(|byte| byte.is_ascii_digit())
            }
        }
    }
}

/// As a message names it.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "a key",
            Self::Uuid => {
                "a UUID; this operation takes only UUIDs, such as \
                 8e03978e-40d5-43dd-bc93-6894a57f9324"
            }
            Self::Token => {
                "a token; this operation takes keys of 16 or more letters, digits, `.`, `_`, `~` \
                 and `-` that are not all digits, such as a UUID"
            }
        })
    }
}

/// How keys are read on a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syntax {
    dialect: Dialect,
    min_length: usize,
    format: Format,
}

impl Syntax {
    pub(super) const MIN_LENGTH: usize = 1;

    /// Any length up to [`MAX_LENGTH`].
    pub const fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            min_length: Self::MIN_LENGTH,
            format: Format::Any,
        }
    }

    /// Refuses keys of another format.
    pub const fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    /// Refuses keys that are too short to be random.
    ///
    /// # Errors
    /// [`Error::MinLength`] if no key could have that length.
    pub const fn with_min_length(self, min_length: usize) -> Result<Self, Error> {
        if min_length < Self::MIN_LENGTH || min_length > MAX_LENGTH {
            return Err(Error::MinLength { min_length });
        }
        Ok(Self { min_length, ..self })
    }

    /// Whose rules apply.
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The fewest characters of a key.
    pub const fn min_length(&self) -> usize {
        self.min_length
    }

    /// The format of a key.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Reads a trimmed value of printable ASCII.
    pub(super) fn read<'a>(&self, value: &'a [u8]) -> Result<Cow<'a, str>, Error> {
        match self.dialect {
            Dialect::Ietf { .. } if value.is_empty() => Err(Error::Empty),
            Dialect::Ietf { lenient: true } if value[0] != b'"' => unquoted(value),
            Dialect::Ietf { .. } => quoted(value),
            Dialect::Stripe if value.contains(&b',') => Err(Error::Comma),
            Dialect::Stripe => Ok(String::from_utf8_lossy(value)),
        }
    }
}

impl Default for Syntax {
    /// The IETF draft, lenient.
    fn default() -> Self {
        Self::new(Dialect::Ietf { lenient: true })
    }
}

/// RFC 9651, to the letter.
fn quoted(value: &[u8]) -> Result<Cow<'_, str>, Error> {
    let mut item = Err("not an item of RFC 9651");
    let parsed = Parser::new(value).parse_item_with_visitor(|bare: BareItemFromInput<'_>| {
        item = string(bare);
        Ok::<_, Infallible>(Ignored)
    });
    match (parsed, item) {
        (Ok(()), Ok(key)) => Ok(Cow::Owned(key)),
        (Ok(()), Err(found)) => Err(Error::NotAString { found }),
        (Err(problem), _) if value.starts_with(b"\"") => Err(Error::Malformed {
            problem: problem.to_string(),
        }),
        (Err(_), _) => Err(Error::NotAString {
            found: "not a quoted string",
        }),
    }
}

fn string(bare: BareItemFromInput<'_>) -> Result<String, &'static str> {
    match bare {
        GenericBareItem::String(text) => Ok(text.as_str().to_owned()),
        GenericBareItem::Decimal(_) => Err("a Decimal of RFC 9651"),
        GenericBareItem::Integer(_) => Err("an Integer of RFC 9651"),
        GenericBareItem::ByteSequence(_) => Err("a Byte Sequence of RFC 9651"),
        GenericBareItem::Boolean(_) => Err("a Boolean of RFC 9651"),
        GenericBareItem::Token(_) => Err("a Token of RFC 9651"),
        GenericBareItem::Date(_) => Err("a Date of RFC 9651"),
        GenericBareItem::DisplayString(_) => Err("a Display String of RFC 9651"),
    }
}

/// Ours: the value is the key, if quotes around it would make the same key.
fn unquoted(value: &[u8]) -> Result<Cow<'_, str>, Error> {
    let other_type = |position: usize, byte: u8| position == 0 && b":?@%(".contains(&byte);
    let ambiguous = |byte: u8| b" \"\\,;".contains(&byte);
    let refused = value
        .iter()
        .enumerate()
        .find(|&(position, &byte)| ambiguous(byte) || other_type(position, byte));
    match refused {
        Some((position, &byte)) => Err(Error::NeedsQuotes {
            found: byte.into(),
            position,
        }),
        None => Ok(String::from_utf8_lossy(value)),
    }
}
