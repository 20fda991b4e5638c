"""Assigners made of assigners: mixture, placebo, inversion; hooks, state and needs reach the members."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lightning_rlvr.calibration.sequential import SequentialCalibrator
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.credit.entropy import EntropyCredit
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.inverted import InvertedCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.credit.mixture import MixtureCredit
from lightning_rlvr.credit.permuted import PermutedCredit
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.functional.credit import ramp, spread


class Counting(UniformCredit):
    """Counts the hooks that reach it; neither conserves nor looks at rows alone."""

    conserves = False
    row_local = False

    def __init__(self):
        self.calls = []

    @override
    def setup(self, trainer, pl_module, stage):
        self.calls.append(("setup", stage))

    @override
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.calls.append(("on_train_batch_end", batch_idx))

    @override
    def state_dict(self):
        return {"calls": len(self.calls)}

    @override
    def load_state_dict(self, state_dict):
        self.calls = ["restored"] * state_dict["calls"]


COMPOSITES = [lambda member: MixtureCredit(["uniform", member]), PermutedCredit, InvertedCredit]


@pytest.mark.parametrize("compose", COMPOSITES)
def test_hooks_and_state_reach_the_members(compose):
    member, other = Counting(), Counting()
    composite, restored = compose(member), compose(other)
    composite.setup(None, None, "fit")
    composite.on_train_batch_end(None, None, None, None, batch_idx=3)
    assert member.calls == [("setup", "fit"), ("on_train_batch_end", 3)]
    restored.load_state_dict(composite.state_dict())
    assert other.calls == ["restored", "restored"]


@pytest.mark.parametrize("composite", [MixtureCredit, PermutedCredit, InvertedCredit, SequentialCalibrator])
def test_no_lightning_hook_is_left_out(composite):
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    assert "on_load_checkpoint" in hooks
    assert all(getattr(composite, name) is not getattr(Callback, name) for name in [*hooks, "setup", "teardown"])


@pytest.mark.parametrize("compose", COMPOSITES)
def test_needs_and_claims_are_united(compose):
    assert compose(MarginCredit()).requires == {"margin"}
    assert compose(MarginCredit()).conserves
    assert compose(MarginCredit()).row_local
    assert compose("evidence_contrast").ablations == EvidenceContrastCredit().ablations
    assert not compose(Counting()).conserves
    assert not compose(Counting()).row_local


def test_diagnostics_of_equal_name_are_kept_apart(make_rollout):
    rollout = make_rollout(requires=["margin"])
    wide, narrow = MarginCredit(lo=0.1, hi=0.9), MarginCredit(lo=0.4, hi=0.6)
    logged = MixtureCredit([wide, narrow]).diagnostics(rollout)
    assert logged["margin_score"].equal(wide.diagnostics(rollout)["margin_score"])
    assert logged["margin_score_2"].equal(narrow.diagnostics(rollout)["margin_score"])


@pytest.mark.parametrize("compose", COMPOSITES)
def test_diagnostics_are_those_of_the_members(make_rollout, compose):
    rollout = make_rollout(requires=["margin"])
    assert set(compose(MarginCredit()).diagnostics(rollout)) == set(MarginCredit().diagnostics(rollout))


@pytest.fixture
def case(make_rollout):
    statistics = {ablation.statistic for ablation in EvidenceContrastCredit().ablations} | {"margin", "entropy"}
    rollout = make_rollout(5, requires=sorted(statistics))
    return rollout, torch.randn(len(rollout), generator=torch.Generator().manual_seed(0))


def test_mixture_is_the_convex_combination_of_its_members(case):
    members = [UniformCredit(), MarginCredit(), EvidenceContrastCredit()]
    parts = [member.assign(*case) for member in members]
    mixed = MixtureCredit(members, [0.5, 0.3, 0.2]).assign(*case)
    torch.testing.assert_close(mixed, 0.5 * parts[0] + 0.3 * parts[1] + 0.2 * parts[2])
    torch.testing.assert_close(MixtureCredit(members).assign(*case), sum(parts) / 3)


def test_mixture_with_all_weight_on_one_member_is_that_member(case):
    assert torch.equal(MixtureCredit(["margin", "entropy"], [1.0, 0.0]).assign(*case), MarginCredit().assign(*case))
    assert torch.equal(MixtureCredit(["margin", "entropy"], [0.0, 1.0]).assign(*case), EntropyCredit().assign(*case))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), r"`assigners` must be a list of at least one, got \[\]"),
        ((["uniform"], [0.5, 0.5]), "`weights` must be 1 numbers, one for each assigner"),
        ((["uniform", "uniform"], [1.5, -0.5]), "`weights` must be non-negative with sum 1"),
        ((["uniform", "uniform"], [0.5, 0.4]), r"`weights` must be non-negative with sum 1, got \[0\.5, 0\.4\]"),
        ((["unifrom"],), "unknown credit assigner 'unifrom'; choices: .*uniform"),
    ],
)
def test_mixtures_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MixtureCredit(*arguments)


def test_permuted_credit_has_the_same_values_in_other_places(case):
    rollout, _ = case
    inner, placebo = (assigner.assign(*case) for assigner in (MarginCredit(), PermutedCredit("margin")))
    for i in range(len(rollout)):
        valid = rollout.completion_mask[i]
        assert torch.equal(placebo[i, valid].sort().values, inner[i, valid].sort().values)
    assert not torch.equal(placebo, inner)


def test_permuted_credit_depends_on_the_seed_of_the_row(make_rollout, case):
    rollout, advantages = case
    other = make_rollout(5, requires=["margin"], seeds=rollout.seeds + 1)
    placebo = PermutedCredit("margin")
    assert not torch.equal(placebo.assign(other, advantages), placebo.assign(rollout, advantages))


def test_inverted_credit_has_one_minus_the_score_where_scores_span_the_ramp(make_rollout):
    margins = torch.tensor([[0.1, 0.9, 0.5, 0.3, 0.95, 0.95, 0.7]])
    rollout = make_rollout(num_groups=1, num_generations=1, requires=["margin"])
    rollout.statistics["margin"].copy_(margins)
    expected = spread(ramp(margins, 0.2, 0.8), rollout.completion_mask, floor=0.2)
    inverted = InvertedCredit("margin")
    torch.testing.assert_close(inverted.assign(rollout, torch.tensor([1.0])), expected)
    torch.testing.assert_close(inverted.assign(rollout, torch.tensor([-2.0])), -2 * expected)


def test_inverted_uniform_credit_is_uniform_bit_for_bit(case):
    assert torch.equal(InvertedCredit("uniform").assign(*case), UniformCredit().assign(*case))


def test_inverting_twice_restores_the_order(case):
    rollout, _ = case
    twice, once = InvertedCredit(InvertedCredit("margin")).assign(*case), MarginCredit().assign(*case)
    for i in range(len(rollout)):
        order = once[i, rollout.completion_mask[i]].argsort(stable=True)
        assert (twice[i, rollout.completion_mask[i]][order].diff() >= -1e-5).all()


def test_composites_are_assigners():
    assert isinstance(PermutedCredit("margin"), CreditAssigner)
    assert PermutedCredit("margin").state_key != PermutedCredit(MarginCredit(lo=0.1)).state_key
    assert MixtureCredit(["uniform", "margin"]).state_key != MixtureCredit(["uniform", "margin"], [0.1, 0.9]).state_key
