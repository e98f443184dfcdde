//! Templates of subjects and routing keys.

use semel_core::outbox::Event;

use crate::Error;

/// Replaces characters that have a meaning in the broker's patterns.
const REPLACEMENT: char = '_';

/// A text with placeholders, such as `semel.{kind}`. The values that are filled in add no wildcards,
/// and no levels except those of the dots in a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Kind,
    Aggregate,
}

impl Template {
    /// # Errors
    /// [`Error::Name`], with the given `kind`.
    pub(crate) fn parse(kind: &'static str, text: &str) -> Result<Self, Error> {
        let invalid = |reason| Error::Name {
            kind,
            name: text.into(),
            reason,
        };
        if text.contains(is_special) {
            return Err(invalid(
                "it must not contain wildcards, whitespace or control characters",
            ));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| invalid("a `{` has no matching `}`"))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(match name {
                "kind" => Part::Kind,
                "aggregate" => Part::Aggregate,
                _ => return Err(invalid("the only placeholders are {kind} and {aggregate}")),
            });
            rest = after;
        }
        if rest.contains('}') {
            return Err(invalid("a `}` has no matching `{`"));
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self(parts))
    }

    /// The text before the first placeholder.
    #[cfg(feature = "nats")]
    pub(crate) fn literal_prefix(&self) -> &str {
        match self.0.first() {
            Some(Part::Text(text)) => text,
            Some(Part::Kind | Part::Aggregate) | None => "",
        }
    }

    /// Fills in the names of one event.
    pub(crate) fn fill(&self, event: &Event) -> String {
        let mut filled = String::with_capacity(64);
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Kind => push_levels(&mut filled, &event.kind),
                Part::Aggregate => push_level(&mut filled, &event.aggregate),
            }
        }
        filled
    }
}

/// Appends a kind, whose dots separate levels. An empty level would make the subject invalid.
fn push_levels(filled: &mut String, kind: &str) {
    for (index, level) in kind.split('.').enumerate() {
        if index > 0 {
            filled.push('.');
        }
        push_level(filled, level);
    }
}

/// Appends a name as one level.
fn push_level(filled: &mut String, name: &str) {
    if name.is_empty() {
        filled.push(REPLACEMENT);
    }
    filled.extend(name.chars().map(|c| {
        if c == '.' || is_special(c) {
            REPLACEMENT
        } else {
            c
        }
    }));
}

/// Whether the character has a meaning in a pattern of NATS (`*`, `>`) or RabbitMQ (`*`, `#`), or
/// ends a subject.
fn is_special(c: char) -> bool {
    matches!(c, '*' | '>' | '#') || c.is_whitespace() || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, aggregate: &str) -> Event {
        Event {
            kind: kind.into(),
            aggregate: aggregate.into(),
            ..Event::new("k", "a", "{}").unwrap()
        }
    }

    fn fill(template: &str, kind: &str, aggregate: &str) -> String {
        Template::parse("subject", template)
            .unwrap()
            .fill(&event(kind, aggregate))
    }

    #[test]
    fn placeholders_are_replaced_by_names() {
        assert_eq!(
            fill("semel.{kind}", "payment.created", "p/1"),
            "semel.payment.created"
        );
        assert_eq!(fill("a.{aggregate}.{kind}", "k", "p/1"), "a.p/1.k");
        assert_eq!(fill("queue", "k", "p/1"), "queue");
    }

    #[test]
    fn special_characters_in_names_are_replaced() {
        assert_eq!(fill("s.{kind}", "a.*.>", "p"), "s.a._._");
        assert_eq!(fill("s.{kind}", "#", "p"), "s._");
        assert_eq!(fill("s.{kind}", "..a.", "p"), "s._._.a._");
        assert_eq!(fill("s.{aggregate}.x", "k", "a.b.>"), "s.a_b__.x");
        assert_eq!(fill("s.{kind}", "a b\r\nPUB x 0", "p"), "s.a_b__PUB_x_0");
    }

    #[test]
    fn invalid_template_is_rejected() {
        for invalid in ["s.*", "s.>", "s #", "s.{king}", "s.{kind", "s.kind}", "a b"] {
            assert!(Template::parse("subject", invalid).is_err(), "{invalid}");
        }
    }
}
