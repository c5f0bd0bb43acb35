"""What a rank says of itself."""

import os
import time
from types import SimpleNamespace

from tape_ds.training.cluster import place, record


def recipe(**fields):
    given = {"seed": 1, "data_cache": "/no/such/cache", "hub_token": "hf_abcdefghijklmnopqrstuv"} | fields
    return SimpleNamespace(as_dict=lambda: given)


def test_the_digest_follows_every_file_of_the_package(tmp_path):
    package = tmp_path / "pack"
    (package / "room").mkdir(parents=True)
    (package / "room" / "a.py").write_text("1")
    (package / "table.json").write_text("{}")
    (package / "room" / "a.pyc").write_text("never")
    launcher = tmp_path / "run.py"
    launcher.write_text("go")
    before = record.code_files(package, launcher)
    assert list(before) == ["pack/room/a.py", "pack/table.json", "run.py"]
    (package / "room" / "a.py").write_text("2")
    after = record.code_files(package, launcher)
    assert [name for name in before if before[name] != after[name]] == ["pack/room/a.py"]


def test_this_package_is_found_by_itself():
    assert "tape_ds/training/cluster/record.py" in record.code_files()


def test_fields_are_told_without_credentials_and_without_a_machines_own_folders():
    found = record.details_of(recipe(), {"text:x": "f"})
    assert found.recipe["seed"] == "1" and "data_cache" not in found.recipe
    assert "hf_abc" not in str(found) and found.data == {"text:x": "f"}


def test_digests_differ_where_a_part_does():
    one, other = (record.details_of(recipe(seed=seed), {}).digests() for seed in (1, 2))
    assert {name for name in one if one[name] != other[name]} == {"recipe"}


def test_a_rank_sees_what_rank_0_put_there_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_LOOK_SECONDS", 0.01)
    monkeypatch.setenv("TAPE_DS_ATTENTION", "sdpa")
    (tmp_path / "marker").touch()
    details = record.details_of(recipe(), {})
    found, missed = (
        record.record_of(place.here({}), recipe(), details, tmp_path, name) for name in ("marker", "another")
    )
    assert found.sees_output and not missed.sees_output
    assert (
        found.variables == {"TAPE_DS_ATTENTION": "sdpa"} and found.packages["python"] and found.free["output_dir"] > 0
    )


def test_folders_above_are_opened_before_a_file_is_looked_for(tmp_path, monkeypatch):
    """NFS asks its server again then, and goes by what it remembers otherwise."""
    opened, scan = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: opened.append(folder) or scan(folder))
    (tmp_path / "marker").touch()
    assert record.sees(tmp_path / "marker") and opened[-2:] == [tmp_path.parent, tmp_path]


def test_the_clock_is_read_before_anything_that_takes_its_time(tmp_path, monkeypatch):
    versions = record.results.versions
    monkeypatch.setattr(record.results, "versions", lambda: time.sleep(0.3) or versions())
    before = time.time()
    found = record.record_of(place.here({}), recipe(), record.details_of(recipe(), {}), tmp_path, "")
    assert found.time - before < 0.2
