"""What several tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api import Api


@pytest.fixture
def api() -> Iterator[Api]:
    served = Api()
    yield served
    served.close()
