//! The address of a table: `dynamodb://TABLE?region=eu-west-1`.

use std::str::FromStr;

use crate::Error;
use crate::keys::MAX_SHARDS;

/// Where a table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) table: Box<str>,
    /// `None`: as the environment or the profile of the SDK says.
    pub(crate) region: Option<Box<str>>,
    /// Another server than AWS, for tests.
    pub(crate) endpoint: Option<Box<str>>,
    /// How many shards the indexes of a new table get.
    pub(crate) shards: u8,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |problem: String| {
            let advice = "write \"dynamodb://TABLE?region=eu-west-1\"";
            Error::Address(format!("{problem}; {advice}").into())
        };
        let rest = text
            .strip_prefix("dynamodb://")
            .ok_or_else(|| invalid(format!("{text:?} does not begin with \"dynamodb://\"")))?;
        let (table, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let table = table.strip_suffix('/').unwrap_or(table);
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if !(3..=255).contains(&table.len()) || !table.chars().all(is_name) {
            return Err(invalid(format!("{table:?} is not the name of a table")));
        }
        let mut address = Self {
            table: table.into(),
            region: None,
            endpoint: None,
            shards: MAX_SHARDS,
        };
        for parameter in parameters
            .split('&')
            .filter(|parameter| !parameter.is_empty())
        {
            match parameter.split_once('=') {
                Some(("region", region)) if !region.is_empty() => {
                    address.region = Some(region.into());
                }
                Some(("endpoint", endpoint)) if endpoint.starts_with("http") => {
                    address.endpoint = Some(endpoint.into());
                }
                Some(("shards", shards)) => {
                    let shards = shards.parse().ok();
                    let shards = shards.filter(|shards| (1..=MAX_SHARDS).contains(shards));
                    address.shards = shards
                        .ok_or_else(|| invalid(format!("shards are from 1 to {MAX_SHARDS}")))?;
                }
                _ => return Err(invalid(format!("{parameter:?} is not a parameter"))),
            }
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_table_and_parameters() {
        let parsed: Address =
            "dynamodb://semel?region=eu-west-1&endpoint=http://127.0.0.1:8000/&shards=4"
                .parse()
                .unwrap();
        assert_eq!(parsed.table.as_ref(), "semel");
        assert_eq!(parsed.region.as_deref(), Some("eu-west-1"));
        assert_eq!(parsed.endpoint.as_deref(), Some("http://127.0.0.1:8000/"));
        assert_eq!(parsed.shards, 4);
        assert_eq!("dynamodb://semel".parse::<Address>().unwrap().shards, 64);
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_problem() {
        for (text, problem) in [
            ("dynamodb:semel", "does not begin"),
            ("dynamodb://a", "name of a table"),
            ("dynamodb://a b c", "name of a table"),
            ("dynamodb://semel?regio=x", "not a parameter"),
            ("dynamodb://semel?region=", "not a parameter"),
            ("dynamodb://semel?endpoint=ftp://h", "not a parameter"),
            ("dynamodb://semel?shards=0", "from 1 to 64"),
            ("dynamodb://semel?shards=65", "from 1 to 64"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
