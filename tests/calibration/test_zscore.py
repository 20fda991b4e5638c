import pytest

from lightning_rlvr.calibration.zscore import ZScoreCalibrator


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"ddof": 2}, "`ddof` must be 0 or 1, got 2"), ({"eps": -1.0}, "`eps` must be >= 0, got -1.0")],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ZScoreCalibrator(**arguments)


def test_settings_reach_the_formula(make_rollout):
    # (1, 0): deviations +-1/2; ddof 0 std 1/2; eps 1/2 makes it +-1/2.
    rollout = make_rollout(num_groups=1, num_generations=2, rewards=[1.0, 0.0])
    assert ZScoreCalibrator(ddof=0, eps=0.5).calibrate(rollout).tolist() == [0.5, -0.5]
