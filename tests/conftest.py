"""What every test session has: the tier (--full), a printed seed for sampled matrices (--seed), and clean leftovers."""

from __future__ import annotations

import random
import secrets
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all of every matrix, not a sample")
    parser.addoption("--seed", type=int, default=None, help="seed of the samples; printed at the start of each session")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.option.seed = worker["seed"]
    elif config.option.seed is None:
        config.option.seed = secrets.randbelow(2**31)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the processes of pytest-xdist the seed that is printed."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    tier = "full" if config.option.full else "default"
    return f"anyrig: tier {tier}, seed {config.option.seed} (repeat with --seed {config.option.seed})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of the default tier the tests marked `full`, and all but n cases of those marked `sampled(n)`."""
    if config.option.full:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    matrices: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            matrices.setdefault((item.nodeid.partition("[")[0], marker.args[0]), []).append(item)
    for (name, count), cases in matrices.items():
        chosen = random.Random(hash_of(config.option.seed, name)).sample(cases, min(count, len(cases)))
        left_out += [case for case in cases if case not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The printed seed of this session, different for each test."""
    return hash_of(request.config.option.seed, request.node.nodeid)


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A random generator from the printed seed."""
    return random.Random(seed)


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether this session runs all of every matrix."""
    return bool(request.config.option.full)


def hash_of(seed: int, name: str) -> int:
    """Return a number that depends on both, the same in every process."""
    return random.Random(f"{seed}:{name}").randrange(2**32)
