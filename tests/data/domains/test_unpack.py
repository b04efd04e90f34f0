import io
import stat
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from ldstyle.data.domains import unpack as module
from ldstyle.data.domains.unpack import unpack


def make_zip(path, members, *, mode=None):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if mode:
                info.create_system, info.external_attr = 3, mode << 16
            archive.writestr(info, content)
    return path


def make_tar(path, members, *, kind=tarfile.REGTYPE, target=""):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content.encode()))
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_archive_arrives_whole(tmp_path, make):
    archive = make(tmp_path / "archive", {"top/a.txt": "one", "top/below/b.txt": "two", "c.txt": "three"})
    root = tmp_path / "data" / "ucm"
    assert unpack(archive, root) == [root / "c.txt", root / "top"]
    assert (root / "top/a.txt").read_text() == "one"
    assert (root / "top/below/b.txt").read_text() == "two"
    assert sorted(path.name for path in root.iterdir()) == ["c.txt", "top"]


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "C:/evil", "..\\evil", "\\\\host\\share\\evil"])
def test_a_member_that_would_escape_is_refused_before_anything_is_written(tmp_path, make, name):
    archive = make(tmp_path / "archive", {"good.txt": "fine", name: "bad"})
    with pytest.raises(
        ValueError, match=r"plain files below its folder; 1 of .* are not: '.*evil'. Nothing was unpacked"
    ):
        unpack(archive, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    archive = make_tar(tmp_path / "archive", {"link": ""}, kind=kind, target="../outside")
    with pytest.raises(ValueError, match=r"1 of .* are not: 'link'"):
        unpack(archive, tmp_path / "data")


def test_links_in_a_zip_are_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", {"link": "../outside"}, mode=stat.S_IFLNK | 0o777)
    with pytest.raises(ValueError, match=r"1 of .* are not: 'link'"):
        unpack(archive, tmp_path / "data")


def test_nothing_is_overwritten(tmp_path):
    archive = make_zip(tmp_path / "archive", {"a.txt": "new", "b.txt": "new"})
    root = tmp_path / "data"
    root.mkdir()
    (root / "b.txt").write_text("old")
    with pytest.raises(FileExistsError, match=r"would overwrite 'b.txt' in"):
        unpack(archive, root)
    assert [path.name for path in root.iterdir()] == ["b.txt"]
    assert (root / "b.txt").read_text() == "old"


def test_a_damaged_archive_leaves_nothing_behind(tmp_path):
    archive = make_zip(tmp_path / "archive", {"a.txt": "first" * 50, "b.txt": "second" * 50})
    archive.write_bytes(archive.read_bytes().replace(b"secondsecond", b"sekondsecond", 1))
    with pytest.raises(ValueError, match=r"cannot be unpacked: Bad CRC-32.* Download it again"):
        unpack(archive, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def noise(size):
    return np.random.default_rng(0).bytes(size)


def pack(path, kind):
    """Pack three files of noise in one of the ways data sets are distributed."""
    members = {f"top/{name}.bin": noise(5000) for name in "abc"}
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{kind}") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", ["zip", "", "gz", "bz2", "xz"])
@pytest.mark.parametrize("kept", [0.02, 0.4, 0.7, 0.99])
def test_an_archive_cut_short_is_refused_and_leaves_nothing(tmp_path, kind, kept):
    archive = pack(tmp_path / "archive", kind)
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * (kept if kind or kept < 0.9 else 0.75))])
    with pytest.raises(ValueError, match=r"archive' (cannot be unpacked: \w|is neither or is damaged)"):
        unpack(archive, tmp_path / "data")
    assert not list(tmp_path.glob("data/*")) + list(tmp_path.glob("data/.*"))


@pytest.mark.parametrize("kind", ["zip", "gz", "bz2", "xz"])
@pytest.mark.parametrize("start", [0.3, 0.6, 0.9])
def test_a_hundred_damaged_bytes_are_detected(tmp_path, kind, start):
    archive = pack(tmp_path / "archive", kind)
    content = bytearray(archive.read_bytes())
    first = int(len(content) * start)
    content[first : first + 100] = bytes(byte ^ 255 for byte in content[first : first + 100])
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"archive' (cannot be unpacked: \w|is neither or is damaged)"):
        unpack(archive, tmp_path / "data")
    assert not list(tmp_path.glob("data/*")) + list(tmp_path.glob("data/.*"))


def test_a_damaged_checksum_behind_the_last_member_is_detected(tmp_path):
    archive = pack(tmp_path / "archive", "gz")
    content = bytearray(archive.read_bytes())
    content[-6] ^= 255
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"archive' cannot be unpacked: CRC check failed"):
        unpack(archive, tmp_path / "data")


def test_a_damaged_header_of_a_plain_tar_does_not_drop_members(tmp_path):
    archive = pack(tmp_path / "archive", "")
    content = bytearray(archive.read_bytes())
    second = content.index(b"top/b.bin")
    content[second : second + 100] = noise(100)
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"archive' cannot be unpacked: a header is damaged"):
        unpack(archive, tmp_path / "data")


def test_what_a_killed_unpacking_left_is_cleared(tmp_path):
    root = tmp_path / "data"
    (root / ".unpack-killed.tmp" / "top").mkdir(parents=True)
    unpack(make_zip(tmp_path / "archive", {"a.txt": "new"}), root)
    assert [path.name for path in root.iterdir()] == ["a.txt"]


def test_an_unpacking_under_way_is_left_alone(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    with module._temporary_folder(root) as folder:
        unpack(make_zip(tmp_path / "archive", {"a.txt": "new"}), root)
        assert folder.is_dir()
    assert [path.name for path in root.iterdir()] == ["a.txt"]


def test_an_archive_larger_than_the_disk_is_refused(tmp_path, monkeypatch):
    archive = make_zip(tmp_path / "archive", {"a.txt": "content"})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=3))
    with pytest.raises(OSError, match=r"needs 0.0 GB in .*; 0.0 GB are free"):
        unpack(archive, tmp_path / "data")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "file").write_text("neither")
    with pytest.raises(ValueError, match=r"must be a zip or tar file; .* is neither"):
        unpack(tmp_path / "file", tmp_path / "data")
    with pytest.raises(FileNotFoundError, match=r"no file .* to unpack"):
        unpack(tmp_path / "nothing.zip", tmp_path / "data")
