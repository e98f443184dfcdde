//! Which requests a route matches.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use http::Method;

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
        if path == "/.semel" || path.starts_with("/.semel/") {
            return Err(refused("the gateway answers paths under `/.semel/` itself"));
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
/// names of their parameters conflict; a literal segment has precedence over a parameter, so these
/// two do not.
#[derive(Default)]
pub(super) struct PatternSet {
    routers: HashMap<Method, matchit::Router<()>>,
    patterns: Vec<(Pattern, Range<usize>)>,
}

impl PatternSet {
    pub(super) fn add(
        &mut self,
        pattern: &Pattern,
        span: &Range<usize>,
    ) -> Result<(), (String, Range<usize>)> {
        let router = self.routers.entry(pattern.method.clone()).or_default();
        let inserted = router.insert(pattern.path(), ());
        // The pattern is valid by itself, so this is a conflict with an earlier one.
        if let Err(matchit::InsertError::Conflict { with }) = inserted {
            let first = self
                .patterns
                .iter()
                .find(|(other, _)| other.method == pattern.method && *other.path == *with)
                .map_or_else(|| span.clone(), |(_, span)| span.clone());
            return Err((format!("{} {with}", pattern.method), first));
        }
        self.patterns.push((pattern.clone(), span.clone()));
        Ok(())
    }
}
