//! `semel operations list`.

use anyhow::{Result, bail};

use super::admin::{Admin, Answer};
use super::answers::{Page, RawPage, Summary};
use super::layout::{self, Table};
use super::text;
use super::{note, print};

/// List operations, newest first.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Filter by status
    #[arg(long, value_parser = ["in_progress", "completed", "failed_retryable", "unknown", "expired"])]
    status: Option<String>,

    /// Filter by tenant (exact)
    #[arg(long)]
    tenant: Option<String>,

    /// Filter by operation, such as `create_payment`
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,

    /// Filter by key (exact)
    #[arg(long)]
    key: Option<String>,

    /// Only dead letters; =false for all others
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    dead_lettered: Option<bool>,

    /// Page size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: Option<u16>,

    /// Start after this cursor, which the previous page printed
    #[arg(long)]
    cursor: Option<String>,

    /// Fetch all pages
    #[arg(long)]
    all: bool,
}

pub(super) async fn run(admin: &Admin, args: &Args, json: bool) -> Result<()> {
    match (json, args.all) {
        (true, false) => {
            let answer = args.page(admin, args.cursor.as_deref()).await?;
            answer.read::<RawPage>()?;
            print(&text::document(&answer.text))
        }
        (true, true) => merge(admin, args).await,
        (false, _) => table(admin, args).await,
    }
}

impl Args {
    async fn page(&self, admin: &Admin, cursor: Option<&str>) -> Result<Answer> {
        let limit = self.limit.map(|limit| limit.to_string());
        let dead_lettered = self.dead_lettered.map(|wanted| wanted.to_string());
        let filters = [
            ("status", self.status.as_deref()),
            ("tenant", self.tenant.as_deref()),
            ("operation", self.operation.as_deref()),
            ("key", self.key.as_deref()),
            ("dead_lettered", dead_lettered.as_deref()),
            ("limit", limit.as_deref()),
            ("cursor", cursor),
        ];
        let given: Vec<_> = filters
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        admin.get(&[], &given).await
    }
}

/// The cursor of the next page. A cursor that does not advance would loop forever.
fn next_cursor(current: Option<&str>, next: Option<String>) -> Result<Option<String>> {
    if next.is_some() && next.as_deref() == current {
        bail!("the gateway returned the same cursor again; stopped to avoid an endless loop");
    }
    Ok(next)
}

/// Prints one document page by page, to hold one page in memory. If a page fails, the document is
/// incomplete and the exit code is 1.
async fn merge(admin: &Admin, args: &Args) -> Result<()> {
    let mut cursor = args.cursor.clone();
    let mut separator = "{\"operations\":[";
    loop {
        let answer = args.page(admin, cursor.as_deref()).await?;
        let page: RawPage = answer.read()?;
        let mut text = String::new();
        for operation in &page.operations {
            text.push_str(separator);
            text.push_str(text::document(operation.get()).trim_end());
            separator = ",";
        }
        cursor = next_cursor(cursor.as_deref(), page.next)?;
        if cursor.is_none() {
            if separator != "," {
                text.push_str(separator);
            }
            text.push_str("],\"next\":null}\n");
            return print(&text);
        }
        print(&text)?;
    }
}

async fn table(admin: &Admin, args: &Args) -> Result<()> {
    let mut table = OperationTable::new(layout::width());
    let mut cursor = args.cursor.clone();
    loop {
        let answer = args.page(admin, cursor.as_deref()).await?;
        let page: Page = answer.read()?;
        print(&table.page(&page.operations, &answer))?;
        let next = next_cursor(cursor.as_deref(), page.next)?;
        match next {
            Some(next) if args.all => cursor = Some(next),
            next => {
                table.print_notes(next.as_deref());
                return Ok(());
            }
        }
    }
}

/// Longer names are cut even if there is room; `show` prints them in full.
const MAX_OPERATION: usize = 40;
const MAX_TENANT: usize = 14;
const MAX_KEY: usize = 48;

const FIRST: [&str; 4] = ["ID", "STATUS", "ATTEMPT", "AGE"];
const SECOND: [&str; 4] = ["OPERATION", "TENANT", "KEY", "LAST ERROR"];
const ALL: [&str; 8] = [
    "ID",
    "STATUS",
    "OPERATION",
    "TENANT",
    "KEY",
    "ATTEMPT",
    "AGE",
    "LAST ERROR",
];

/// One line per operation, or two if the terminal is too narrow.
struct OperationTable {
    single: Table,
    first: Table,
    second: Table,
    width: Option<usize>,
    rows: usize,
    dead_letters: bool,
}

impl OperationTable {
    fn new(width: Option<usize>) -> Self {
        Self {
            single: Table::new(&ALL, &[false, false, true, true, true, false, false, true]),
            first: Table::new(&FIRST, &[false; 4]),
            second: Table::new(&SECOND, &[true; 4]),
            width,
            rows: 0,
            dead_letters: false,
        }
    }

    fn page(&mut self, operations: &[Summary], answer: &Answer) -> String {
        let cells = |found: &Summary| row(found, answer);
        let rows: Vec<[String; 8]> = operations.iter().map(cells).collect();
        let single: Vec<Vec<String>> = rows.iter().map(|row| row.to_vec()).collect();
        let split = |chosen: [usize; 4]| -> Vec<Vec<String>> {
            let pick = |row: &[String; 8]| chosen.map(|cell| row[cell].clone()).to_vec();
            rows.iter().map(pick).collect()
        };
        let (first, second) = (split([0, 1, 5, 6]), split([2, 3, 4, 7]));
        self.single.measure(&single);
        self.first.measure(&first);
        self.second.measure(&second);
        let one_line = self.width.is_none_or(|width| self.single.fit(width));
        if let Some(width) = self.width {
            // If even this does not fit, the terminal wraps the lines.
            self.second.fit(width.saturating_sub(INDENT.len()));
        }
        let with_head = self.rows == 0 && !operations.is_empty();
        self.rows += operations.len();
        self.dead_letters |= operations.iter().any(is_dead_letter);
        let mut text = String::new();
        if one_line {
            text.extend(with_head.then(|| self.single.head()));
            text.extend(single.iter().map(|row| self.single.row(row)));
        } else {
            text.extend(with_head.then(|| self.first.head() + INDENT + &self.second.head()));
            text.extend(
                first.iter().zip(&second).map(|(first, second)| {
                    self.first.row(first) + INDENT + &self.second.row(second)
                }),
            );
        }
        text
    }

    fn print_notes(&self, next: Option<&str>) {
        if self.rows == 0 {
            note("no operation matches");
        }
        if self.dead_letters {
            note("* dead letter: waits for an operator; see semel operations show ID");
        }
        if let Some(next) = next {
            let next = text::line(next);
            note(&format!(
                "more results: repeat with --cursor {next}, or use --all"
            ));
        }
    }
}

/// Before the second line of an operation.
const INDENT: &str = "  ";

fn is_dead_letter(found: &Summary) -> bool {
    found.dead_lettered_at.is_some()
}

fn row(found: &Summary, answer: &Answer) -> [String; 8] {
    let mark = if is_dead_letter(found) { "*" } else { "" };
    let short = |text: &str, most| text::cut(&text::line(text), most);
    [
        text::line(&found.id),
        format!("{}{mark}", text::line(&found.status)),
        short(&found.operation, MAX_OPERATION),
        short(&found.tenant, MAX_TENANT),
        short(&found.key, MAX_KEY),
        found.attempt.to_string(),
        text::age(&found.created_at, answer.now),
        found
            .last_error
            .as_deref()
            .map(text::line)
            .unwrap_or_default(),
    ]
}
