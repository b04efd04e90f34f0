from __future__ import annotations

import pytest

from ldstyle.benchmark.paper import TILES
from ldstyle.data.domains.archives import ARCHIVES
from ldstyle.data.domains.discovery import read_domains
from ldstyle.runs.sources import ground_sides


def test_a_custom_table_states_it_by_its_column_and_the_size_of_its_files(tmp_path, make_image):
    for name, size in (("a", (8, 8)), ("b", (16, 4)), ("c", (20, 20)), ("d", (9, 9))):
        make_image(tmp_path / f"{name}.png", size=size)
    (tmp_path / "all.csv").write_text("path,domain,gsd,tree\na.png,x,0.5,1\nb.png,x,1.0,0\nc.png,x,,0\nd.png,y,,1\n")
    one, other = read_domains(tmp_path)
    assert ground_sides(one, range(3)) == pytest.approx((4.0, 8.0))
    assert ground_sides(one, [1, 2]) == pytest.approx((8.0, 8.0))
    assert ground_sides(one, [2]) is None
    assert ground_sides(other, [0]) is None


def test_a_download_states_that_of_its_release_and_a_custom_table_of_that_name_nothing(tmp_path, layouts, make_image):
    layouts.aid(tmp_path / "official" / "download")
    make_image(tmp_path / "custom" / "aid" / "a.png")
    (tmp_path / "custom" / "aid" / "labels.csv").write_text("path,tree\na.png,1\n")
    (official,), (custom,) = read_domains(tmp_path / "official"), read_domains(tmp_path / "custom")
    assert official.domain == custom.domain == "aid"
    assert ground_sides(official, range(4)) == (300.0, 4800.0)
    assert ground_sides(custom, [0]) is None


@pytest.mark.parametrize("domain", TILES)
def test_releases_show_as_much_ground_as_table_1_says(domain):
    sides = [TILES[domain].pixels * metres for metres in TILES[domain].metres]
    assert ARCHIVES[domain].ground == pytest.approx(sides)
