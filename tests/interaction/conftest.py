"""The option of the interaction scripts."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scripts",
        action="store_true",
        help="write what happened into the interaction scripts, instead of comparing",
    )
