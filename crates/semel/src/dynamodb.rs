//! The store in a DynamoDB table.

pub use semel_dynamodb::*;
