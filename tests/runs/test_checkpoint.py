"""Checkpoints: whole, checked, and never lost."""

from __future__ import annotations

import logging
import pickle
import resource
import struct
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from tests.training.runs import same

from ldstyle.files import replace_file, replace_text
from ldstyle.runs.checkpoint import LAST, PREVIOUS, SPARE, CheckpointWriter, load_checkpoint, save_checkpoint


def state(number: int) -> dict[str, object]:
    return {"number": number, "weights": {"a": torch.arange(100_000.0) + number}, "text": ["x", None, 1.5, True]}


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let writes beyond ``limit`` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_round_trips_and_the_one_before_it_is_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for number in (1, 2, 3):
        save_checkpoint(tmp_path, state(number))
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        assert same(loaded, {"format": 1, **state(number)})
    assert torch.load(tmp_path / PREVIOUS, weights_only=True)["number"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "text"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, state(1))
    path = save_checkpoint(tmp_path, state(2))
    match damage:
        case "flip":
            flip_bit(path)
        case "truncate":
            path.write_bytes(path.read_bytes()[:-1000])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.write_text("hello")
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded["number"] == 1
    assert "last.ckpt' is damaged" in caplog.text


def metadata(path: Path) -> list[int]:
    """The positions of a zip archive's own bytes: headers, names, padding and directory, without the entries."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    content = path.read_bytes()
    positions = set(range(len(content)))
    for entry in entries:
        lengths = struct.unpack("<HH", content[entry.header_offset + 26 : entry.header_offset + 30])
        start = entry.header_offset + 30 + sum(lengths)
        positions -= set(range(start, start + entry.compress_size))
    return sorted(positions)


def test_a_byte_flipped_anywhere_in_the_zip_metadata_costs_at_most_one_checkpoint(tmp_path: Path) -> None:
    before, after = ({"number": number, "weights": torch.full((3,), float(number))} for number in (1, 2))
    save_checkpoint(tmp_path, before)
    path = save_checkpoint(tmp_path, after)
    whole, used = path.read_bytes(), set()
    for position in metadata(path):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        assert same(loaded, {"format": 1, **(after if loaded["number"] == 2 else before)})
        used.add(loaded["number"])
    assert used == {1, 2}


def test_a_kill_between_the_two_renames_leaves_the_previous_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    (tmp_path / LAST).rename(tmp_path / PREVIOUS)
    (tmp_path / f"{LAST}.tmp").write_bytes(b"half of a checkpoint")
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded["number"] == 1


def test_if_none_is_whole_the_run_does_not_start_afresh_by_itself(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    flip_bit(save_checkpoint(tmp_path, state(2)))
    flip_bit(tmp_path / PREVIOUS)
    with pytest.raises(ValueError, match=r"last\.ckpt' is damaged.*previous\.ckpt' is damaged.*another `out`"):
        load_checkpoint(tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint_as_it_was(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    before = (tmp_path / LAST).read_bytes()
    with full_disk(100_000), pytest.raises(OSError, match=r"the disk is full\. What was saved before is untouched"):
        save_checkpoint(tmp_path, state(2))
    assert (tmp_path / LAST).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {LAST}
    with full_disk(10), pytest.raises(OSError, match="the disk is full"):
        replace_text(tmp_path / "record.json", "x" * 100)
    assert {path.name for path in tmp_path.iterdir()} == {LAST}


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("executed",))

    torch.save({"format": 1, "trap": Trap()}, tmp_path / LAST)
    with pytest.raises(ValueError, match=r"last\.ckpt' is damaged or not a checkpoint") as caught:
        load_checkpoint(tmp_path)
    assert isinstance(caught.value.__cause__, pickle.UnpicklingError)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / LAST)
    with pytest.raises(ValueError, match=r"must be a checkpoint of format 1; got 99\. Resume with the version"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_holds_the_state_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    live = state(1)
    with CheckpointWriter(tmp_path) as writer:
        writer.save(live)
        live["weights"]["a"].add_(5)  # type: ignore[index]  # as the next training step does
        live["text"].append("later")  # type: ignore[attr-defined]
    assert same(load_checkpoint(tmp_path), {"format": 1, **state(1)})


def test_checkpoints_are_written_over_the_oldest_of_three_and_are_whole(tmp_path: Path) -> None:
    def grown(number: int) -> dict[str, object]:
        """Longer and shorter by turns, with tensors that come, go and change their shape and type."""
        size = 200_000 // number
        extra = {"b": torch.full((number,), number)} if number % 2 else {}
        moments = [torch.zeros(number), torch.ones(3, dtype=torch.float64 if number > 3 else torch.float32)]
        return {
            "number": number,
            "weights": {"a": torch.arange(float(size)), **extra},
            "moments": moments[: 1 + number % 2],
        }

    files = set()
    with CheckpointWriter(tmp_path) as writer:
        for number in range(1, 8):
            writer.save(grown(number))
            writer.wait()
            files.add((tmp_path / LAST).stat().st_ino)
            assert same(load_checkpoint(tmp_path), {"format": 1, **grown(number)})
            if number > 1:
                assert same(torch.load(tmp_path / PREVIOUS, weights_only=True), {"format": 1, **grown(number - 1)})
    assert len(files) == 3
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}


def test_a_spare_left_by_a_killed_run_is_used_up(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    (tmp_path / SPARE).write_bytes(b"x" * 2_000_000)
    with CheckpointWriter(tmp_path) as writer:
        writer.save(state(2))
    assert same(load_checkpoint(tmp_path), {"format": 1, **state(2)})
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}


def test_a_failure_to_write_beside_training_is_raised_and_loses_nothing(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(state(1))
        writer.wait()
        with full_disk(10_000):
            writer.save(state(2))
            with pytest.raises(OSError, match="the disk is full"):
                writer.save(state(3))
    assert same(load_checkpoint(tmp_path), {"format": 1, **state(1)})
    assert {path.name for path in tmp_path.iterdir()} == {LAST}


def test_processes_that_write_one_file_together_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"

    def write_while_another_does(file: BinaryIO) -> None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(replace_text, path, "theirs", shared=True).result()
        file.write(b"ours")

    replace_file(path, write_while_another_does, shared=True)
    assert path.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [path]
