//! How many effects there are.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::target::{Counter, Target};
use crate::text::fill;
use crate::wire::Connection;
use crate::{Address, World};

/// A counter that takes longer is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the counter.
pub(crate) async fn count(
    counter: &Counter,
    target: &Target,
    world: &dyn World,
    reference: &str,
    key: &str,
) -> Result<u64, String> {
    let counting = async {
        match counter {
            Counter::Url { url, pointer } => {
                let url = fill(url, reference, key);
                read(&ask(&url, target, world).await?, pointer.as_deref())
            }
            Counter::Command(command) => {
                let command = fill(command, reference, key);
                let printed = world
                    .ask(&command)
                    .await
                    .map_err(|error| error.to_string())?;
                read(&printed, None)
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, counting).await;
    answer.map_err(|_| format!("no answer in {} seconds", PATIENCE.as_secs()))?
}

async fn ask(url: &str, target: &Target, world: &dyn World) -> Result<String, String> {
    let address: Address = url
        .parse()
        .map_err(|error: crate::Error| error.to_string())?;
    let mut request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nConnection: close\r\n",
        address.path, address.authority
    );
    // Credentials are for the target, and only go elsewhere where that is the same place.
    if address.endpoint() == target.address.endpoint() {
        for header in &target.headers {
            // Writing to a string cannot fail.
            let _ = write!(request, "{}: {}\r\n", header.name, header.value);
        }
    }
    request.push_str("\r\n");
    let told = |error: std::io::Error| format!("{url}: {error}");
    let mut connection = Connection::new(world.connect(&address).await.map_err(told)?);
    connection.send(request.as_bytes()).await.map_err(told)?;
    let answer = connection.read().await.map_err(told)?;
    // What does not exist has no effects: many APIs say so with a 404.
    if answer.status == 404 {
        return Ok("0".to_owned());
    }
    if !answer.is_success() {
        return Err(format!("{url} answered {}", answer.status));
    }
    String::from_utf8(answer.body).map_err(|_| format!("{url} answered no text"))
}

fn read(text: &str, pointer: Option<&str>) -> Result<u64, String> {
    let short = || crate::text::cut(text.trim(), 80);
    let document: Value =
        serde_json::from_str(text.trim()).map_err(|_| format!("no number: {:?}", short()))?;
    let counted = match pointer {
        // Nothing at that place yet is nothing counted yet.
        Some(pointer) => document.pointer(pointer).unwrap_or(&Value::Null),
        None => &document,
    };
    match counted {
        Value::Array(list) => Ok(list.len() as u64),
        Value::Null if pointer.is_some() => Ok(0),
        Value::Number(number) => number.as_u64().ok_or_else(|| format!("no count: {number}")),
        Value::String(text) => text.parse().map_err(|_| format!("no number: {text:?}")),
        Value::Null | Value::Bool(_) | Value::Object(_) => Err(format!(
            "neither a number nor an array: {:?}; --count-pointer says where it is",
            short()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_arrays_and_places_are_counted() {
        for (text, pointer, count) in [
            ("3\n", None, 3),
            ("[1, {}, 3]", None, 3),
            (r#"{"a": {"b": 2}}"#, Some("/a/b"), 2),
            (r#"{"a": [1]}"#, Some("/a"), 1),
            (r#"{"a": [1]}"#, Some("/b"), 0),
            ("\"7\"", None, 7),
        ] {
            assert_eq!(read(text, pointer), Ok(count), "{text}");
        }
        for wrong in ["", "many", "-1", "1.5", "{}", "null", "true"] {
            assert!(read(wrong, None).is_err(), "{wrong:?}");
        }
    }
}
