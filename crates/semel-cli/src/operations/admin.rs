//! The way to the admin listener, and what is said where it does not lead there.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use semel_core::OperationId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answers::Problem;
use super::text;

/// Longer than a listener on any network takes to accept.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Asking a provider takes as long as the provider does; nothing else takes nearly that long.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

/// A page of a thousand operations with the longest names, and a body of the largest size that is
/// commonly stored, spelled as JSON.
const MAX_ANSWER: usize = 64 << 20;

/// A token is some tens of bytes.
const MAX_TOKEN: u64 = 4096;

/// The admin listener of a gateway.
pub(crate) struct Admin {
    client: Client,
    base: Url,
    token: Option<Token>,
}

struct Token {
    header: HeaderValue,
    from: String,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// JSON, as it was sent.
    pub(crate) text: String,
    /// The gateway's clock.
    pub(crate) now: Option<Timestamp>,
    base: Url,
}

impl Answer {
    /// Its parts.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text)
            .map_err(|error| stranger(&self.base, &format!("its answer is another: {error}")))
    }
}

/// An address as it is typed.
pub(crate) fn address(typed: &str) -> Result<Url, String> {
    let url = Url::parse(typed).ok().filter(Url::has_host);
    let Some(mut url) = url else {
        return Err("write it as http://HOST:PORT".to_owned());
    };
    match url.scheme() {
        "http" => {}
        "https" => {
            let way = "the admin listener speaks plain HTTP; from another machine use a tunnel: \
                       ssh -L 8081:127.0.0.1:8081 HOST";
            return Err(way.to_owned());
        }
        _ => return Err("write it as http://HOST:PORT".to_owned()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("an address has no password; the token is in SEMEL_ADMIN_TOKEN".to_owned());
    }
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

impl Admin {
    /// With the token of the file, else of the environment, else without.
    pub(crate) fn new(base: &Url, token_file: Option<&Path>) -> Result<Self> {
        let token = match token_file {
            Some(path) => Some(Token::read(path)?),
            None => Token::from_environment()?,
        };
        let client = Client::builder()
            // Neither a proxy nor another address is given the token.
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .build()
            .context("cannot make requests")?;
        Ok(Self {
            client,
            base: base.clone(),
            token,
        })
    }

    /// Looks at operations.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Answer> {
        self.look("operations", path, query).await
    }

    /// Looks.
    pub(crate) async fn look(
        &self,
        what: &str,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Answer> {
        let mut url = self.url(what, path)?;
        for (name, value) in query {
            url.query_pairs_mut().append_pair(name, value);
        }
        self.ask(self.client.request(Method::GET, url)).await
    }

    /// Decides about an operation.
    pub(crate) async fn post(
        &self,
        id: OperationId,
        verb: &str,
        decision: &impl Serialize,
    ) -> Result<Answer> {
        let path = [&*id.to_string(), verb];
        let look = format!("semel operations show {id}");
        self.decide("operations", &path, decision, &look).await
    }

    /// Decides. `look` is how one sees whether it was done.
    pub(crate) async fn decide(
        &self,
        what: &str,
        path: &[&str],
        decision: &impl Serialize,
        look: &str,
    ) -> Result<Answer> {
        let url = self.url(what, path)?;
        let request = self.client.request(Method::POST, url);
        let asked = self.ask(request.json(decision)).await;
        asked.map_err(|error| match error.downcast::<Unanswered>() {
            Ok(unanswered) => anyhow!(
                "{unanswered}\nWhether it was done is not known. Look before you repeat it: {look}"
            ),
            Err(error) => error,
        })
    }

    fn url(&self, what: &str, path: &[&str]) -> Result<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow!("{} is no address to ask at", self.base))?
            .pop_if_empty()
            .extend(["api", "v1", what])
            .extend(path);
        Ok(url)
    }

    async fn ask(&self, mut request: RequestBuilder) -> Result<Answer> {
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.header.clone());
        }
        let mut response = request.send().await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        let header = |name| response.headers().get(name);
        let kind = header(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next());
        let kind = kind.unwrap_or_default().trim().to_ascii_lowercase();
        let now = header(DATE).and_then(|date| date.to_str().ok());
        let now = now.and_then(text::date);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.lost(&error))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                bail!(
                    "the answer of {} has more than {MAX_ANSWER} bytes",
                    self.base
                );
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() && kind == "application/json" {
            let text = String::from_utf8(body)
                .map_err(|_| stranger(&self.base, "its answer is no text"))?;
            return Ok(Answer {
                text,
                now,
                base: self.base.clone(),
            });
        }
        let problem = (kind == "application/problem+json")
            .then(|| serde_json::from_slice::<Problem>(&body).ok())
            .flatten();
        Err(self.refused(status, problem))
    }

    fn refused(&self, status: StatusCode, problem: Option<Problem>) -> anyhow::Error {
        let base = &self.base;
        // Who was refused as such is told what to do about it here, where the token is from.
        let about_access = [
            "admin_unauthenticated",
            "admin_not_local",
            "admin_body_too_large",
        ];
        let problem = problem.filter(|problem| {
            problem.code.starts_with("admin_") && !about_access.contains(&&*problem.code)
        });
        if let Some(problem) = problem {
            let detail = text::line(&problem.detail);
            let code = text::line(&problem.code);
            return match &*problem.code {
                "admin_operation_not_found" => {
                    anyhow!("there is no such operation at {base}\n{detail} ({code})")
                }
                "admin_store_unavailable" => Unanswered(format!(
                    "the gateway is there, and its store cannot answer: {detail} ({code})"
                ))
                .into(),
                _ => anyhow!("{detail} ({code})"),
            };
        }
        match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => anyhow!(
                "the admin at {base} wants its token: set SEMEL_ADMIN_TOKEN, or name a file with \
                 --token-file"
            ),
            (StatusCode::UNAUTHORIZED, Some(token)) => anyhow!(
                "the admin at {base} refuses the token from {}: it was started with another",
                token.from
            ),
            (StatusCode::FORBIDDEN, _) => anyhow!(
                "the admin at {base} has no token, and without one it serves only its own machine: \
                 run this there, or start the gateway with SEMEL_ADMIN_TOKEN"
            ),
            (StatusCode::PAYLOAD_TOO_LARGE, _) => {
                anyhow!("the decision is larger than the gateway takes (2 MiB)")
            }
            (status, _) => stranger(base, &format!("it answers {}", status.as_u16())),
        }
    }

    /// A request without an answer.
    fn lost(&self, error: &reqwest::Error) -> anyhow::Error {
        let base = &self.base;
        let cause = text::line(&root(error).to_string());
        if error.is_connect() {
            return anyhow!(
                "cannot connect to {base}: {cause}\nIs the gateway running? Where its admin \
                 listener is, is said with --admin URL or SEMEL_ADMIN."
            );
        }
        if error.is_timeout() {
            let seconds = ANSWER_WITHIN.as_secs();
            return Unanswered(format!("{base} did not answer within {seconds} seconds")).into();
        }
        Unanswered(format!("the connection to {base} broke: {cause}")).into()
    }
}

/// A request that may have been heard.
#[derive(Debug)]
struct Unanswered(String);

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unanswered {}

/// Somebody else is at that address.
fn stranger(base: &Url, seen: &str) -> anyhow::Error {
    let seen = text::line(seen);
    anyhow!(
        "{base} is not the admin listener of a Semel gateway that has operations: {seen}\n\
         The gateway prints its address as \"listening admin\"; give it with --admin URL or \
         SEMEL_ADMIN."
    )
}

fn root(error: &dyn std::error::Error) -> &dyn std::error::Error {
    let mut root = error;
    while let Some(deeper) = root.source() {
        root = deeper;
    }
    root
}

impl Token {
    fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text))
            .with_context(|| format!("cannot read the token from {name}"))?;
        Self::new(&text, name.to_string())
    }

    /// An empty variable is none: that is how one is unset for a single command.
    fn from_environment() -> Result<Option<Self>> {
        match std::env::var("SEMEL_ADMIN_TOKEN") {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Self::new(&text, "SEMEL_ADMIN_TOKEN".to_owned()).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => bail!("SEMEL_ADMIN_TOKEN is no text"),
        }
    }

    /// The rule is the gateway's. The error never has the token in it.
    fn new(text: &str, from: String) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("the token from {from} is empty, or has characters that a header cannot carry");
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}"))
            .map_err(|_| anyhow!("the token from {from} cannot be sent"))?;
        header.set_sensitive(true);
        Ok(Self { header, from })
    }
}
