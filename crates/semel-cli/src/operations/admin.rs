//! The client of the admin API, and its error messages.

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reconciling waits for the provider; everything else is much faster.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);

/// Enough for a page of a thousand operations with the longest names, or one with a large body.
const MAX_RESPONSE: usize = 64 << 20;

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
    /// The file or variable, for error messages.
    from: String,
}

/// A successful response.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The JSON text as received.
    pub(crate) text: String,
    /// The gateway's clock, from the header `Date`.
    pub(crate) now: Option<Timestamp>,
    base: Url,
}

impl Answer {
    /// Parses the JSON.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text).map_err(|error| {
            not_an_admin_listener(&self.base, &format!("unexpected response: {error}"))
        })
    }
}

/// Parses the URL of the admin listener.
pub(crate) fn address(typed: &str) -> Result<Url, String> {
    let url = Url::parse(typed).ok().filter(Url::has_host);
    let Some(mut url) = url else {
        return Err("write it as http://HOST:PORT".to_owned());
    };
    match url.scheme() {
        "http" => {}
        "https" => {
            let hint = "the admin listener serves plain HTTP; from another machine use a tunnel: \
                       ssh -L 8081:127.0.0.1:8081 HOST";
            return Err(hint.to_owned());
        }
        _ => return Err("write it as http://HOST:PORT".to_owned()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "a URL with a password is not supported; set the token in SEMEL_ADMIN_TOKEN".to_owned(),
        );
    }
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

impl Admin {
    /// Takes the token from the file, else from the environment, else none.
    pub(crate) fn new(base: &Url, token_file: Option<&Path>) -> Result<Self> {
        let token = match token_file {
            Some(path) => Some(Token::read(path)?),
            None => Token::from_environment()?,
        };
        let client = Client::builder()
            // No proxy and no redirect target may get the token.
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(RESPONSE_TIMEOUT)
            .build()
            .context("cannot create an HTTP client")?;
        Ok(Self {
            client,
            base: base.clone(),
            token,
        })
    }

    /// Reads operations.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Answer> {
        self.read_collection("operations", path, query).await
    }

    /// Reads a collection of the admin API.
    pub(crate) async fn read_collection(
        &self,
        collection: &str,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Answer> {
        let mut url = self.url(collection, path)?;
        for (name, value) in query {
            url.query_pairs_mut().append_pair(name, value);
        }
        self.send(self.client.request(Method::GET, url)).await
    }

    /// Sends a decision about an operation.
    pub(crate) async fn post(
        &self,
        id: OperationId,
        verb: &str,
        decision: &impl Serialize,
    ) -> Result<Answer> {
        let path = [&*id.to_string(), verb];
        let check = format!("semel operations show {id}");
        self.post_to("operations", &path, decision, &check).await
    }

    /// Sends a decision. `check` is the command that shows whether it was applied.
    pub(crate) async fn post_to(
        &self,
        collection: &str,
        path: &[&str],
        decision: &impl Serialize,
        check: &str,
    ) -> Result<Answer> {
        let url = self.url(collection, path)?;
        let request = self.client.request(Method::POST, url);
        let response = self.send(request.json(decision)).await;
        response.map_err(|error| match error.downcast::<Unanswered>() {
            Ok(unanswered) => anyhow!(
                "{unanswered}\nThe decision may have been applied. Check before you repeat it: {check}"
            ),
            Err(error) => error,
        })
    }

    fn url(&self, collection: &str, path: &[&str]) -> Result<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| {
                anyhow!(
                    "{} cannot be used as the URL of an admin listener",
                    self.base
                )
            })?
            .pop_if_empty()
            .extend(["api", "v1", collection])
            .extend(path);
        Ok(url)
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Answer> {
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.header.clone());
        }
        let mut response = request
            .send()
            .await
            .map_err(|error| self.no_response(&error))?;
        let status = response.status();
        let header = |name| response.headers().get(name);
        let kind = header(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next());
        let kind = kind.unwrap_or_default().trim().to_ascii_lowercase();
        let now = header(DATE).and_then(|date| date.to_str().ok());
        let now = now.and_then(text::date);
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.no_response(&error))?
        {
            if body.len() + chunk.len() > MAX_RESPONSE {
                bail!(
                    "the response of {} has more than {MAX_RESPONSE} bytes",
                    self.base
                );
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() && kind == "application/json" {
            let text = String::from_utf8(body)
                .map_err(|_| not_an_admin_listener(&self.base, "its response is not UTF-8"))?;
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
        // These get a message of their own below, which names the source of the token.
        let access_codes = [
            "admin_unauthenticated",
            "admin_not_local",
            "admin_body_too_large",
        ];
        let problem = problem.filter(|problem| {
            problem.code.starts_with("admin_") && !access_codes.contains(&&*problem.code)
        });
        if let Some(problem) = problem {
            let detail = text::line(&problem.detail);
            let code = text::line(&problem.code);
            return match &*problem.code {
                "admin_operation_not_found" => {
                    anyhow!("{base} has no operation with this id\n{detail} ({code})")
                }
                "admin_store_unavailable" => Unanswered(format!(
                    "the gateway runs, but its store failed: {detail} ({code})"
                ))
                .into(),
                _ => anyhow!("{detail} ({code})"),
            };
        }
        match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => anyhow!(
                "the admin listener at {base} requires a token: set SEMEL_ADMIN_TOKEN or --token-file"
            ),
            (StatusCode::UNAUTHORIZED, Some(token)) => anyhow!(
                "the admin listener at {base} refused the token from {}: the gateway was started with \
                 another one",
                token.from
            ),
            (StatusCode::FORBIDDEN, _) => anyhow!(
                "the admin listener at {base} has no token and therefore serves only its own machine: \
                 run this command there, or start the gateway with SEMEL_ADMIN_TOKEN"
            ),
            (StatusCode::PAYLOAD_TOO_LARGE, _) => {
                anyhow!("the decision is larger than 2 MiB, the maximum of the gateway")
            }
            (status, _) => {
                not_an_admin_listener(base, &format!("it responded with {}", status.as_u16()))
            }
        }
    }

    /// The error of a request without a response.
    fn no_response(&self, error: &reqwest::Error) -> anyhow::Error {
        let base = &self.base;
        let cause = text::line(&root_cause(error).to_string());
        if error.is_connect() {
            return anyhow!(
                "cannot connect to {base}: {cause}\nIs the gateway running? Set the URL of its admin \
                 listener with --admin URL or SEMEL_ADMIN."
            );
        }
        if error.is_timeout() {
            let seconds = RESPONSE_TIMEOUT.as_secs();
            return Unanswered(format!("{base} did not respond within {seconds} seconds")).into();
        }
        Unanswered(format!("the connection to {base} broke: {cause}")).into()
    }
}

/// A request without a response: it may have been processed.
#[derive(Debug)]
struct Unanswered(String);

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unanswered {}

/// Another server is at that address.
fn not_an_admin_listener(base: &Url, seen: &str) -> anyhow::Error {
    let seen = text::line(seen);
    anyhow!(
        "{base} is not the admin listener of a Semel gateway: {seen}\n\
         The gateway prints its URL as \"listening admin\"; set it with --admin URL or SEMEL_ADMIN."
    )
}

fn root_cause(error: &dyn std::error::Error) -> &dyn std::error::Error {
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

    /// An empty variable counts as unset.
    fn from_environment() -> Result<Option<Self>> {
        match std::env::var("SEMEL_ADMIN_TOKEN") {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Self::new(&text, "SEMEL_ADMIN_TOKEN".to_owned()).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => bail!("SEMEL_ADMIN_TOKEN is not UTF-8"),
        }
    }

    /// Validates the token like the gateway. The error never contains it.
    fn new(text: &str, from: String) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("the token from {from} is empty or has characters that are invalid in a header");
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}"))
            .map_err(|_| anyhow!("the token from {from} cannot be sent"))?;
        header.set_sensitive(true);
        Ok(Self { header, from })
    }
}
