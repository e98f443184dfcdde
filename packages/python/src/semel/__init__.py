"""Semel: safe retries for any HTTP API. The client is in `semel.client`."""
