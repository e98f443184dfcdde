//! A strict RFC 8259 parser. It stops at the first byte that is wrong, so that a hostile
//! body costs no more than what it took to see that.

use super::tree::{Kind, Node, ORIGIN, Tree, compare, narrow, string};
use super::{MAX_BODY, MAX_DEPTH, NotIJson, Reason, excerpt};

/// Room for the nodes of a usual body; larger ones grow as they prove to be real.
const MAX_FIRST_NODES: usize = 1 << 12;

/// Parses a whole body. Names are unique and sorted afterwards; numbers are only
/// checked for their grammar.
pub(crate) fn parse(text: &[u8]) -> Result<Tree<'_>, NotIJson> {
    if text.len() > MAX_BODY {
        return Err(NotIJson::new(MAX_BODY, Reason::TooLarge));
    }
    if text.starts_with(b"\xEF\xBB\xBF") {
        return Err(NotIJson::new(0, Reason::ByteOrderMark));
    }
    let room = (text.len() / 8 + 1).min(MAX_FIRST_NODES);
    let tree = Tree {
        text,
        arena: Vec::new(),
        nodes: Vec::with_capacity(room),
        order: Vec::with_capacity(room / 2),
    };
    let mut parser = Parser {
        tree,
        at: 0,
        names: Vec::with_capacity(16),
    };
    parser.blanks();
    parser.value(0)?;
    parser.blanks();
    match parser.peek() {
        None => Ok(parser.tree),
        Some(_) => Err(parser.unexpected("the end of the body")),
    }
}

struct Parser<'a> {
    tree: Tree<'a>,
    at: usize,
    /// Name nodes of the objects that are open, innermost last.
    names: Vec<u32>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.tree.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn fail<T>(&self, reason: Reason) -> Result<T, NotIJson> {
        Err(NotIJson::new(self.at, reason))
    }

    fn unexpected(&self, expected: &'static str) -> NotIJson {
        let reason = match self.peek() {
            Some(found) => Reason::Unexpected { found, expected },
            None => Reason::UnexpectedEnd,
        };
        NotIJson::new(self.at, reason)
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        self.tree.nodes.push(Node::new(kind, start, end));
    }

    fn value(&mut self, depth: usize) -> Result<(), NotIJson> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b't') => self.literal(b"true", Kind::True),
            Some(b'f') => self.literal(b"false", Kind::False),
            Some(b'n') => self.literal(b"null", Kind::Null),
            Some(_) | None => Err(self.unexpected("a value")),
        }
    }

    fn literal(&mut self, word: &'static [u8], kind: Kind) -> Result<(), NotIJson> {
        for &byte in word {
            if self.peek() != Some(byte) {
                return Err(self.unexpected("true, false or null"));
            }
            self.at += 1;
        }
        self.push(kind, 0, 0);
        Ok(())
    }

    fn number(&mut self) -> Result<(), NotIJson> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        self.push(Kind::Number, start, self.at);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), NotIJson> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start {
            Err(self.unexpected("a digit"))
        } else {
            Ok(())
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), NotIJson> {
        let node = self.open(Kind::Array, depth)?;
        if self.peek() == Some(b']') {
            self.at += 1;
        } else {
            loop {
                self.value(depth)?;
                if !self.more(b']', "`,` or `]`")? {
                    break;
                }
            }
        }
        self.tree.nodes[node].end = narrow(self.tree.nodes.len());
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<(), NotIJson> {
        let node = self.open(Kind::Object, depth)?;
        let outer = self.names.len();
        if self.peek() == Some(b'}') {
            self.at += 1;
        } else {
            loop {
                self.member(depth)?;
                if !self.more(b'}', "`,` or `}`")? {
                    break;
                }
            }
        }
        self.close(node, outer)
    }

    fn member(&mut self, depth: usize) -> Result<(), NotIJson> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a member name"));
        }
        self.names.push(narrow(self.tree.nodes.len()));
        self.string()?;
        self.blanks();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("`:`"));
        }
        self.at += 1;
        self.blanks();
        self.value(depth)
    }

    /// Enters an array or object.
    fn open(&mut self, kind: Kind, depth: usize) -> Result<usize, NotIJson> {
        if depth > MAX_DEPTH {
            return self.fail(Reason::TooDeep);
        }
        self.at += 1;
        self.blanks();
        self.push(kind, 0, 0);
        Ok(self.tree.nodes.len() - 1)
    }

    /// After an element: whether another one follows.
    fn more(&mut self, close: u8, expected: &'static str) -> Result<bool, NotIJson> {
        self.blanks();
        let Some(found) = self.peek().filter(|&byte| byte == close || byte == b',') else {
            return Err(self.unexpected(expected));
        };
        self.at += 1;
        self.blanks();
        Ok(found == b',')
    }

    /// Sorts the names of a finished object, and refuses a name that is there twice.
    fn close(&mut self, node: usize, outer: usize) -> Result<(), NotIJson> {
        let Tree {
            text,
            arena,
            nodes,
            order,
        } = &mut self.tree;
        let name = |at: u32| string(text, arena, nodes[at as usize]);
        let names = &mut self.names[outer..];
        names.sort_unstable_by(|&a, &b| compare(name(a), name(b)));
        let twice = names.windows(2).find(|pair| name(pair[0]) == name(pair[1]));
        if let Some(pair) = twice {
            let second = nodes[pair[0].max(pair[1]) as usize];
            let shown = excerpt_text(string(text, arena, second));
            return Err(NotIJson::new(
                origin(arena, second),
                Reason::DuplicateName(shown),
            ));
        }
        nodes[node].start = narrow(order.len());
        nodes[node].end = narrow(nodes.len());
        order.push(narrow(names.len()));
        order.extend_from_slice(names);
        self.names.truncate(outer);
        Ok(())
    }

    fn string(&mut self) -> Result<(), NotIJson> {
        let start = self.at + 1;
        let (length, ascii) = run(&self.tree.text[start..]);
        self.at = start + length;
        match self.peek() {
            Some(b'"') => {
                if !ascii {
                    self.utf8(start)?;
                }
                self.push(Kind::Plain, start, self.at);
                self.at += 1;
                Ok(())
            }
            Some(b'\\') => self.escaped(start),
            Some(control) => self.fail(Reason::ControlCharacter(control)),
            None => self.fail(Reason::UnexpectedEnd),
        }
    }

    /// Checks the text from `start` to here. Escapes are ASCII, so they do not disturb.
    fn utf8(&self, start: usize) -> Result<(), NotIJson> {
        match std::str::from_utf8(&self.tree.text[start..self.at]) {
            Ok(_) => Ok(()),
            Err(wrong) => Err(NotIJson::new(
                start + wrong.valid_up_to(),
                Reason::InvalidUtf8,
            )),
        }
    }

    /// A string with escapes, from its first `\`: resolved into the arena.
    fn escaped(&mut self, start: usize) -> Result<(), NotIJson> {
        self.tree.arena.extend(narrow(start - 1).to_le_bytes());
        let from = self.tree.arena.len();
        let mut copied = start;
        loop {
            self.tree
                .arena
                .extend_from_slice(&self.tree.text[copied..self.at]);
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(control) => return self.fail(Reason::ControlCharacter(control)),
                None => return self.fail(Reason::UnexpectedEnd),
            }
            copied = self.at;
            self.at += run(&self.tree.text[self.at..]).0;
        }
        self.utf8(start)?;
        self.push(Kind::Escaped, from, self.tree.arena.len());
        self.at += 1;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), NotIJson> {
        let resolved = match self.tree.text.get(self.at + 1).copied() {
            Some(same @ (b'"' | b'\\' | b'/')) => same,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0C,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => return self.unicode(),
            Some(_) => return self.fail(Reason::InvalidEscape),
            None => return Err(NotIJson::new(self.at + 1, Reason::UnexpectedEnd)),
        };
        self.tree.arena.push(resolved);
        self.at += 2;
        Ok(())
    }

    fn unicode(&mut self) -> Result<(), NotIJson> {
        let first = self.unit(self.at)?;
        let (code, length) = match first {
            0xD800..=0xDBFF => match self.unit(self.at + 6) {
                Ok(low @ 0xDC00..=0xDFFF) => {
                    (0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00), 12)
                }
                Ok(_) | Err(_) => return self.fail(Reason::LoneSurrogate),
            },
            _ => (first, 6),
        };
        let Some(character) = char::from_u32(code) else {
            return self.fail(Reason::LoneSurrogate);
        };
        let mut buffer = [0; 4];
        self.tree
            .arena
            .extend(character.encode_utf8(&mut buffer).as_bytes());
        self.at += length;
        Ok(())
    }

    /// The code unit of a `\uXXXX` at `at`.
    fn unit(&self, at: usize) -> Result<u32, NotIJson> {
        let refused = || NotIJson::new(at, Reason::InvalidEscape);
        let Some([b'\\', b'u', digits @ ..]) = self.tree.text.get(at..at + 6) else {
            return Err(refused());
        };
        digits.iter().try_fold(0, |unit, &digit| {
            let value = char::from(digit).to_digit(16).ok_or_else(refused)?;
            Ok(unit << 4 | value)
        })
    }
}

/// How far a string goes on without anything to look at: a quote, a backslash or a
/// control character. Also whether all of it is ASCII (it may say no too often).
fn run(text: &[u8]) -> (usize, bool) {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    let zero_bytes = |word: u64| word.wrapping_sub(ONES) & !word;
    let (words, _) = text.as_chunks::<8>();
    let (mut length, mut seen) = (0, 0);
    for word in words {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let quote = zero_bytes(word ^ (ONES * u64::from(b'"')));
        let backslash = zero_bytes(word ^ (ONES * u64::from(b'\\')));
        seen |= word;
        // A borrow may mark a byte above a true hit, never below: the lowest is right.
        let hits = (control | quote | backslash) & HIGHS;
        if hits != 0 {
            return (
                length + hits.trailing_zeros() as usize / 8,
                seen & HIGHS == 0,
            );
        }
        length += 8;
    }
    while let Some(&byte) = text.get(length) {
        if byte < 0x20 || byte == b'"' || byte == b'\\' {
            break;
        }
        seen |= u64::from(byte);
        length += 1;
    }
    (length, seen & HIGHS == 0)
}

/// Where in the body a string began.
fn origin(arena: &[u8], node: Node) -> usize {
    let start = node.start as usize;
    if node.kind == Kind::Plain {
        return start - 1;
    }
    match arena[..start].last_chunk::<ORIGIN>() {
        Some(bytes) => u32::from_le_bytes(*bytes) as usize,
        None => 0,
    }
}

fn excerpt_text(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if text.chars().count() <= super::MAX_EXCERPT => text.to_owned(),
        Ok(text) => text.chars().take(super::MAX_EXCERPT).chain(['…']).collect(),
        Err(_) => excerpt(name),
    }
}
