//! The variables of a process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

/// Variables by name: those of the process, or a test's own.
#[derive(Clone)]
pub struct Environment(Arc<Lookup>);

type Lookup = dyn Fn(&str) -> Option<OsString> + Send + Sync;

impl Environment {
    /// That of the process.
    pub fn of_process() -> Self {
        Self(Arc::new(|name| std::env::var_os(name)))
    }

    /// These variables, and no others.
    pub fn from_pairs<K: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let pairs: BTreeMap<String, OsString> = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self(Arc::new(move |name| pairs.get(name).cloned()))
    }

    /// # Errors
    /// A message, never with the value, which may be a secret.
    pub(super) fn value(&self, name: &str) -> Result<Option<String>, String> {
        (self.0)(name)
            .map(OsString::into_string)
            .transpose()
            .map_err(|_| format!("the variable {name} is not UTF-8"))
    }
}

/// Without the values: some are secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(…)")
    }
}
