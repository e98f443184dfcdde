//! A replay cache in Redis, in front of a durable store.
