import math
import warnings

import pytest
import torch

from lightning_rlvr.calibration.ot_normal import EMA_DECAY, WARM_UP, OTNormalCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.functional.calibration import extend_reservoir, ot_normal, score_cap
from lightning_rlvr.functional.groups import group_mean
from lightning_rlvr.functional.random import uniform

SCOPES = ("group", "task_batch", "group_then_task", "task_running")


def binary_rollout(make_rollout, correct, size=8, tasks=None, **changes):
    """Groups of ``size`` binary rewards with the given numbers correct, rows of a group side by side."""
    rewards = torch.tensor([float(i < k) for k in correct for i in range(size)])
    groups = torch.arange(len(correct)).repeat_interleave(size)
    task_id = torch.zeros_like(groups) if tasks is None else torch.tensor(tasks)[groups]
    fields = {"rewards": rewards, "group_index": groups, "task_id": task_id} | changes
    return make_rollout(num_groups=len(correct), num_generations=size, ragged=False, **fields)


def advantages_of(calibrator, rollout):
    calibrator.observe(rollout)
    return calibrator.calibrate(rollout)


def test_second_stage_of_g2rpo_flips_the_sign_of_correct_rows(make_rollout):
    # Pooled first-stage scores of 8 groups with 6/8 and 2 groups with 7/8 correct, 80 rows, in blocks: wrong of 7/8,
    # wrong of 6/8, correct of 7/8 (+.2192), correct of 6/8 (+.4035). The third block, sorted positions 19 to 32, lies
    # below the middle: mean of ndtri((j - .5) / 80) = -.4939. The fourth, 33 to 80: +.6417.
    rollout = binary_rollout(make_rollout, [6] * 8 + [7] * 2)
    first = OTNormalCalibrator().calibrate(rollout)
    second = advantages_of(OTNormalCalibrator(scope="group_then_task"), rollout)
    assert (first[64].item(), second[64].item()) == pytest.approx((0.2192, -0.4939), abs=1e-4)
    assert (first[0].item(), second[0].item()) == pytest.approx((0.4035, 0.6417), abs=1e-4)


def test_second_stage_leaves_constant_groups_out(make_rollout):
    # With the all-wrong groups filtered, the four groups with 6/8 are ranked among themselves.
    rollout = binary_rollout(make_rollout, [6] * 4 + [0] * 4)
    advantages = advantages_of(OTNormalCalibrator(scope="group_then_task"), rollout)
    assert advantages[32:].tolist() == [0.0] * 32
    assert advantages[:32].equal(ot_normal(rollout.rewards[:32], torch.zeros(32, dtype=torch.int64)))


def test_two_stages_warn_once_for_each_fit():
    calibrator = OTNormalCalibrator(scope="group_then_task")
    with pytest.warns(UserWarning, match="baseline arm only"):
        calibrator.setup(None, None, "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator.setup(None, None, "validate")
        OTNormalCalibrator().setup(None, None, "fit")


def test_task_batch_ranks_across_prompts(make_rollout):
    # 16 rows of one task, 9 correct: no baseline for each prompt, so equal rewards have equal advantages.
    rollout = binary_rollout(make_rollout, [2, 7])
    advantages = advantages_of(OTNormalCalibrator(scope="task_batch"), rollout)
    assert advantages.unique().tolist() == ot_normal(rollout.rewards, rollout.task_id).unique().tolist()
    assert group_mean(advantages, rollout.group_index).abs().min() > 0.1


def test_task_running_is_the_population_score_minus_the_group_mean(make_rollout):
    # First rollout: the sample is the rollout itself, 16 rows with 9 correct; scores are two-valued.
    rollout = binary_rollout(make_rollout, [2, 7])
    advantages = advantages_of(OTNormalCalibrator(scope="task_running"), rollout)
    scores = ot_normal(rollout.rewards, rollout.task_id)
    torch.testing.assert_close(advantages, scores - group_mean(scores, rollout.group_index), atol=1e-6, rtol=0)


def test_task_running_remembers_earlier_rollouts_and_keeps_tasks_apart(make_rollout):
    calibrator = OTNormalCalibrator(scope="task_running")
    rollout = binary_rollout(make_rollout, [4, 4], tasks=[0, 1])
    first = advantages_of(calibrator, rollout)
    calibrator.observe(binary_rollout(make_rollout, [1, 1], tasks=[0, 0], seed=1))
    later = calibrator.calibrate(rollout)
    assert later[8:].equal(first[8:])
    assert not torch.allclose(later[:8], first[:8])


def test_task_running_without_observation_is_silent(make_rollout):
    calibrator = OTNormalCalibrator(scope="task_running")
    assert calibrator.calibrate(binary_rollout(make_rollout, [4])).tolist() == [0.0] * 8


def test_equalizing_starts_after_the_warm_up_and_moves_tasks_together(make_rollout):
    # Task 0 with 1/8 correct is at the cap and stays; task 1 with 4/8: rms .7668, factor c_8 / .7668 = 1.2030.
    rollout = binary_rollout(make_rollout, [1, 4, 0], tasks=[0, 1, 1])
    plain = OTNormalCalibrator().calibrate(rollout)
    calibrator = OTNormalCalibrator(equalize="rms")
    for _ in range(WARM_UP):
        assert advantages_of(calibrator, rollout).equal(plain)
    equalized = advantages_of(calibrator, rollout)
    torch.testing.assert_close(equalized[:8], plain[:8])
    torch.testing.assert_close(equalized[8:16], 1.2030 * plain[8:16], atol=2e-4, rtol=0)
    assert equalized.sign().equal(plain.sign())
    assert equalized.abs().max() <= score_cap(torch.tensor(8)) + 1e-6


def test_running_mean_square_is_an_unbiased_moving_average(make_rollout):
    # Scores of 4/8: mean square .7668^2 = .5880; of 1/8: .5798^2 = .3362. Weights decay, 1 over 1 + decay.
    calibrator = OTNormalCalibrator(equalize="rms")
    for correct in (4, 1):
        calibrator.observe(binary_rollout(make_rollout, [correct, 0]))
    average, updates = calibrator.state_dict()["mean_squares"][0]
    expected = (EMA_DECAY * 0.5880 + 0.3362) / (EMA_DECAY + 1)
    assert updates == 2
    assert average / (1 - EMA_DECAY**2) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("arguments", [{"equalize": "rms"}, {"scope": "task_running"}])
def test_restored_state_gives_the_same_advantages(make_rollout, arguments, tmp_path):
    calibrator = OTNormalCalibrator(**arguments)
    for seed in range(WARM_UP + 2):
        calibrator.observe(make_rollout(seed, num_tasks=2))
    torch.save(calibrator.state_dict(), tmp_path / "state.pt")
    restored = OTNormalCalibrator(**arguments)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    rollout = make_rollout(99, num_tasks=2)
    expected = advantages_of(calibrator, rollout)
    assert not OTNormalCalibrator(**arguments).calibrate(rollout).equal(expected)
    assert advantages_of(restored, rollout).equal(expected)


def test_saved_state_does_not_change_with_later_rollouts(make_rollout):
    calibrator = OTNormalCalibrator(scope="task_running")
    calibrator.observe(make_rollout(0))
    state = calibrator.state_dict()
    before = state["reservoirs"][0].clone()
    calibrator.observe(make_rollout(1))
    assert state["reservoirs"][0].equal(before)


@pytest.mark.parametrize("scope", SCOPES)
def test_every_scope_is_silent_where_there_is_no_signal_and_tells_the_truth_about_centering(make_rollout, scope):
    rewards = torch.tensor([1.0, 0, 0, math.nan, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 1, 1, 1, 0])
    groups = torch.arange(4).repeat_interleave(4)
    rollout = make_rollout(num_groups=4, ragged=False, rewards=rewards, group_index=groups, task_id=groups // 3)
    calibrator = OTNormalCalibrator(scope=scope)
    advantages = advantages_of(calibrator, rollout)
    assert advantages[3:12].tolist() == [0.0] * 9
    assert advantages[0] > advantages[1] == advantages[2]
    assert advantages[12] == advantages[13] > advantages[15]
    uneven = advantages_of(calibrator, binary_rollout(make_rollout, [6] * 8 + [7] * 2))
    centers = group_mean(uneven, torch.arange(10).repeat_interleave(8)).abs().max() < 1e-5
    assert calibrator.centered == centers.item()


def test_rows_of_all_ranks_are_asked_for_only_where_they_matter():
    assert OTNormalCalibrator(scale="c_n", position="bary").group_local
    assert not OTNormalCalibrator(equalize="rms").group_local
    assert not any(OTNormalCalibrator(scope=scope).group_local for scope in SCOPES[1:])


@pytest.mark.parametrize("correct", range(1, 8))
def test_binary_groups_of_one_size_are_a_rescaled_zscore(make_rollout, correct):
    rollout = binary_rollout(make_rollout, [correct])
    ratio = OTNormalCalibrator().calibrate(rollout) / ZScoreCalibrator(ddof=0, eps=0.0).calibrate(rollout)
    torch.testing.assert_close(ratio, ratio[:1].expand(8))
    # Shrink of the 4/8 group is .7668, and less the more uneven the group; 1/8: .5798.
    expected = {1: 0.5798, 2: 0.6990, 3: 0.7514, 4: 0.7668}[min(correct, 8 - correct)]
    assert ratio[0].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position": "midrank"}, "`position` must be one of hazen, bary, vdw, blom, got 'midrank'"),
        ({"scope": "batch"}, "`scope` must be one of group, task_batch, group_then_task, task_running"),
        ({"scope": "task_batch", "equalize": "rms"}, "`equalize` must be none with `scope` task_batch, got 'rms'"),
        ({"scope": "group_then_task", "equalize": "rms"}, "`equalize` must be none with `scope` group_then_task"),
        ({"scope": "task_running", "scale": "c_n"}, "`scale` must be none with `scope` task_running, got 'c_n'"),
        ({"tie_tol": -1e-6}, "`tie_tol` must be in"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        OTNormalCalibrator(**arguments)


def test_state_keys_distinguish_instances():
    instances = [
        OTNormalCalibrator(),
        OTNormalCalibrator(position="bary"),
        OTNormalCalibrator(equalize="rms"),
        OTNormalCalibrator(scale="c_n"),
        OTNormalCalibrator(tie_tol=1e-3),
        *(OTNormalCalibrator(scope=scope) for scope in SCOPES[1:]),
    ]
    assert len({calibrator.state_key for calibrator in instances}) == len(instances)
    assert OTNormalCalibrator().state_key == OTNormalCalibrator().state_key


def test_the_running_sample_does_not_depend_on_what_was_sampled():
    """The engine draws a row's first token by stream 0 of its seed; rewards that follow that token stay unbiased."""
    seeds = torch.arange(20_000)
    rewards = (uniform(seeds, num=1)[:, 0] > 0.5).float()
    kept = extend_reservoir(torch.empty(2, 0), rewards, seeds, 2000)
    assert abs(float(kept[1].mean()) - 0.5) < 0.05
