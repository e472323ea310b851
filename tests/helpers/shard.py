"""``pytest -p tests.helpers.shard`` with ``SHARD=1/4`` runs every fourth test: to share slow ones among processes."""

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard, shards = map(int, os.environ.get("SHARD", "0/1").split("/"))
    config.hook.pytest_deselected(items=[item for at, item in enumerate(items) if at % shards != shard])
    items[:] = items[shard::shards]
