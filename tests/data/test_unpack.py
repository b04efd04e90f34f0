import io
import stat
import tarfile
import zipfile
from types import SimpleNamespace

import pytest

from ldstyle.data import unpack as module
from ldstyle.data.unpack import unpack


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
