//! A `serde` serialiser that writes a command as sorted JSON without any loss.
//!
//! `serde_json` is not used: it writes NaN as `null`, and keeps the last of two members of one
//! name. Beyond JSON there are two forms, for values that JSON cannot tell apart: `!null` is
//! `Some(None)`, and `…e0` is a float so large that its shortest form may look like another
//! integer.

mod name;

use serde::ser::{self, Serialize};

use super::Error;
use crate::canonical::{MAX_DEPTH, compare, write_string};

/// The largest magnitude below which a float that looks like an integer is that integer.
const EXACT_FLOATS: f64 = 9_007_199_254_740_992.0;

pub(super) fn write<T: Serialize + ?Sized>(command: &T) -> Result<Vec<u8>, Error> {
    let mut writer = Writer {
        out: Vec::with_capacity(256),
        depth: 0,
    };
    command.serialize(&mut writer)?;
    Ok(writer.out)
}

struct Writer {
    out: Vec<u8>,
    depth: usize,
}

impl Writer {
    fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(Error::TooDeep)
        } else {
            Ok(())
        }
    }

    fn nested<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.enter()?;
        value.serialize(&mut *self)?;
        self.depth -= 1;
        Ok(())
    }

    fn integer(&mut self, integer: impl itoa::Integer) {
        self.out
            .extend_from_slice(itoa::Buffer::new().format(integer).as_bytes());
    }

    /// Opens `{"variant":`.
    fn variant(&mut self, variant: &str) {
        self.out.push(b'{');
        write_string(variant.as_bytes(), &mut self.out);
        self.out.push(b':');
    }

    fn list(&mut self, close: &'static [u8]) -> Result<List<'_>, Error> {
        self.enter()?;
        self.out.push(b'[');
        Ok(List {
            writer: self,
            first: true,
            close,
        })
    }

    fn members(&mut self, close: &'static [u8]) -> Result<Members<'_>, Error> {
        self.enter()?;
        let start = self.out.len();
        Ok(Members {
            writer: self,
            start,
            ends: Vec::new(),
            name: None,
            close,
        })
    }
}

macro_rules! integers {
    ($($method:ident: $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<(), Error> {
            self.integer(value);
            Ok(())
        }
    )*};
}

impl<'w> ser::Serializer for &'w mut Writer {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = List<'w>;
    type SerializeTuple = List<'w>;
    type SerializeTupleStruct = List<'w>;
    type SerializeTupleVariant = List<'w>;
    type SerializeMap = Members<'w>;
    type SerializeStruct = Members<'w>;
    type SerializeStructVariant = Members<'w>;

    integers!(
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_u128: u128
    );

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.out
            .extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        if !value.is_finite() {
            return Err(Error::NonFinite);
        }
        if value == 0.0 && value.is_sign_negative() {
            self.out.push(b'-');
        }
        let mut buffer = ryu_js::Buffer::new();
        let printed = buffer.format_finite(value);
        self.out.extend_from_slice(printed.as_bytes());
        if value.abs() >= EXACT_FLOATS && !printed.contains('e') {
            self.out.extend_from_slice(b"e0");
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        write_string(value.as_bytes(), &mut self.out);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        let start = self.out.len();
        self.nested(value)?;
        // "Set it to nothing" is not "leave it alone".
        if matches!(&self.out[start..], b"null" | [b'!', ..]) {
            self.out.insert(start, b'!');
        }
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.nested(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.variant(variant);
        self.nested(value)?;
        self.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List<'w>, Error> {
        self.list(b"]")
    }

    fn serialize_tuple(self, _: usize) -> Result<List<'w>, Error> {
        self.list(b"]")
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List<'w>, Error> {
        self.list(b"]")
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List<'w>, Error> {
        self.variant(variant);
        self.list(b"]}")
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'w>, Error> {
        self.members(b"}")
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'w>, Error> {
        self.members(b"}")
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members<'w>, Error> {
        self.variant(variant);
        self.members(b"}}")
    }
}

/// An array that is being written.
struct List<'w> {
    writer: &'w mut Writer,
    first: bool,
    close: &'static [u8],
}

impl List<'_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if !std::mem::take(&mut self.first) {
            self.writer.out.push(b',');
        }
        value.serialize(&mut *self.writer)
    }

    fn close(self) {
        self.writer.depth -= 1;
        self.writer.out.extend_from_slice(self.close);
    }
}

macro_rules! lists {
    ($($interface:ident: $method:ident),*) => {$(
        impl ser::$interface for List<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.element(value)
            }

            fn end(self) -> Result<(), Error> {
                self.close();
                Ok(())
            }
        }
    )*};
}

lists!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

/// An object that is being written: its values as they come, one after the other, to be put
/// in order at the end.
struct Members<'w> {
    writer: &'w mut Writer,
    start: usize,
    /// Names, and where their values end.
    ends: Vec<(String, usize)>,
    /// A map's key, until its value comes.
    name: Option<String>,
    close: &'static [u8],
}

impl Members<'_> {
    fn member<T: Serialize + ?Sized>(&mut self, name: String, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.writer)?;
        self.ends.push((name, self.writer.out.len()));
        Ok(())
    }

    fn close(self) -> Result<(), Error> {
        let mut from = self.start;
        let mut members: Vec<_> = self
            .ends
            .iter()
            .map(|(name, end)| (name, std::mem::replace(&mut from, *end)..*end))
            .collect();
        members.sort_unstable_by(|a, b| compare(a.0.as_bytes(), b.0.as_bytes()));
        if let Some(pair) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::DuplicateName(pair[0].0.clone()));
        }
        let mut sorted = Vec::with_capacity(self.writer.out.len() - self.start);
        for (name, value) in members {
            sorted.push(if sorted.is_empty() { b'{' } else { b',' });
            write_string(name.as_bytes(), &mut sorted);
            sorted.push(b':');
            sorted.extend_from_slice(&self.writer.out[value]);
        }
        if sorted.is_empty() {
            sorted.push(b'{');
        }
        self.writer.out.truncate(self.start);
        self.writer.out.extend_from_slice(&sorted);
        self.writer.out.extend_from_slice(self.close);
        self.writer.depth -= 1;
        Ok(())
    }
}

impl ser::SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.name = Some(key.serialize(name::Name)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let Some(name) = self.name.take() else {
            return Err(Error::Command(
                "a map value came without its key".to_owned(),
            ));
        };
        self.member(name, value)
    }

    fn end(self) -> Result<(), Error> {
        self.close()
    }
}

macro_rules! structs {
    ($($interface:ident),*) => {$(
        impl ser::$interface for Members<'_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Error> {
                self.member(name.to_owned(), value)
            }

            fn end(self) -> Result<(), Error> {
                self.close()
            }
        }
    )*};
}

structs!(SerializeStruct, SerializeStructVariant);

impl ser::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Command(message.to_string())
    }
}
