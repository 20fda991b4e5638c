from fabricated_results import make_results
from lightning_rlvr.report.overview import summary
from lightning_rlvr.report.results import SweepResults


def make_summary(**changes):
    return summary(SweepResults(**vars(make_results(seeds=(0, 1))) | changes))


def test_the_summary_names_the_conditions_of_the_evaluation():
    conditions = {"stop_ids": [1], "temperature": 0.7, "top_p": 0.9, "max_completion_length": 32, "step": 200}
    found = make_summary(conditions=conditions)
    expected = "drawn with `step` 200, `temperature` 0.7, `top_p` 0.9, `max_completion_length` 32 (only"
    assert expected in found.text[1]
    assert "drawn with" not in make_summary().text[1]


def test_every_verdict_is_explained():
    caption = make_summary().tables[0].caption
    for word in ("better or worse", "inconclusive", "Too few pairs: two.", "No test: fewer than two, or no spread"):
        assert word in caption


def test_settings_are_as_wide_for_many_arms_as_for_two():
    effects = [("grpo", 0.0), *((f"arm{number}", 0.0) for number in range(15))]
    settings = {arm: {"credit": "U"} for arm, _ in effects} | {"arm3": {"credit": "M", "credit.scale": 2.0}}
    results = make_results(effects, seeds=(0,), problems=6, samples=4)
    frame = summary(SweepResults(**vars(results) | {"settings": settings})).tables[1].frame
    assert list(frame) == ["setting", "value", "arms"]
    others = ", ".join(arm for arm, _ in effects if arm != "arm3")
    assert frame.values.tolist() == [["credit", "U", others], ["credit", "M", "arm3"], ["credit.scale", "2.0", "arm3"]]
