//! Schemas of the API that the Rust types do not express.

use semel_core::Status;
use semel_core::history::MAX_REASON;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{
    AnyOfBuilder, Array, ArrayBuilder, ArrayItems, Object, ObjectBuilder, SchemaType, Type,
};
use utoipa::openapi::{Components, Ref, RefOr, Schema};

use crate::admin::access::MAX_NAME;

/// The status of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Status)]
pub(in crate::admin) enum StatusView {
    InProgress,
    Completed,
    FailedRetryable,
    Unknown,
    Expired,
}

impl From<Status> for StatusView {
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

fn one_of(values: &[&str]) -> Object {
    let object = ObjectBuilder::new().schema_type(Type::String);
    object.enum_values(Some(values.iter().copied())).build()
}

/// A status filter, which may be empty: forms send all their fields.
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

/// A page size from 1 to 1000, or empty.
pub(super) fn limit_or_none() -> Object {
    text("^(|[1-9][0-9]{0,2}|1000)$").build()
}

/// Minutes from 1 to 60, or empty.
pub(super) fn minutes_or_none() -> Object {
    text("^(|[1-9]|[1-5][0-9]|60)$").build()
}

/// The `next` of a page, or empty.
pub(super) fn cursor_or_none() -> Object {
    text("^(|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$").build()
}

/// A reason. The limit is in bytes.
pub(super) fn reason() -> Object {
    text("^[^\\u0000]*[^\\u0000\\s][^\\u0000]*$")
        .description(Some("Why. The history shows it."))
        .max_length(Some(MAX_REASON))
        .build()
}

/// An optional reason.
pub(super) fn reason_or_none() -> Object {
    text("^[^\\u0000]*$").max_length(Some(MAX_REASON)).build()
}

/// The name of the person who decides. The limit is in bytes.
pub(super) fn by() -> Object {
    text("^[^\\u0000-\\u001f\\u007f-\\u009f]*$")
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some(
            "Who decides. In a session: only the name of the session.",
        ))
        .max_length(Some(MAX_NAME))
        .build()
}

/// Header fields, each a name and a value.
pub(super) fn headers() -> Array {
    let name = text("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$").build();
    let value = text("^[\\t -~]*$").build();
    let line = ArrayBuilder::new()
        .prefix_items([name, value])
        .items(ArrayItems::False)
        .min_items(Some(2));
    ArrayBuilder::new().items(line).build()
}

/// Adds what the types of a decision leave open: which members exclude each other.
pub(in crate::admin) fn restrict_decisions(components: &mut Components) {
    let null = || ObjectBuilder::new().schema_type(Type::Null).build();
    let response = RefOr::Ref(Ref::from_schema_name("WrittenResponse"));
    let decision = [
        vec![
            ("verdict", one_of(&["completed"]).into()),
            ("response", response),
        ],
        vec![
            ("verdict", one_of(&["not_executed"]).into()),
            ("response", null().into()),
        ],
    ];
    let response_body = [vec![("body", null().into())], vec![("json", null().into())]];
    for (name, variants) in [("Decision", decision), ("WrittenResponse", response_body)] {
        let Some(RefOr::T(Schema::Object(all))) = components.schemas.get(name).cloned() else {
            continue;
        };
        let any_of = variants
            .into_iter()
            .fold(AnyOfBuilder::new(), |any, members| {
                let mut one = all.clone();
                for (name, schema) in members {
                    // The variant that refers to a schema requires the member.
                    if matches!(schema, RefOr::Ref(_)) {
                        one.required.push(name.to_owned());
                    }
                    one.properties.insert(name.to_owned(), schema);
                }
                any.item(one)
            });
        let any_of = RefOr::T(Schema::AnyOf(any_of.build()));
        components.schemas.insert(name.to_owned(), any_of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_match_the_core_statuses() {
        for status in [
            Status::InProgress,
            Status::Completed,
            Status::FailedRetryable,
            Status::Unknown,
            Status::Expired,
        ] {
            let value = serde_json::to_value(StatusView::from(status)).unwrap();
            assert_eq!(value, status.as_str());
            let filter = serde_json::to_string(&status_or_none()).unwrap();
            assert!(filter.contains(&value.to_string()), "{filter}");
        }
    }
}
