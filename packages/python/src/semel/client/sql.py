"""The statements and schemas of the journals: those of `crates/semel-client`, built into the package."""

from __future__ import annotations

from importlib.resources import files


def statement(*path: str) -> str:
    return files(__package__).joinpath("sql", *path).read_text(encoding="utf-8")
