//! `dialect` and `lenient`.

use std::str::FromStr;

use semel_core::key::Dialect;
use toml::Spanned;

use super::table::{self, Table};

/// The name of a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectName {
    /// The IETF draft.
    Ietf,
    /// Stripe's API.
    Stripe,
}

impl FromStr for DialectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        table::choice(text, &[("ietf", Self::Ietf), ("stripe", Self::Stripe)])
    }
}

/// Reads the dialect; a flag or a variable may have chosen another one.
pub(super) fn read(top: &mut Table<'_>, overriding: Option<DialectName>) -> Dialect {
    let in_file = top.parsed("dialect", DialectName::from_str);
    let lenient = top.boolean("lenient");
    let in_file = in_file.map(Spanned::into_inner);
    if let (Some(DialectName::Stripe), Some(lenient)) = (in_file, &lenient) {
        top.problems.at(
            lenient.span(),
            "`lenient` applies to `dialect = \"ietf\"` only: in the Stripe dialect, quotes are part of \
             the key",
        );
    }
    match overriding.or(in_file) {
        Some(DialectName::Stripe) => Dialect::Stripe,
        Some(DialectName::Ietf) | None => Dialect::Ietf {
            lenient: lenient.is_none_or(Spanned::into_inner),
        },
    }
}
