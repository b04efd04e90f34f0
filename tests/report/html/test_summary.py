import pytest

from ldstyle.report.html.summary import summarize


def plain(text):
    """The text with ordinary spaces."""
    return text.replace("\u00a0", " ")


def figures(summary):
    return [(one.value, one.unit) for one in summary.figures]


def test_the_best_method_is_named_with_its_gain_and_interval(make_grid):
    grid = make_grid()
    grid.fill(["erm", "efdmix", "ld-efdmix-gc"], seeds=3)
    summary = summarize(grid.view())
    assert plain(summary.headline) == (
        "LD-EFDMix-GC is the best of 3 methods: 50.0 % mAP on all 30 images of 3 targets, never seen in training, over "
        "3 splits and 3 seeds."
    )
    assert figures(summary) == [("50.0", "% mAP"), ("+6.0", "points"), ("+3.0", "points"), ("27 of 27", "")]
    assert summary.figures[1].meaning == "LD-EFDMix-GC over ERM (+6.0 to +6.0)"
    assert summary.figures[2].meaning == "LD-EFDMix-GC over EFDMix (+3.0 to +3.0)"
    assert plain(summary.lead) == (
        "EFDMix mixes the style of whole training images; LD-EFDMix-GC mixes it label by label, each label with the "
        "same label in an image of another domain: on all 30 images of 3 targets, never seen in training, this changes "
        "mAP by +3.0 points (95 % interval +3.0 to +3.0 over 3 seeds)."
    )
    # Three seeds with the same sign: 2 / 2^3, and twice that over two comparisons.
    assert plain(summary.remarks[0]) == (
        "LD-EFDMix-GC differs from ERM by +6.0 points of mAP; 95 % interval +6.0 to +6.0 over 3 seeds; p = 0.5, "
        "corrected for 2 comparisons."
    )
    assert "selected by the same numbers" in summary.remarks[1]
    assert summary.unfinished == ()


def test_plain_training_may_be_best(make_grid):
    grid = make_grid()
    for seed, (erm, other) in enumerate([(0.6, 0.5), (0.61, 0.63), (0.6, 0.58)]):
        grid.done("erm", "s1", seed, ap=erm)
        grid.done("efdmix", "s1", seed, ap=other)
    summary = summarize(grid.view())
    assert plain(summary.headline).startswith("ERM is the best of 2 methods: 60.3 % mAP")
    assert figures(summary)[1] == ("−3.3", "points")
    assert "The interval includes zero, so these runs do not show which of the two is better." in summary.remarks


@pytest.mark.parametrize(("seeds", "spread"), [(1, "(1 seed)"), (2, "(−2.0 and −1.0 for 2 seeds)")])
def test_the_lead_has_no_interval_below_three_seeds_and_no_favourite(make_grid, seeds, spread):
    grid = make_grid()
    for seed in range(seeds):
        grid.done("mixstyle", seed=seed, ap=0.5)
        grid.done("ld-mixstyle", seed=seed, ap=0.48 + 0.01 * seed)
    assert plain(summarize(grid.view()).lead).endswith(spread + ".")


def test_without_a_pair_that_mixes_there_is_no_lead(make_grid):
    grid = make_grid()
    for method in ("erm", "csu", "ld-csu", "ld-efdmix"):
        grid.done(method)
    assert summarize(grid.view()).lead == ""


def test_one_seed_claims_nothing(make_grid):
    grid = make_grid()
    grid.done("erm", ap=0.5)
    grid.done("ld-efdmix", ap=0.6)
    assert summarize(grid.view()).remarks == (
        "One seed gives no interval: the difference between LD-EFDMix and ERM may be chance.",
    )


def test_the_headline_is_of_the_whole_target_with_its_number_of_images(make_grid):
    grid = make_grid()
    for method, test, whole in (("erm", 0.9, 0.5), ("ld-efdmix", 0.2, 0.6)):
        record = grid.done(method, ap=test, whole=whole)
    assert record["scores"]["all"]["n"] == 10
    summary = summarize(grid.view())
    assert "LD-EFDMix is the best of 2 methods: 60.0 % mAP on all 10 images of harbour" in plain(summary.headline)
    assert figures(summary)[:2] == [("60.0", "% mAP"), ("+10.0", "points")]


def test_two_seeds_are_listed_with_the_smallest_p_they_allow_and_give_no_interval(make_grid):
    grid = make_grid()
    for seed, gain in enumerate((0.02, 0.05)):
        grid.done("erm", seed=seed, ap=0.5)
        grid.done("ld-efdmix", seed=seed, ap=0.5 + gain)
    summary = summarize(grid.view())
    assert summary.figures[1].meaning == "LD-EFDMix over ERM (+2.0 and +5.0; p ≥ 0.5)"
    (remark,) = summary.remarks
    assert "+2.0 and +5.0 points" in remark
    assert "no interval" in remark
    assert "0.5" in remark
    assert "95" not in remark


def test_the_oracle_is_a_mark_and_not_a_rival(make_grid):
    grid = make_grid()
    for method, ap in (("erm", 0.5), ("ld-efdmix", 0.6), ("oracle", 0.9)):
        grid.done(method, ap=ap)
    summary = summarize(grid.view())
    assert plain(summary.headline).startswith("LD-EFDMix is the best of 2 methods")
    assert figures(summary) == [("60.0", "% mAP"), ("+10.0", "points"), ("−30.0", "points"), ("3 of 3", "")]


def test_what_failed_and_what_is_missing_is_told(make_grid):
    grid = make_grid()
    grid.plan(["erm", "efdmix", "ld-efdmix"], ["s1"], [0, 1])
    for seed in (0, 1):
        grid.done("erm", "s1", seed, ap=0.5)
    grid.done("efdmix", "s1", 0, ap=0.9)
    grid.fail("efdmix", "s1", 1, error="ValueError: no luck")
    summary = summarize(grid.view())
    # A mean over fewer seeds is not the best, however high.
    assert plain(summary.headline).startswith("ERM, so far the only complete method, reaches 50.0 % mAP")
    assert "3 of 6 runs have no result: 1 failed, 2 missing." in summary.remarks
    assert "EFDMix, s1, seed 1: ValueError: no luck" in summary.unfinished
    assert len(summary.unfinished) == 3


def test_methods_without_pairs_are_not_counted_as_compared(make_grid):
    grid = make_grid()
    grid.plan(["erm", "efdmix", "ld-efdmix"], ["s1"], [0, 1])
    for seed in (0, 1):
        grid.done("erm", "s1", seed, ap=0.5)
        grid.done("ld-efdmix", "s1", seed, ap=0.6)
    summary = summarize(grid.view())
    assert plain(summary.headline).startswith("LD-EFDMix is the best of the 2 methods that are complete: 60.0 % mAP")
    assert not any("biases" in remark for remark in summary.remarks)


def test_without_a_result_there_is_no_best(make_grid):
    grid = make_grid()
    grid.plan(["erm", "efdmix"], ["s1"], [0])
    summary = summarize(grid.view())
    assert plain(summary.headline) == "No method has a result on every split and seed yet."
    assert figures(summary) == [("0 of 2", "")]


def test_sweeps_do_not_compete(make_grid):
    from ldstyle.benchmark.studies import sensitivity_methods

    grid = make_grid()
    grid.done(sensitivity_methods()[0].name, ap=0.9)
    assert summarize(grid.view()) is None


def test_an_uneven_grid_names_the_best_of_each_split(make_grid):
    grid = make_grid()
    for seed in (0, 1):
        grid.done("erm", "s1", seed, ap=0.5)
        grid.done("ld-efdmix", "s1", seed, ap=0.6)
    grid.done("erm", "s2", 0, ap=0.4)
    grid.done("csu", "s2", 0, ap=0.3)
    grid.plan(["efdmix"], ["s3"], [0])
    summary = summarize(grid.view())
    assert plain(summary.headline) == (
        "No method has all splits and seeds. By split, of the methods with all of its seeds: LD-EFDMix on s1 → harbour "
        "(60.0 % mAP, the best of 2) and ERM on s2 → meadow (40.0 % mAP, the best of 2)."
    )
    assert figures(summary) == [("60.0", "% mAP"), ("40.0", "% mAP"), ("6 of 7", "")]
    assert summary.remarks[0].startswith("s1 → harbour: LD-EFDMix differs from ERM by +10.0 and +10.0 points")
