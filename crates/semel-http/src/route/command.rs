//! The command of a request: parsed and validated before anything is reserved, and compared by
//! what the application understood.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "axum")]
use std::sync::PoisonError;
use std::sync::{Arc, Mutex};

use semel_core::Fingerprint;
use semel_core::fingerprint::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Error, Route};

/// Parses the body of a request, and takes the fingerprint of what it means. An error is a message
/// for the client.
#[derive(Clone)]
pub(crate) struct CommandParser(Arc<Parse>);

type Parse =
    dyn Fn(&CommandSource<'_>) -> Result<(Fingerprint, ParsedCommand), String> + Send + Sync;

/// What a command is read from.
pub(crate) struct CommandSource<'a> {
    pub(crate) operation: &'a str,
    pub(crate) target: Target<'a>,
    /// Content codings undone.
    pub(crate) body: &'a [u8],
}

/// What counts besides the body: the same command for another resource is another command.
#[derive(Clone, Serialize)]
pub(crate) struct Target<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: Cow<'a, str>,
    pub(crate) query: Option<&'a str>,
    /// `None` where it does not count. Left out then, as the first versions did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) authority: Option<Vec<Vec<u8>>>,
    /// The lines of the semantic headers, in order.
    pub(crate) headers: Vec<(&'a str, &'a [u8])>,
}

/// All that a fingerprint is taken of.
#[derive(Serialize)]
struct Understood<'a, T> {
    target: Target<'a>,
    command: &'a T,
}

/// The command in the extensions of a request, which have to be `Clone`.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "axum"),
    expect(dead_code, reason = "the extractor is axum's")
)]
pub(crate) struct ParsedCommand(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl Route {
    /// Parses the JSON body into a `T` before the key is reserved, and compares requests by it
    /// instead of by their bytes: two bodies that are the same command replay, whatever their
    /// formatting, unknown members or absent defaults. Method, path, query and the semantic headers
    /// still count; `fingerprint` options about the body do not.
    ///
    /// A body that is not a `T` gets 400 `request_invalid`, and nothing is reserved. With axum the
    /// handler takes the parsed command as `Command<T>`.
    ///
    /// A field that `T` does not serialise does not count. Renaming a field, or adding one that is
    /// always written, makes retries across that deploy misuse; see [`Fingerprint::of`].
    pub fn command<T>(self) -> Self
    where
        T: DeserializeOwned + Serialize + Send + 'static,
    {
        self.command_with(|_: &T| Ok::<_, String>(()))
    }

    /// As [`command`](Route::command), with a validation. Its error is the `detail` of the 400.
    ///
    /// The validation must depend on the command alone. One that asks the clock or a database would
    /// refuse a retry of what was executed.
    pub fn command_with<T, E>(
        mut self,
        validate: impl Fn(&T) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self
    where
        T: DeserializeOwned + Serialize + Send + 'static,
        E: fmt::Display,
    {
        let parse = move |source: &CommandSource<'_>| {
            let command: T =
                serde_json::from_slice(source.body).map_err(|error| error.to_string())?;
            validate(&command).map_err(|error| error.to_string())?;
            let understood = Understood {
                target: source.target.clone(),
                command: &command,
            };
            let fingerprint = Fingerprint::of_operation(source.operation, &understood)
                .map_err(|error| error.to_string())?;
            Ok((fingerprint, ParsedCommand::new(command)))
        };
        self.command = Some(CommandParser(Arc::new(parse)));
        self
    }
}

/// Options about the body would have no effect beside a command.
pub(super) fn check(route: &Route) -> Result<(), Error> {
    let headers_only = Options {
        headers: route.fingerprint.headers.clone(),
        ..Options::default()
    };
    if route.command.is_some() && route.fingerprint != headers_only {
        return Err(Error::Settings(
            "a command is compared as a whole: of the `fingerprint` options only `headers` has an effect beside it",
        ));
    }
    Ok(())
}

impl CommandParser {
    pub(crate) fn parse(
        &self,
        source: &CommandSource<'_>,
    ) -> Result<(Fingerprint, ParsedCommand), String> {
        (self.0)(source)
    }
}

impl ParsedCommand {
    fn new<T: Send + 'static>(command: T) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(command)))))
    }

    /// The command, once; `None` where it is of another type.
    #[cfg(feature = "axum")]
    pub(crate) fn take<T: 'static>(&self) -> Option<T> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.as_ref().is_some_and(|command| command.is::<T>()) {
            return None;
        }
        slot.take()?.downcast().ok().map(|command| *command)
    }
}

impl fmt::Debug for CommandParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandParser")
    }
}
