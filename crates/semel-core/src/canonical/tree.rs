//! The parsed body: one flat list of nodes in document order, over the borrowed text.
//!
//! A tree of boxes would cost an allocation per object and array; a list costs a few in
//! all, which is most of the speed.

use std::cmp::Ordering;

/// A parsed body. Node 0 is the root.
pub(crate) struct Tree<'a> {
    pub(super) text: &'a [u8],
    /// Strings that had escapes, resolved; and what the rules of a route put in.
    pub(super) arena: Vec<u8>,
    pub(super) nodes: Vec<Node>,
    /// For every object the number of its members, then their name nodes, sorted.
    pub(super) order: Vec<u32>,
}

/// Before each resolved string the arena holds where in the body it came from.
pub(super) const ORIGIN: usize = 4;

/// One value or member name; a member's value is the node after its name.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Left out when written.
    pub(super) removed: bool,
    /// Number, Plain: in the text. Escaped, Verbatim: in the arena. Object: in the order.
    pub(super) start: u32,
    /// Scalars: end of that range. Array, Object: the node after the whole value.
    pub(super) end: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    True,
    False,
    /// The lexeme as it was sent: nothing is lost before the guards have looked.
    Number,
    /// A string without escapes, borrowed.
    Plain,
    /// A string with its escapes resolved.
    Escaped,
    /// Canonical bytes to be copied as they are.
    Verbatim,
    Array,
    Object,
}

/// A value at a JSON pointer, as the rules of a route need to see it.
#[derive(Clone, Copy)]
pub(crate) enum Child<'t> {
    Text(&'t [u8]),
    Number(&'t [u8]),
    Other,
}

impl Node {
    pub(super) fn new(kind: Kind, start: usize, end: usize) -> Self {
        Self {
            kind,
            removed: false,
            start: narrow(start),
            end: narrow(end),
        }
    }
}

/// Every position is below twice [`super::MAX_BODY`], which the parser checks first.
pub(super) fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

impl Tree<'_> {
    /// The node at the end of `tokens`, unless it is absent or removed.
    pub(crate) fn find(&self, tokens: &[Box<str>]) -> Option<usize> {
        let mut at = 0;
        for token in tokens {
            at = self.child(at, token)?;
        }
        (!self.nodes[at].removed).then_some(at)
    }

    /// What stands at a node.
    pub(crate) fn look(&self, node: usize) -> Child<'_> {
        match self.nodes[node].kind {
            Kind::Plain | Kind::Escaped => Child::Text(self.string(node)),
            Kind::Number => Child::Number(self.lexeme(node)),
            Kind::Null | Kind::True | Kind::False | Kind::Verbatim | Kind::Array | Kind::Object => {
                Child::Other
            }
        }
    }

    pub(crate) fn is_object(&self, node: usize) -> bool {
        self.nodes[node].kind == Kind::Object
    }

    /// Leaves a value out when the tree is written.
    pub(crate) fn remove(&mut self, node: usize) {
        self.nodes[node].removed = true;
    }

    /// Leaves out everything that is neither at one of these places, nor inside of one, nor on the
    /// way to one.
    pub(crate) fn keep_only(&mut self, places: &[&[Box<str>]]) {
        self.keep_below(0, places);
    }

    /// As [`keep_only`](Self::keep_only), from a node on. Calls itself at most as often as the
    /// longest place has tokens.
    fn keep_below(&mut self, node: usize, places: &[&[Box<str>]]) {
        if places.iter().any(|place| place.is_empty()) {
            return;
        }
        let places = places.iter().filter_map(|place| place.split_first());
        let children: Vec<(usize, Vec<&[Box<str>]>)> = match self.nodes[node].kind {
            Kind::Object => {
                let below = |name: &[u8]| {
                    let leads = places.clone().filter(|(first, _)| first.as_bytes() == name);
                    leads.map(|(_, rest)| rest).collect()
                };
                let names = self.members(node).iter().map(|&name| name as usize);
                names
                    .map(|name| (name + 1, below(self.string(name))))
                    .collect()
            }
            Kind::Array => {
                let places: Vec<_> = places.map(|(first, rest)| (index(first), rest)).collect();
                let below = |at: usize| {
                    let leads = places.iter().filter(|(first, _)| *first == Some(at));
                    leads.map(|(_, rest)| *rest).collect()
                };
                let elements = self.elements(node).enumerate();
                elements.map(|(at, element)| (element, below(at))).collect()
            }
            // A scalar on the way to a place: a body that has it differs from one that does not.
            Kind::Null
            | Kind::True
            | Kind::False
            | Kind::Number
            | Kind::Plain
            | Kind::Escaped
            | Kind::Verbatim => return,
        };
        for (child, below) in children {
            if below.is_empty() {
                self.remove(child);
            } else {
                self.keep_below(child, &below);
            }
        }
    }

    /// Replaces a scalar by canonical bytes.
    pub(crate) fn replace(&mut self, node: usize, canonical: &[u8]) {
        self.nodes[node] = self.verbatim(canonical);
    }

    /// Puts a member into an object, unless one of that name is there. A removed member
    /// counts as absent.
    pub(crate) fn insert(&mut self, object: usize, name: &str, canonical: &[u8]) {
        let list = self.members(object);
        let place = list.binary_search_by(|&at| compare(self.string(at as usize), name.as_bytes()));
        if let Ok(found) = place {
            let value = list[found] as usize + 1;
            if self.nodes[value].removed {
                self.nodes[value] = self.verbatim(canonical);
            }
            return;
        }
        let (Ok(place) | Err(place)) = place;
        let start = self.detach(object);
        self.order
            .insert(start + 1 + place, narrow(self.nodes.len()));
        self.order[start] += 1;
        self.arena.extend([0; ORIGIN]);
        let from = self.arena.len();
        self.arena.extend(name.as_bytes());
        self.nodes
            .push(Node::new(Kind::Escaped, from, self.arena.len()));
        let value = self.verbatim(canonical);
        self.nodes.push(value);
    }

    /// Moves an object's list to the end of the order, where it can grow; the rules insert
    /// object by object, so each list moves once.
    fn detach(&mut self, object: usize) -> usize {
        let start = self.nodes[object].start as usize;
        let end = start + 1 + self.members(object).len();
        if end == self.order.len() {
            return start;
        }
        let moved = self.order.len();
        self.order.extend_from_within(start..end);
        self.nodes[object].start = narrow(moved);
        moved
    }

    fn verbatim(&mut self, canonical: &[u8]) -> Node {
        let from = self.arena.len();
        self.arena.extend(canonical);
        Node::new(Kind::Verbatim, from, self.arena.len())
    }

    fn child(&self, node: usize, token: &str) -> Option<usize> {
        if self.nodes[node].removed {
            return None;
        }
        match self.nodes[node].kind {
            Kind::Object => {
                let list = self.members(node);
                let place = list
                    .binary_search_by(|&at| compare(self.string(at as usize), token.as_bytes()));
                place.ok().map(|found| list[found] as usize + 1)
            }
            Kind::Array => self.elements(node).nth(index(token)?),
            Kind::Null
            | Kind::True
            | Kind::False
            | Kind::Number
            | Kind::Plain
            | Kind::Escaped
            | Kind::Verbatim => None,
        }
    }

    /// The name nodes of an object, sorted.
    pub(super) fn members(&self, object: usize) -> &[u32] {
        let start = self.nodes[object].start as usize;
        let count = self.order[start] as usize;
        &self.order[start + 1..=start + count]
    }

    /// The element nodes of an array, removed ones too.
    pub(super) fn elements(&self, array: usize) -> impl Iterator<Item = usize> {
        let end = self.nodes[array].end as usize;
        let first = (array + 1 < end).then_some(array + 1);
        std::iter::successors(first, move |&at| {
            let next = self.next(at);
            (next < end).then_some(next)
        })
    }

    /// The node after the whole value at `node`.
    fn next(&self, node: usize) -> usize {
        match self.nodes[node].kind {
            Kind::Array | Kind::Object => self.nodes[node].end as usize,
            Kind::Null
            | Kind::True
            | Kind::False
            | Kind::Number
            | Kind::Plain
            | Kind::Escaped
            | Kind::Verbatim => node + 1,
        }
    }

    pub(super) fn lexeme(&self, node: usize) -> &[u8] {
        let Node { start, end, .. } = self.nodes[node];
        &self.text[start as usize..end as usize]
    }

    /// A string or name with its escapes resolved, or bytes of the arena.
    pub(super) fn string(&self, node: usize) -> &[u8] {
        string(self.text, &self.arena, self.nodes[node])
    }
}

pub(super) fn string<'t>(text: &'t [u8], arena: &'t [u8], node: Node) -> &'t [u8] {
    let range = node.start as usize..node.end as usize;
    if node.kind == Kind::Plain {
        &text[range]
    } else {
        &arena[range]
    }
}

/// The order of RFC 8785: by UTF-16 code units, found from UTF-8 without decoding.
///
/// The two orders differ in one place only: a character beyond U+FFFF (lead byte 0xF0 and
/// up) is a surrogate pair in UTF-16, and so stands *before* U+E000–U+FFFF (lead bytes 0xEE
/// and 0xEF).
pub(crate) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let rank = |byte: u8| {
        if byte & 0xFE == 0xEE {
            byte | 0x10
        } else {
            byte
        }
    };
    match a.iter().zip(b).find(|(x, y)| x != y) {
        Some((&x, &y)) => rank(x).cmp(&rank(y)),
        None => a.len().cmp(&b.len()),
    }
}

/// An array index as RFC 6901 writes it: no sign, no leading zero.
fn index(token: &str) -> Option<usize> {
    let plain = token.bytes().all(|byte| byte.is_ascii_digit());
    let padded = token.len() > 1 && token.starts_with('0');
    if plain && !padded {
        token.parse().ok()
    } else {
        None
    }
}
