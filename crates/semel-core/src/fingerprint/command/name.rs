//! Map keys: what can be a member name, and what cannot.

use serde::ser::{Impossible, Serialize, Serializer};

use super::super::Error;

/// Turns a map key into a member name.
pub(super) struct Name;

macro_rules! displayed {
    ($($method:ident: $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<String, Error> {
            Ok(value.to_string())
        }
    )*};
}

macro_rules! compound {
    ($($method:ident($($argument:ty),*) -> $result:ident = $what:literal),*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<Self::$result, Error> {
            Err(Error::NameType($what))
        }
    )*};
}

impl Serializer for Name {
    type Ok = String;
    type Error = Error;
    type SerializeSeq = Impossible<String, Error>;
    type SerializeTuple = Impossible<String, Error>;
    type SerializeTupleStruct = Impossible<String, Error>;
    type SerializeTupleVariant = Impossible<String, Error>;
    type SerializeMap = Impossible<String, Error>;
    type SerializeStruct = Impossible<String, Error>;
    type SerializeStructVariant = Impossible<String, Error>;

    displayed!(
        serialize_bool: bool, serialize_char: char, serialize_str: &str,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_u128: u128
    );

    compound!(
        serialize_f32(f32) -> Ok = "float",
        serialize_f64(f64) -> Ok = "float",
        serialize_bytes(&[u8]) -> Ok = "bytes",
        serialize_none() -> Ok = "option",
        serialize_unit() -> Ok = "unit",
        serialize_unit_struct(&'static str) -> Ok = "unit struct",
        serialize_seq(Option<usize>) -> SerializeSeq = "sequence",
        serialize_tuple(usize) -> SerializeTuple = "tuple",
        serialize_tuple_struct(&'static str, usize) -> SerializeTupleStruct = "tuple struct",
        serialize_tuple_variant(&'static str, u32, &'static str, usize)
            -> SerializeTupleVariant = "enum variant with fields",
        serialize_map(Option<usize>) -> SerializeMap = "map",
        serialize_struct(&'static str, usize) -> SerializeStruct = "struct",
        serialize_struct_variant(&'static str, u32, &'static str, usize)
            -> SerializeStructVariant = "enum variant with fields"
    );

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<String, Error> {
        Err(Error::NameType("option"))
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<String, Error> {
        Ok(variant.to_owned())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<String, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<String, Error> {
        Err(Error::NameType("enum variant with fields"))
    }
}
