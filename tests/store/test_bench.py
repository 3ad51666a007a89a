"""The store's bench runs, and says what it measured. What the figures are is never tested."""

import json
from pathlib import Path

import msgspec
import pytest

from bench import growth, store
from bench.store import CHAIN, Size

TINY = Size(responses=2 * CHAIN, streams=2, entries=2, reads=3, writes=3, jobs=2)


async def test_report_has_every_figure():
    row = await store.measure("memory", TINY)
    report = json.loads(msgspec.json.encode(store.build([row])))
    assert set(report) == {"machine", "targets", "rows"}
    assert [set(target) for target in report["targets"]] == [{"name", "value", "limit"}] * 4
    assert set(report["rows"][0]) == set(row.__struct_fields__)
    for name in ("get", "chain", "job_start"):
        assert report["rows"][0][name]["p99"] > 0
    table = "\n".join(store.table(store.build([row])))
    assert all(target["name"] in table for target in report["targets"])


async def test_growth_is_reported_for_every_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growth, "CALLS", 1)
    row = await growth.measure(f"sqlite:///{tmp_path}/store.db", (20, 40))
    report = growth.build([row])
    assert len(row.reads) > 50
    assert all(len(read.costs) == 2 for read in row.reads)
    table = "\n".join(growth.table(report))
    assert all(measured.name in table for measured in (*row.reads, *row.deletions, *report.targets))
