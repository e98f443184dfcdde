//! The definition of the table for other tools.

use std::fmt::Write as _;

use crate::attributes::{PARTITION, SORT};
use crate::schema::{attributes, indexes};

/// The table as a template of CloudFormation, in YAML.
pub(crate) fn cloud_formation(table: &str) -> String {
    let mut text = format!(
        "Resources:\n  Semel:\n    Type: AWS::DynamoDB::Table\n    DeletionPolicy: Retain\n    \
         Properties:\n      TableName: {table}\n      BillingMode: PAY_PER_REQUEST\n      \
         PointInTimeRecoverySpecification: {{ PointInTimeRecoveryEnabled: true }}\n      \
         DeletionProtectionEnabled: true\n      AttributeDefinitions:\n"
    );
    for (name, kind) in attributes() {
        let _ = writeln!(
            text,
            "        - {{ AttributeName: {name}, AttributeType: {} }}",
            kind.as_str()
        );
    }
    let keys = |partition: &str, sort: &str, indent: &str| {
        format!(
            "{indent}- {{ AttributeName: {partition}, KeyType: HASH }}\n\
             {indent}- {{ AttributeName: {sort}, KeyType: RANGE }}\n"
        )
    };
    text.push_str("      KeySchema:\n");
    text.push_str(&keys(PARTITION, SORT, "        "));
    text.push_str("      GlobalSecondaryIndexes:\n");
    for index in indexes() {
        let _ = write!(
            text,
            "        - IndexName: {}\n          Projection: {{ ProjectionType: KEYS_ONLY }}\n          \
             KeySchema:\n",
            index.name
        );
        text.push_str(&keys(index.partition.0, index.sort.0, "            "));
    }
    text
}

/// The table as a resource of Terraform.
pub(crate) fn terraform(table: &str) -> String {
    let mut text = format!(
        "resource \"aws_dynamodb_table\" \"semel\" {{\n  name                        = \"{table}\"\n  \
         billing_mode                = \"PAY_PER_REQUEST\"\n  hash_key                    = \
         \"{PARTITION}\"\n  range_key                   = \"{SORT}\"\n  \
         deletion_protection_enabled = true\n\n  point_in_time_recovery {{\n    enabled = true\n  }}\n"
    );
    for (name, kind) in attributes() {
        let _ = write!(
            text,
            "\n  attribute {{\n    name = \"{name}\"\n    type = \"{}\"\n  }}\n",
            kind.as_str()
        );
    }
    for index in indexes() {
        let _ = write!(
            text,
            "\n  global_secondary_index {{\n    name            = \"{}\"\n    hash_key        = \
             \"{}\"\n    range_key       = \"{}\"\n    projection_type = \"KEYS_ONLY\"\n  }}\n",
            index.name, index.partition.0, index.sort.0
        );
    }
    text.push_str("}\n");
    text
}
