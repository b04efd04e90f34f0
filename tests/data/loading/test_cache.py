import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading import cache as cache_module
from ldstyle.data.loading.cache import open_cache
from ldstyle.data.loading.decode import decode, decode_mask

SIZE = 16


def make_table(root, *, count=7, masks=False, domain="west"):
    generator = np.random.default_rng(0)
    keys = tuple(f"images/{i}.png" for i in range(count))
    mask_keys = tuple(None if i == 1 else f"masks/{i}.png" for i in range(count)) if masks else None
    for key in (*keys, *(mask_keys or ())):
        if key:
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            shape = (20, 24) if key.startswith("masks") else (20, 24, 3)
            Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(root / key)
    labels = np.zeros((count, 2), dtype=np.int8)
    return SceneTable(domain, root, ("tree", "car"), keys, labels, masks=mask_keys)


@pytest.fixture
def table(tmp_path):
    return make_table(tmp_path / "data")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def decodes(monkeypatch):
    """Counts the images that are decoded."""
    done = []

    def counted(path, size, *, content=None):
        done.append(path)
        return decode(path, size, content=content)

    monkeypatch.setattr("ldstyle.data.loading.bands.decode", counted)
    return done


def expected_images(table):
    return np.stack([decode(table.path(i), SIZE) for i in range(len(table))])


def visible(folder):
    """What a user would find: no locks, which stay."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def rewrite(path, value):
    Image.fromarray(np.full((20, 24, 3), value, dtype=np.uint8)).save(path)


def test_the_cache_holds_the_decoded_images_and_masks(tmp_path, folder):
    table = make_table(tmp_path / "data", masks=True)
    told = []
    opened = open_cache(table, size=SIZE, cache_dir=folder, progress=lambda *step: told.append(step))
    assert np.array_equal(opened.images, expected_images(table))
    assert np.array_equal(opened.masks[2], decode_mask(table.root / "masks/2.png", SIZE))
    assert not opened.masks[1].any()
    assert told == [(i + 1, 7, "west") for i in range(7)]
    assert isinstance(opened.images, np.memmap)


def test_a_second_opening_decodes_nothing_and_reads_no_source(table, folder, decodes, monkeypatch):
    first = open_cache(table, size=SIZE, cache_dir=folder)
    assert len(decodes) == 7
    monkeypatch.setattr("ldstyle.data.loading.cache_files._read", pytest.fail)
    second = open_cache(table, size=SIZE, cache_dir=folder)
    assert len(decodes) == 7
    assert second.digest == first.digest
    assert np.array_equal(second.images, first.images)


def test_writing_to_the_array_does_not_reach_the_file(table, folder):
    opened = open_cache(table, size=SIZE, cache_dir=folder)
    opened.images[:] = 0
    assert np.array_equal(open_cache(table, size=SIZE, cache_dir=folder).images, expected_images(table))


def test_each_size_and_domain_has_its_own_cache(tmp_path, table, folder):
    east = make_table(tmp_path / "east", domain="East / 2", count=3)
    opened = [open_cache(t, size=s, cache_dir=folder) for t, s in ((table, 16), (table, 8), (east, 16))]
    assert [one.images.shape for one in opened] == [(7, 3, 16, 16), (7, 3, 8, 8), (3, 3, 16, 16)]
    assert len({one.path for one in opened}) == len({one.digest for one in opened}) == 3


def test_equal_content_elsewhere_shares_the_cache(tmp_path, table, folder, decodes):
    first = open_cache(table, size=SIZE, cache_dir=folder)
    shutil.copytree(table.root, tmp_path / "copy")
    moved = SceneTable("west", tmp_path / "copy", table.vocabulary, table.keys, table.labels)
    second = open_cache(moved, size=SIZE, cache_dir=folder)
    assert second.path == first.path
    assert len(decodes) == 7


def test_a_touched_source_is_hashed_and_not_decoded(table, folder, decodes):
    first = open_cache(table, size=SIZE, cache_dir=folder)
    os.utime(table.path(3), ns=(1, 1))
    assert open_cache(table, size=SIZE, cache_dir=folder).digest == first.digest
    assert len(decodes) == 7


def test_a_changed_source_makes_a_new_cache(table, folder):
    first = open_cache(table, size=SIZE, cache_dir=folder)
    rewrite(table.path(3), 9)
    second = open_cache(table, size=SIZE, cache_dir=folder)
    assert second.digest != first.digest
    assert (second.images[3] == 9).all()
    assert np.array_equal(second.images[4], first.images[4])


def test_a_change_behind_equal_times_is_found_on_request(table, folder):
    open_cache(table, size=SIZE, cache_dir=folder)
    (record,) = folder.glob("*.sources.json")
    rewrite(table.path(3), 9)
    # The record claims that the new file was there all the time.
    stat = table.path(3).stat()
    known = cache_module._read_record(record)
    known["images/3.png"] = ((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns), known["images/3.png"][1])
    cache_module._replace_json(record, known)
    assert (open_cache(table, size=SIZE, cache_dir=folder).images[3] != 9).any()
    assert (open_cache(table, size=SIZE, cache_dir=folder, verify="content").images[3] == 9).all()


def test_rows_in_another_order_are_another_cache(table, folder):
    first = open_cache(table, size=SIZE, cache_dir=folder)
    second = open_cache(table.select([6, 0, 2]), size=SIZE, cache_dir=folder)
    assert np.array_equal(second.images, first.images[[6, 0, 2]])
    assert open_cache(table, size=SIZE, cache_dir=folder).digest == first.digest


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("images.u8", lambda content: content[:-5], r"images\.u8 has \d+ bytes instead of \d+"),
        ("images.u8", lambda content: bytes([content[0] ^ 1]) + content[1:], r"the content of images\.u8 changed"),
        ("header.json", lambda content: content[:9], "its header or a file cannot be read"),
        ("header.json", lambda content: b"[]", "its header or a file cannot be read"),
    ],
)
def test_a_damaged_cache_is_built_again(table, folder, caplog, name, damage, reason):
    path = open_cache(table, size=SIZE, cache_dir=folder).path / name
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        opened = open_cache(table, size=SIZE, cache_dir=folder)
    assert np.array_equal(opened.images, expected_images(table))
    assert len(caplog.messages) == 1
    assert re.search(reason, caplog.messages[0])


def test_a_copied_cache_is_checked_once(table, folder, monkeypatch):
    path = open_cache(table, size=SIZE, cache_dir=folder).path
    os.utime(path / "images.u8", ns=(1, 1))
    open_cache(table, size=SIZE, cache_dir=folder)
    monkeypatch.setattr(cache_module, "_content", pytest.fail)
    open_cache(table, size=SIZE, cache_dir=folder)


def test_a_damaged_record_costs_a_reading(table, folder, decodes):
    open_cache(table, size=SIZE, cache_dir=folder)
    (record,) = folder.glob("*.sources.json")
    record.write_text("{")
    open_cache(table, size=SIZE, cache_dir=folder)
    assert len(decodes) == 7
    assert len(cache_module._read_record(record)) == 7


def test_missing_sources_are_named_and_counted(table, folder):
    for i in (0, 2, 3, 5):
        table.path(i).unlink()
    with pytest.raises(FileNotFoundError, match=r"4 files of 'west' are missing .*'images/0.png', .* and 1 more"):
        open_cache(table, size=SIZE, cache_dir=folder)


def test_unusable_sources_are_named_and_counted_and_leave_nothing(table, folder):
    for i in (1, 2, 4, 6):
        table.path(i).write_bytes(table.path(i).read_bytes()[:200])
    with pytest.raises(ValueError, match=r"4 of 7 samples of 'west' cannot be used\. .*images/1\.png.* 3 more"):
        open_cache(table, size=SIZE, cache_dir=folder)
    assert visible(folder) == []


def test_a_source_truncated_after_caching_is_refused_with_the_reason(table, folder):
    open_cache(table, size=SIZE, cache_dir=folder)
    before = visible(folder)
    table.path(2).write_bytes(table.path(2).read_bytes()[:200])
    with pytest.raises(ValueError, match=r"1 of 7 samples of 'west' cannot be used\. .*images/2\.png"):
        open_cache(table, size=SIZE, cache_dir=folder)
    assert visible(folder) == before


def test_an_empty_table_or_size_is_refused(table, folder):
    with pytest.raises(ValueError, match="at least one image; the table of 'west' is empty"):
        open_cache(table.select([]), size=SIZE, cache_dir=folder)
    with pytest.raises(ValueError, match=r"`size` must be a positive number of pixels, .* got 0"):
        open_cache(table, size=0, cache_dir=folder)


def test_a_file_in_place_of_the_folder_is_refused(table, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="`cache_dir` must be a folder"):
        open_cache(table, size=SIZE, cache_dir=tmp_path / "file")


def test_ctrl_c_leaves_nothing(table, folder):
    def interrupt(done, total, what):
        if done == 3:
            raise KeyboardInterrupt("Ctrl-C")

    with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
        open_cache(table, size=SIZE, cache_dir=folder, progress=interrupt)
    assert visible(folder) == []
    assert np.array_equal(open_cache(table, size=SIZE, cache_dir=folder).images, expected_images(table))


def test_what_a_killed_process_left_is_cleared(table, folder):
    (folder / f".west-{SIZE}px.partial").mkdir(parents=True)
    (folder / f".west-{SIZE}px.partial" / "images.u8").write_bytes(b"half")
    opened = open_cache(table, size=SIZE, cache_dir=folder)
    assert np.array_equal(opened.images, expected_images(table))
    assert len(visible(folder)) == 2


def test_a_full_disk_is_told_and_leaves_nothing(table, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(OSError, match="The disk is full: the cache of 'west' does not fit") as caught:
            open_cache(table, size=128, cache_dir=disk)
        assert caught.value.errno == errno.ENOSPC
        assert visible(disk) == []
        assert open_cache(table, size=8, cache_dir=disk).images.shape == (7, 3, 8, 8)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_fills_up_in_between_is_told_and_leaves_nothing(table, folder, monkeypatch):
    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_module, "_stat", no_space)
    with pytest.raises(OSError, match=r"The disk is full.*no partial cache was left"):
        open_cache(table, size=SIZE, cache_dir=folder)
    assert visible(folder) == []


def test_a_record_that_cannot_be_written_costs_no_cache(table, folder, monkeypatch, caplog):
    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_module, "_replace_json", no_space)
    assert np.array_equal(open_cache(table, size=SIZE, cache_dir=folder).images, expected_images(table))
    assert "the next opening hashes the sources again" in caplog.text


# The package's own module is left out, for it imports torch, which takes longer than all other tests together.
OPEN = """
import sys, types
from pathlib import Path
package = types.ModuleType("ldstyle")
package.__path__ = [sys.argv[1]]
sys.modules["ldstyle"] = package
import numpy as np
from ldstyle.data.loading.cache import open_cache
from ldstyle.data.domains.scene_table import SceneTable
keys = tuple(f"images/{i}.png" for i in range(7))
table = SceneTable("west", Path(sys.argv[2]), ("tree",), keys, np.zeros((7, 1), dtype=np.int8))
sys.stdin.readline()
print(open_cache(table, size=16, cache_dir=Path(sys.argv[3])).digest)
"""


def test_processes_that_build_at_once_share_one_cache(table, folder):
    package = Path(cache_module.__file__).parents[2]
    command = [sys.executable, "-c", OPEN, str(package), str(table.root), str(folder)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = {process.communicate(timeout=60)[0] for process in processes}
    assert found == {open_cache(table, size=SIZE, cache_dir=folder).digest + "\n"}
    assert len(visible(folder)) == 2


def test_threads_that_build_at_once_decode_once(table, folder, decodes):
    arguments = {"size": SIZE, "cache_dir": folder}
    threads = [threading.Thread(target=open_cache, args=(table,), kwargs=arguments) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decodes) == 7


@pytest.mark.data
def test_real_imagery_is_cached_as_it_is_decoded(real_data, tmp_path):
    from ldstyle.data.domains.discovery import read_domains

    (table,) = read_domains(real_data, ["drone"])
    some = table.select(range(0, len(table), 41))
    opened = open_cache(some, size=64, cache_dir=tmp_path)
    for i in range(len(some)):
        assert np.array_equal(opened.images[i], decode(some.path(i), 64))
        assert np.array_equal(opened.masks[i], decode_mask(some.root / some.masks[i], 64))


@pytest.mark.parametrize("size", [10**6, 2**40])
def test_a_size_beyond_all_memory_is_refused(table, folder, size):
    with pytest.raises(ValueError, match=rf"`size` must be a positive number of pixels, at most 16384; got {size}"):
        open_cache(table, size=size, cache_dir=folder)


@pytest.fixture
def read_only(monkeypatch):
    """Make a folder look as if it could not be written; whoever may do everything cannot try it for real."""

    def refuse(lock, *arguments, **settings):
        raise PermissionError(errno.EACCES, "Permission denied", lock.lock_file)

    def refuse_writing(path, value):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def switch():
        monkeypatch.setattr(cache_module.FileLock, "acquire", refuse)
        monkeypatch.setattr(cache_module, "_replace_json", refuse_writing)

    return switch


def test_a_complete_cache_that_cannot_be_written_is_read(table, folder, decodes, read_only):
    built = open_cache(table, size=SIZE, cache_dir=folder)
    os.utime(built.path / "images.u8", (1, 1))
    decodes.clear()
    read_only()
    assert np.array_equal(open_cache(table, size=SIZE, cache_dir=folder).images, built.images)
    assert not decodes


def test_a_cache_that_is_missing_where_none_can_be_written_is_told(table, folder, read_only):
    read_only()
    with pytest.raises(PermissionError, match=r"`cache_dir` '.*cache' cannot be written, .* 'west' at 16 px"):
        open_cache(table, size=SIZE, cache_dir=folder)


def test_waiting_for_another_process_can_be_stopped(table, folder, monkeypatch):
    monkeypatch.setattr(cache_module, "WAIT_SECONDS", 0.01)
    folder.mkdir()

    def stop(done, total, what):
        raise KeyboardInterrupt(what)

    with (
        cache_module.FileLock(folder / f".west-{SIZE}px.lock"),
        pytest.raises(KeyboardInterrupt, match="wait for west"),
    ):
        open_cache(table, size=SIZE, cache_dir=folder, progress=stop)


def test_a_domain_named_like_a_path_or_a_pattern_has_a_cache(tmp_path, folder, decodes):
    table = make_table(tmp_path / "data", domain="2020/spring [a]")
    assert open_cache(table, size=SIZE, cache_dir=folder).path.parent == folder
    decodes.clear()
    open_cache(table, size=SIZE, cache_dir=folder)
    assert not decodes


def test_pipes_and_circular_links_are_missing_files(tmp_path, folder):
    table = make_table(tmp_path / "data")
    table.path(0).unlink()
    table.path(1).unlink()
    os.mkfifo(table.path(0))
    table.path(1).symlink_to(table.path(1).name)
    with pytest.raises(FileNotFoundError, match=r"2 files of 'west' are missing .* 'images/0.png', 'images/1.png'"):
        open_cache(table, size=SIZE, cache_dir=folder)
