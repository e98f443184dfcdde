//! Subjects and routing keys, made of an event's names.

use semel_core::outbox::Event;

use crate::Error;

/// What stands for a character that would mean something to the broker.
const HARMLESS: char = '_';

/// A text with places for names, such as `semel.{kind}`. Whatever the names are, they add no
/// wildcards, and no levels but those of the dots in a kind.
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
    /// What is wrong with it.
    pub(crate) fn parse(what: &'static str, text: &str) -> Result<Self, Error> {
        let wrong = |reason| Error::Name {
            what,
            name: text.into(),
            reason,
        };
        if text.contains(special) {
            return Err(wrong(
                "it has wildcards, blanks or control characters, which nothing can be sent to",
            ));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| wrong("a `{` has no `}`"))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(match name {
                "kind" => Part::Kind,
                "aggregate" => Part::Aggregate,
                _ => return Err(wrong("only {kind} and {aggregate} can be filled in")),
            });
            rest = after;
        }
        if rest.contains('}') {
            return Err(wrong("a `}` has no `{`"));
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self(parts))
    }

    /// What comes first and is no place for a name.
    #[cfg(feature = "nats")]
    pub(crate) fn literal_prefix(&self) -> &str {
        match self.0.first() {
            Some(Part::Text(text)) => text,
            Some(Part::Kind | Part::Aggregate) | None => "",
        }
    }

    /// The text for one event.
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

/// A kind, whose dots are levels. An empty level would be an invalid subject.
fn push_levels(filled: &mut String, kind: &str) {
    for (index, level) in kind.split('.').enumerate() {
        if index > 0 {
            filled.push('.');
        }
        push_level(filled, level);
    }
}

/// A name as one level.
fn push_level(filled: &mut String, name: &str) {
    if name.is_empty() {
        filled.push(HARMLESS);
    }
    filled.extend(
        name.chars()
            .map(|c| if c == '.' || special(c) { HARMLESS } else { c }),
    );
}

/// What means something in a pattern of NATS (`*`, `>`) or RabbitMQ (`*`, `#`), or ends a
/// subject.
fn special(c: char) -> bool {
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

    fn filled(template: &str, kind: &str, aggregate: &str) -> String {
        Template::parse("subject", template)
            .unwrap()
            .fill(&event(kind, aggregate))
    }

    #[test]
    fn names_are_filled_in() {
        assert_eq!(
            filled("semel.{kind}", "payment.created", "p/1"),
            "semel.payment.created"
        );
        assert_eq!(filled("a.{aggregate}.{kind}", "k", "p/1"), "a.p/1.k");
        assert_eq!(filled("queue", "k", "p/1"), "queue");
    }

    #[test]
    fn a_name_adds_no_wildcard_and_no_level() {
        assert_eq!(filled("s.{kind}", "a.*.>", "p"), "s.a._._");
        assert_eq!(filled("s.{kind}", "#", "p"), "s._");
        assert_eq!(filled("s.{kind}", "..a.", "p"), "s._._.a._");
        assert_eq!(filled("s.{aggregate}.x", "k", "a.b.>"), "s.a_b__.x");
        assert_eq!(filled("s.{kind}", "a b\r\nPUB x 0", "p"), "s.a_b__PUB_x_0");
    }

    #[test]
    fn a_template_that_cannot_work_is_refused() {
        for wrong in ["s.*", "s.>", "s #", "s.{king}", "s.{kind", "s.kind}", "a b"] {
            assert!(Template::parse("subject", wrong).is_err(), "{wrong}");
        }
    }
}
