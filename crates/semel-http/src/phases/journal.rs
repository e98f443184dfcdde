//! The journal of an operation made of phases: its request, and the result of each phase that is
//! over.

use semel_core::RecoveryPoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The version of the format. A journal of another version is not read.
const FORM: u32 = 1;

/// Most bytes of a journal: it is read and written as a whole.
pub const MAX_RECOVERY_BYTES: usize = 256 << 10;

/// Most phases of an operation.
pub const MAX_PHASES: usize = 64;

/// The name of the point before the first phase is over.
const BEGUN: &str = "begun";

/// The journal, in the order of the phases. Values stay as they were written: a number that is
/// parsed and written again may change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    form: u32,
    request: Box<RawValue>,
    phases: Vec<Phase>,
    /// A call that may have been made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) started: Option<Started>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Phase {
    name: Box<str>,
    found: Box<RawValue>,
}

/// A call that an attempt was about to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) phase: Box<str>,
    pub(super) attempt: u32,
}

/// Why a journal cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the journal has version {0}, and this program reads version {FORM}")]
    Form(u32),
    #[error("the journal of an operation has at most {MAX_RECOVERY_BYTES} bytes")]
    TooLarge,
    #[error("an operation has at most {MAX_PHASES} phases")]
    TooMany,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Journal {
    pub(super) fn new(request: &impl Serialize) -> Result<Self, Error> {
        Ok(Self {
            form: FORM,
            request: to_raw_value(request)?,
            phases: Vec::new(),
            started: None,
        })
    }

    pub(super) fn read(point: &RecoveryPoint) -> Result<Self, Error> {
        let journal: Self = serde_json::from_slice(&point.data)?;
        match journal.form {
            FORM => Ok(journal),
            other => Err(Error::Form(other)),
        }
    }

    /// The request.
    pub(super) fn request<T: DeserializeOwned>(&self) -> Result<T, Error> {
        Ok(serde_json::from_str(self.request.get())?)
    }

    /// The name of the phase at that position, if it is over.
    pub(super) fn name(&self, position: usize) -> Option<&str> {
        self.phases.get(position).map(|phase| &*phase.name)
    }

    /// The result of the phase at that position.
    pub(super) fn found<T: DeserializeOwned>(&self, position: usize) -> Option<Result<T, Error>> {
        let phase = self.phases.get(position)?;
        Some(serde_json::from_str(phase.found.get()).map_err(Error::Json))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.phases.iter().any(|phase| *phase.name == *name)
    }

    pub(super) fn len(&self) -> usize {
        self.phases.len()
    }

    /// The journal with one more phase that is over.
    pub(super) fn with(mut self, name: &str, found: &impl Serialize) -> Result<Self, Error> {
        if self.phases.len() == MAX_PHASES {
            return Err(Error::TooMany);
        }
        self.phases.push(Phase {
            name: name.into(),
            found: to_raw_value(found)?,
        });
        self.started = None;
        Ok(self)
    }

    /// The journal of an attempt that is about to make a call.
    pub(super) fn starting(mut self, phase: &str, attempt: u32) -> Self {
        self.started = Some(Started {
            phase: phase.into(),
            attempt,
        });
        self
    }

    /// The journal of an attempt that did not make its call.
    pub(super) fn not_starting(mut self) -> Self {
        self.started = None;
        self
    }

    /// The journal as a recovery point.
    pub(super) fn point(&self) -> Result<RecoveryPoint, Error> {
        let data = serde_json::to_vec(self)?;
        if data.len() > MAX_RECOVERY_BYTES {
            return Err(Error::TooLarge);
        }
        let last = self.phases.last().map_or(BEGUN, |phase| &phase.name);
        Ok(RecoveryPoint {
            name: last.into(),
            data: data.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let journal = Journal::new(&serde_json::json!({"amount": 9_007_199_254_740_993_u64}))
            .unwrap()
            .with("opened", &"pay_1")
            .unwrap()
            .with("charged", &Some(0.1_f64))
            .unwrap();
        let point = journal.point().unwrap();
        assert_eq!(&*point.name, "charged");
        let read = Journal::read(&point).unwrap();
        assert_eq!(
            read.request::<serde_json::Value>().unwrap()["amount"],
            9_007_199_254_740_993_u64
        );
        assert_eq!(read.name(0), Some("opened"));
        assert_eq!(read.found::<String>(0).unwrap().unwrap(), "pay_1");
        assert_eq!(read.found::<Option<f64>>(1).unwrap().unwrap(), Some(0.1));
        assert!(read.found::<()>(2).is_none());
    }

    #[test]
    fn another_version_is_an_error() {
        let point = RecoveryPoint {
            name: "x".into(),
            data: r#"{"form":2,"request":null,"phases":[]}"#.into(),
        };
        assert!(matches!(Journal::read(&point), Err(Error::Form(2))));
    }

    #[test]
    fn too_many_bytes_or_phases_are_refused() {
        let journal = Journal::new(&()).unwrap();
        let large = journal.clone().with("a", &"x".repeat(MAX_RECOVERY_BYTES));
        assert!(matches!(large.unwrap().point(), Err(Error::TooLarge)));
        let full = (0..MAX_PHASES).fold(journal, |journal, n| {
            journal.with(&n.to_string(), &()).unwrap()
        });
        assert!(matches!(full.with("one", &()), Err(Error::TooMany)));
    }
}
