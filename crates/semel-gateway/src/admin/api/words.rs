//! Words of the API, as types and as schemas.

use semel_core::Status;
use semel_core::history::MAX_REASON;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{
    AnyOfBuilder, Array, ArrayBuilder, ArrayItems, Object, ObjectBuilder, SchemaType, Type,
};
use utoipa::openapi::{Components, Ref, RefOr, Schema};

use crate::admin::access::MAX_NAME;

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Status)]
pub(in crate::admin) enum StatusWord {
    InProgress,
    Completed,
    FailedRetryable,
    Unknown,
    Expired,
}

impl From<Status> for StatusWord {
    fn from(status: Status) -> Self {
        match status {
            Status::InProgress => Self::InProgress,
            Status::Completed => Self::Completed,
            Status::FailedRetryable => Self::FailedRetryable,
            Status::Unknown => Self::Unknown,
            Status::Expired => Self::Expired,
        }
    }
}

fn one_of(words: &[&str]) -> Object {
    let object = ObjectBuilder::new().schema_type(Type::String);
    object.enum_values(Some(words.iter().copied())).build()
}

/// A filter that is empty is none: forms send all their fields.
pub(super) fn status_or_none() -> Object {
    one_of(&[
        "",
        "in_progress",
        "completed",
        "failed_retryable",
        "unknown",
        "expired",
    ])
}

pub(super) fn boolean_or_none() -> Object {
    one_of(&["", "true", "false"])
}

pub(super) fn boolean() -> Object {
    one_of(&["true", "false"])
}

fn text(pattern: &str) -> ObjectBuilder {
    let object = ObjectBuilder::new().schema_type(Type::String);
    object.pattern(Some(pattern))
}

/// From 1 to 1000.
pub(super) fn limit_or_none() -> Object {
    text("^(|[1-9][0-9]{0,2}|1000)$").build()
}

/// Minutes from 1 to 60, or none.
pub(super) fn minutes_or_none() -> Object {
    text("^(|[1-9]|[1-5][0-9]|60)$").build()
}

/// An id, as the last page gave it.
pub(super) fn cursor_or_none() -> Object {
    text("^(|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$").build()
}

/// Why, in words. The bound is in bytes.
pub(super) fn reason() -> Object {
    text("^[^\\u0000]*[^\\u0000\\s][^\\u0000]*$")
        .description(Some("What the next person reads in the history."))
        .max_length(Some(MAX_REASON))
        .build()
}

/// The same where it may be left out.
pub(super) fn reason_or_none() -> Object {
    text("^[^\\u0000]*$").max_length(Some(MAX_REASON)).build()
}

/// Who, where it is not the session that says so. The bound is in bytes.
pub(super) fn by() -> Object {
    text("^[^\\u0000-\\u001f\\u007f-\\u009f]*$")
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some("Who decides; in a session, only the name it has."))
        .max_length(Some(MAX_NAME))
        .build()
}

/// Lines of a header, each a name and a value.
pub(super) fn headers() -> Array {
    let name = text("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$").build();
    let value = text("^[\\t -~]*$").build();
    let line = ArrayBuilder::new()
        .prefix_items([name, value])
        .items(ArrayItems::False)
        .min_items(Some(2));
    ArrayBuilder::new().items(line).build()
}

/// Says what the types of a decision leave open: which members go together.
pub(in crate::admin) fn narrow(components: &mut Components) {
    let nothing = || ObjectBuilder::new().schema_type(Type::Null).build();
    let response = RefOr::Ref(Ref::from_schema_name("WrittenResponse"));
    let decided = [
        vec![
            ("verdict", one_of(&["completed"]).into()),
            ("response", response),
        ],
        vec![
            ("verdict", one_of(&["not_executed"]).into()),
            ("response", nothing().into()),
        ],
    ];
    let written = [
        vec![("body", nothing().into())],
        vec![("json", nothing().into())],
    ];
    for (name, either) in [("Decision", decided), ("WrittenResponse", written)] {
        let Some(RefOr::T(Schema::Object(all))) = components.schemas.get(name).cloned() else {
            continue;
        };
        let either = either
            .into_iter()
            .fold(AnyOfBuilder::new(), |any, members| {
                let mut one = all.clone();
                for (name, schema) in members {
                    // What is not nothing is required.
                    if matches!(schema, RefOr::Ref(_)) {
                        one.required.push(name.to_owned());
                    }
                    one.properties.insert(name.to_owned(), schema);
                }
                any.item(one)
            });
        let either = RefOr::T(Schema::AnyOf(either.build()));
        components.schemas.insert(name.to_owned(), either);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_domains() {
        for status in [
            Status::InProgress,
            Status::Completed,
            Status::FailedRetryable,
            Status::Unknown,
            Status::Expired,
        ] {
            let word = serde_json::to_value(StatusWord::from(status)).unwrap();
            assert_eq!(word, status.as_str());
            let filter = serde_json::to_string(&status_or_none()).unwrap();
            assert!(filter.contains(&word.to_string()), "{filter}");
        }
    }
}
