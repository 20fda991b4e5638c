"""The length confound: what remains of a difference in accuracy when the number of tokens is accounted for."""

from __future__ import annotations

from lightning_rlvr.report.length import budget, description, iso_tokens, matching, regression
from lightning_rlvr.report.length.runs import compared, weighted
from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Section

CAVEATS = (
    "Budget curves cut completions that were sampled with a larger budget. That is exact for these samples, since an "
    "answer counts where its completion ends; policies trained or prompted for the smaller budget might do otherwise.",
    "Equal tokens means equal sampled tokens at evaluation: neither prompt tokens, nor seconds, nor the cost of "
    "training. pass@k assumes that something picks the correct one of k answers. Majority votes (maj@k), which need "
    "nothing of the kind, are not compared at equal tokens.",
    "Matched strata cover only the completions that have a counterpart of like length (`overlap`), and lengths still "
    "differ a little inside a decile.",
    "The regression is as good as its form (one spline for both arms and all problems, effects that add up in log "
    "odds); an odds ratio within problems is further from 1 than one over all problems, and with few samples of each "
    "problem further still. Sets with more samples weigh more in it. The regression over runs has few runs.",
    "The intervals of this section are not adjusted for the number of arms and views.",
    "Strata and regressions hold fixed the length, which the method itself may change, after the treatment: they "
    "describe, and neither a difference that vanishes nor one that stays tells what caused it. Only an intervention "
    "separates the two: arms that are trained to one length (`target_length`), and placebo credit (permuted or "
    "inverted margins), as in the sweep `length_control`.",
)


def section(results: SweepResults, confidence: float = 0.95) -> Section:
    """Lengths of all arms, and five ways to compare their accuracy with length taken into account.

    Args:
        results: Paired runs.
        confidence: Of all intervals.
    """
    results = weighted(results)
    lengths = description.table(results, confidence)
    if not compared(results):
        text = f"No arm shares a seed with the baseline `{results.baseline}`: there is nothing to compare."
        return Section(title="Length", text=(text,), tables=(lengths,))
    return Section(
        title="Length",
        text=(
            "Does a difference in accuracy come with a difference in length?",
            *description.sentences(results, confidence),
            "Five views follow, from the weakest assumptions to the strongest: accuracy within a budget of tokens; "
            "pass@k at equal sampled tokens; accuracy among completions of like length to the same problem; a "
            "regression over samples; one over runs. The first two compare what the arms deliver for their tokens. "
            "**The last three condition on length, which the method itself may change (post-treatment): they are "
            "descriptive.**",
        ),
        tables=(
            lengths,
            budget.table(results, confidence),
            iso_tokens.table(results, confidence),
            matching.table(results, confidence),
            *regression.tables(results, confidence),
        ),
        plots=(budget.plot(results, confidence), iso_tokens.plot(results, confidence)),
        caveats=CAVEATS,
    )
