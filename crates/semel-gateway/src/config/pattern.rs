//! Which requests a route matches.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use http::Method;
use semel_core::path::{FoldedPath, fold_pattern};

/// The most parameters of a path.
const MAX_PARAMETERS: usize = 16;

/// Method and path of a route, such as `POST /payments/{id}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    method: Method,
    path: Box<str>,
}

impl Pattern {
    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The path in the syntax of `matchit`: `{name}` and `{*rest}`.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |problem: &str| format!("invalid route {text:?}: {problem}");
        let (method, path) = text.split_once(' ').ok_or_else(|| {
            refused("write a method, a space and a path, for example \"POST /payments\"")
        })?;
        let method = match method.parse::<Method>() {
            Ok(known @ (Method::POST | Method::PATCH | Method::PUT | Method::DELETE)) => known,
            Ok(Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE) => {
                return Err(refused("requests with this method are never guarded"));
            }
            Ok(_) | Err(_) => {
                return Err(refused("the method must be POST, PATCH, PUT or DELETE"));
            }
        };
        if !path.starts_with('/') {
            return Err(refused("the path must begin with `/`"));
        }
        if path
            .bytes()
            .any(|byte| !byte.is_ascii_graphic() || b"?#".contains(&byte))
        {
            return Err(refused(
                "the path must not contain `?`, `#` or anything but visible ASCII",
            ));
        }
        let folded = FoldedPath::new(path);
        if folded.as_str() == "/.semel" || folded.as_str().starts_with("/.semel/") {
            return Err(refused("the gateway answers paths under `/.semel/` itself"));
        }
        // The router has a letter for each parameter, and panics where they do not suffice.
        if path.matches('{').count() > MAX_PARAMETERS {
            return Err(refused(&format!(
                "the path has more than {MAX_PARAMETERS} parameters"
            )));
        }
        matchit::Router::new()
            .insert(path, ())
            .map_err(|error| refused(&syntax_problem(&error)))?;
        Ok(Self {
            method,
            path: path.into(),
        })
    }
}

fn syntax_problem(error: &matchit::InsertError) -> String {
    format!("{error}; write parameters as `{{name}}`, and `{{*rest}}` at the end")
}

/// The patterns read so far, by method, to find conflicts. Two patterns that differ only in the
/// names of their parameters, or in what [folding](semel_core::path) removes, conflict; a literal
/// segment has precedence over a parameter, so these two do not.
#[derive(Default)]
pub(super) struct PatternSet {
    /// As they are written.
    written: HashMap<Method, matchit::Router<usize>>,
    /// Folded, without those that match exactly.
    folded: HashMap<Method, matchit::Router<usize>>,
    patterns: Vec<(Pattern, Range<usize>)>,
}

impl PatternSet {
    /// Fails with the earlier pattern that matches the same requests.
    pub(super) fn add(
        &mut self,
        pattern: &Pattern,
        match_exactly: bool,
        span: &Range<usize>,
    ) -> Result<(), (String, Range<usize>)> {
        let at = self.patterns.len();
        let insert = |routers: &mut HashMap<Method, matchit::Router<usize>>, path: String| {
            let router = routers.entry(pattern.method.clone()).or_default();
            // The pattern is valid by itself, so this is a conflict with an earlier one, which
            // matches itself.
            match router.insert(path, at) {
                Err(matchit::InsertError::Conflict { with }) => {
                    let first = router.at(&with).ok().map(|found| *found.value);
                    Err(first.and_then(|first| self.patterns.get(first)))
                }
                Err(_) | Ok(()) => Ok(()),
            }
        };
        let folded = fold_pattern(&pattern.path).ok().filter(|_| !match_exactly);
        let conflict = insert(&mut self.written, pattern.path.to_string())
            .and_then(|()| folded.map_or(Ok(()), |folded| insert(&mut self.folded, folded)));
        if let Err(first) = conflict {
            let first = first.map(|(first, span)| (first.to_string(), span.clone()));
            return Err(first.unwrap_or_else(|| (pattern.to_string(), span.clone())));
        }
        self.patterns.push((pattern.clone(), span.clone()));
        Ok(())
    }
}
