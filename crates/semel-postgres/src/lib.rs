//! The store of Semel in PostgreSQL: many processes, one truth.
