//! Problems of a configuration, with their locations.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, ReportHandler,
    SourceCode,
};

/// The longest line of a file, in bytes. The renderer of problems cannot show much longer ones.
const MAX_LINE: usize = 16 << 10;

/// Where a setting came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A default.
    #[default]
    Default,
    /// A command-line flag.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// These bytes of the file.
    File(Range<usize>),
}

/// One problem.
#[derive(Clone)]
pub struct Problem {
    message: String,
    help: Option<String>,
    origin: Origin,
    /// A related location in the file, and its label.
    related: Option<(Range<usize>, &'static str)>,
    text: Arc<NamedSource<String>>,
}

/// All problems of a configuration: those of flags and variables first, then those of the file in
/// its order.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", list(problems))]
pub struct Report {
    problems: Vec<Problem>,
}

/// How a [`Report`] is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// With box drawing, and with colours unless `NO_COLOR` is set: for a terminal.
    Graphical,
    /// Seven-bit text: for logs and files.
    Plain,
}

impl Problem {
    /// What is wrong, and how to fix it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Where the setting came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Line and column, both starting at 1 and in characters, if the setting came from the file.
    pub fn line_and_column(&self) -> Option<(usize, usize)> {
        let Origin::File(span) = &self.origin else {
            return None;
        };
        let text = self.text.inner();
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Some((line, before[start..].chars().count() + 1))
    }

    /// Adds a related location in the file.
    pub(super) fn with_related(mut self, span: Range<usize>, what: &'static str) -> Self {
        self.related = Some((span, what));
        self
    }

    /// Adds advice.
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl Report {
    /// The problems.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Renders all problems, each with a snippet of the file.
    pub fn render(&self, style: Style) -> String {
        let theme = match style {
            Style::Plain => GraphicalTheme::none(),
            Style::Graphical if std::env::var_os("NO_COLOR").is_some() => {
                GraphicalTheme::unicode_nocolor()
            }
            Style::Graphical => GraphicalTheme::unicode(),
        };
        // Not wrapped: a message that is split over two lines cannot be searched for.
        let handler = GraphicalReportHandler::new_themed(theme).with_wrap_lines(false);
        self.problems
            .iter()
            .map(|problem| Rendered(&handler, problem).to_string())
            .collect()
    }
}

struct Rendered<'a>(&'a GraphicalReportHandler, &'a Problem);

impl fmt::Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug(self.1, f)
    }
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

/// One line: the location and the message.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, self.line_and_column()) {
            (Origin::Flag(name) | Origin::Variable(name), _) => write!(f, "{name}: ")?,
            (Origin::File(_), Some((line, column))) => {
                write!(f, "{}:{line}:{column}: ", self.text.name())?;
            }
            (Origin::Default | Origin::File(_), _) => {}
        }
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Problem({self})")
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help
            .as_ref()
            .map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        matches!(self.origin, Origin::File(_)).then_some(&*self.text as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let Origin::File(span) = &self.origin else {
            return None;
        };
        let label = |span: &Range<usize>, what: Option<String>| {
            LabeledSpan::new(what, span.start, span.len())
        };
        let here = LabeledSpan::new_primary_with_span(None, (span.start, span.len()));
        let related = self
            .related
            .as_ref()
            .map(|(span, what)| label(span, Some((*what).to_owned())));
        Some(Box::new(std::iter::once(here).chain(related)))
    }
}

/// Collects problems, so that one run reports all of them.
pub(super) struct Problems {
    text: String,
    /// The text as problems quote it, of the same length.
    shown: Arc<NamedSource<String>>,
    found: RefCell<Vec<Problem>>,
}

impl Problems {
    pub(super) fn new(name: &str, text: String) -> Self {
        Self {
            shown: Arc::new(NamedSource::new(name, without_secrets(&text))),
            text,
            found: RefCell::default(),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Reports a line that is too long to be shown, and returns whether there is one.
    pub(super) fn has_long_line(&self) -> bool {
        let long = self.text.lines().position(|line| line.len() > MAX_LINE);
        if let Some(index) = long {
            let name = self.shown.name();
            let message = format!(
                "{name}: line {} is longer than {MAX_LINE} bytes: split it",
                index + 1
            );
            self.report(Origin::Default, message);
        }
        long.is_some()
    }

    pub(super) fn problem(&self, origin: Origin, message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
            help: None,
            origin,
            related: None,
            text: Arc::clone(&self.shown),
        }
    }

    pub(super) fn add(&self, problem: Problem) {
        self.found.borrow_mut().push(problem);
    }

    pub(super) fn at(&self, span: Range<usize>, message: impl Into<String>) {
        self.report(Origin::File(span), message);
    }

    pub(super) fn report(&self, origin: Origin, message: impl Into<String>) {
        self.add(self.problem(origin, message));
    }

    /// The value, if there were no problems.
    pub(super) fn into_result<T>(self, value: Option<T>) -> Result<T, Report> {
        let mut problems = self.found.into_inner();
        match value {
            Some(value) if problems.is_empty() => Ok(value),
            _ => {
                problems.sort_by_key(|problem| match &problem.origin {
                    Origin::Default => (0, 0),
                    Origin::Flag(_) => (1, 0),
                    Origin::Variable(_) => (2, 0),
                    Origin::File(span) => (3, span.start),
                });
                Err(Report { problems })
            }
        }
    }
}

/// The text with asterisks in place of secrets. Positions stay the same.
fn without_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let secret = secret_in(line);
        shown.push_str(&line[..secret.start]);
        shown.extend(std::iter::repeat_n('*', secret.len()));
        shown.push_str(&line[secret.end..]);
    }
    shown
}

/// The bytes of a line that may be a secret: the value of a key with such a name, or what precedes
/// the host in a URL. Rather too much than too little.
fn secret_in(line: &str) -> Range<usize> {
    let trimmed = line.trim_end().len();
    if let Some((key, _)) = line.split_once('=') {
        let name = key.trim().to_ascii_lowercase();
        let named = ["token", "secret", "password", "credential", "key"];
        let elsewhere = ["_file", "_env"].iter().any(|end| name.ends_with(end));
        // `key = "required"` is the rule of a route.
        if name != "key" && !elsewhere && named.iter().any(|part| name.ends_with(part)) {
            return key.len() + 1..trimmed.max(key.len() + 1);
        }
    }
    match (line.find("://"), line.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 < at => scheme + 3..at,
        (_, _) => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn secrets_are_not_shown() {
        for (line, shown) in [
            ("token = \"s3cret\"\n", "token =*********\n"),
            ("secret=\"\u{e9}\"", "secret=****"),
            (
                "store = \"postgres://u:p/w@db/semel\" # x",
                "store = \"postgres://*****@db/semel\" # x",
            ),
            ("token_file = \"/run/token\"", "token_file = \"/run/token\""),
            ("key = \"required\"", "key = \"required\""),
            (
                "upstream = \"http://app:3000\"",
                "upstream = \"http://app:3000\"",
            ),
        ] {
            assert_eq!(without_secrets(line), shown);
        }
    }
}
