//! The writer of RFC 8785.

use super::tree::{Kind, Tree};
use super::{NotIJson, number};

/// What happens to a number that a double cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// It is rounded, as RFC 8785 says.
    Rounded,
    /// It is refused.
    Exact,
}

/// Appends the canonical form of a tree.
pub(crate) fn write(tree: &Tree<'_>, numbers: Numbers, out: &mut Vec<u8>) -> Result<(), NotIJson> {
    Writer {
        tree,
        exact: numbers == Numbers::Exact,
        out,
    }
    .value(0)
}

/// Appends a string with its quotes, escaped as RFC 8785 says.
pub(crate) fn write_string(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut copied = 0;
    for (at, &byte) in text.iter().enumerate() {
        let letter = match byte {
            b'"' | b'\\' => byte,
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0C => b'f',
            b'\r' => b'r',
            0..0x20 => b'u',
            0x20.. => continue,
        };
        out.extend_from_slice(&text[copied..at]);
        out.extend_from_slice(&[b'\\', letter]);
        if letter == b'u' {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            out.extend_from_slice(&[b'0', b'0', HEX[high], HEX[low]]);
        }
        copied = at + 1;
    }
    out.extend_from_slice(&text[copied..]);
    out.push(b'"');
}

struct Writer<'t> {
    tree: &'t Tree<'t>,
    exact: bool,
    out: &'t mut Vec<u8>,
}

impl Writer<'_> {
    /// Recurses no deeper than the parser, which counts.
    fn value(&mut self, node: usize) -> Result<(), NotIJson> {
        match self.tree.nodes[node].kind {
            Kind::Null => self.out.extend_from_slice(b"null"),
            Kind::True => self.out.extend_from_slice(b"true"),
            Kind::False => self.out.extend_from_slice(b"false"),
            Kind::Number => self.number(node)?,
            Kind::Plain | Kind::Escaped => self.string(node),
            Kind::Verbatim => self.out.extend_from_slice(self.tree.string(node)),
            Kind::Array => self.array(node)?,
            Kind::Object => self.object(node)?,
        }
        Ok(())
    }

    fn number(&mut self, node: usize) -> Result<(), NotIJson> {
        let offset = self.tree.nodes[node].start as usize;
        number::write(self.tree.lexeme(node), self.exact, self.out)
            .map_err(|reason| NotIJson::new(offset, reason))
    }

    fn string(&mut self, node: usize) {
        let text = self.tree.string(node);
        if self.tree.nodes[node].kind == Kind::Escaped {
            write_string(text, self.out);
        } else {
            // What needed no escape in the body needs none here.
            self.out.push(b'"');
            self.out.extend_from_slice(text);
            self.out.push(b'"');
        }
    }

    fn array(&mut self, node: usize) -> Result<(), NotIJson> {
        let tree = self.tree;
        self.out.push(b'[');
        let mut first = true;
        for element in tree.elements(node).filter(|&at| !tree.nodes[at].removed) {
            self.comma(&mut first);
            self.value(element)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, node: usize) -> Result<(), NotIJson> {
        let tree = self.tree;
        self.out.push(b'{');
        let mut first = true;
        for &name in tree.members(node) {
            let name = name as usize;
            if tree.nodes[name + 1].removed {
                continue;
            }
            self.comma(&mut first);
            self.string(name);
            self.out.push(b':');
            self.value(name + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn comma(&mut self, first: &mut bool) {
        if !std::mem::take(first) {
            self.out.push(b',');
        }
    }
}
