//! Environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

/// Variables by name: those of the process, or those of a test.
#[derive(Clone)]
pub struct Environment(Arc<Lookup>);

type Lookup = dyn Fn(&str) -> Option<OsString> + Send + Sync;

impl Environment {
    /// The environment of the process.
    pub fn of_process() -> Self {
        Self(Arc::new(|name| std::env::var_os(name)))
    }

    /// These variables only.
    pub fn from_pairs<K: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let pairs: BTreeMap<String, OsString> = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self(Arc::new(move |name| pairs.get(name).cloned()))
    }

    /// The value of a variable, if it is set.
    ///
    /// # Errors
    /// A message without the value, which may be a secret.
    pub(super) fn value(&self, name: &str) -> Result<Option<String>, String> {
        (self.0)(name)
            .map(OsString::into_string)
            .transpose()
            .map_err(|_| format!("environment variable {name} is not UTF-8"))
    }

    /// The value of a variable that must be set.
    ///
    /// # Errors
    /// As [`Self::value`], and if the variable is not set.
    pub(super) fn require(&self, name: &str) -> Result<String, String> {
        self.value(name)?
            .ok_or_else(|| format!("environment variable {name} is not set"))
    }
}

/// Without the values: some are secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(…)")
    }
}
