import numba
import numpy as np
import pytest

from ldstyle.cpu import jitter as _fused

SIGNATURE = "void(float32[::1])"


def double(values):
    for i in range(len(values)):
        values[i] *= 2


def doubled_by(kernel):
    values = np.array([1, 2, 3], dtype=np.float32)
    kernel(values)
    return values.tolist()


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The only folder where compiled functions may be stored."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_compiled_function_is_stored_and_loaded(store):
    assert doubled_by(_fused.compile_kernel(double, SIGNATURE)) == [2, 4, 6]
    assert {path.suffix for path in store.rglob("*.nb?")} == {".nbi", ".nbc"}
    again = _fused.compile_kernel(double, SIGNATURE)
    assert sum(again.stats.cache_hits.values()) == 1
    assert doubled_by(again) == [2, 4, 6]


def test_where_nothing_can_be_stored_it_is_compiled_all_the_same(store):
    store.write_text("a file where the folder should be")
    assert doubled_by(_fused.compile_kernel(double, SIGNATURE)) == [2, 4, 6]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_truncated_store_is_ignored(store, suffix):
    _fused.compile_kernel(double, SIGNATURE)
    for path in store.rglob(f"*.{suffix}"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert doubled_by(_fused.compile_kernel(double, SIGNATURE)) == [2, 4, 6]


def test_a_full_disk_does_not_matter(store, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", fail)
    assert doubled_by(_fused.compile_kernel(double, SIGNATURE)) == [2, 4, 6]


def test_what_cannot_be_compiled_is_an_error():
    with pytest.raises(numba.TypingError, match="Unknown attribute 'nonsense'"):
        _fused.compile_kernel(lambda values: values.nonsense, SIGNATURE)


def test_kernels_run_side_by_side_and_draw_no_threads_of_their_own():
    for kernel in (_fused.jitter(), _fused.retouch()):
        assert kernel.targetoptions["nogil"]
        assert not kernel.targetoptions.get("parallel", False)
        assert len(kernel.signatures) == 1
