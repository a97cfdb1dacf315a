"""How well lengths of jobs and their starts are forecast from what ran before, on public traces split in time."""

from __future__ import annotations

from slurmsched.experiments.experiment import ExperimentResult, ExperimentSetup
from slurmsched.experiments.forecasts.lengths import (
    TRACES,
    forecast_lengths,
    length_rows,
    poison_row,
    poisoned_medians,
    together,
)
from slurmsched.experiments.forecasts.starts import POLICIES, ForecastWeeks, forecast_starts_of, start_rows

__all__ = ["run_forecasts"]


def run_forecasts(setup: ExperimentSetup) -> ExperimentResult:
    """Forecasts the lengths of the jobs of all traces, and starts; with `quick` the lengths of two clusters of ITP."""
    traces = [trace for trace in TRACES if not setup.quick or trace.name in {"itp 1", "itp 5"}]
    paths = {trace.name: setup.data_file("traces", *trace.path.split("/")) for trace in traces}
    forecasts = setup.run_all(forecast_lengths, paths.values(), "forecasting lengths")
    known = {name: forecasts[path] for name, path in paths.items()}
    known["itp"] = together([each for name, each in known.items() if name.startswith("itp")])
    rows = [row for name, each in known.items() for row in length_rows(name, each, setup.seeds)]
    with_owners = {name: path for name, path in paths.items() if name.startswith("philly")}
    changes = setup.run_all(poisoned_medians, with_owners.values(), "poisoning")
    rows += [poison_row(name, changes[path]) for name, path in with_owners.items()]
    if "philly" in paths:
        weeks = {seed: [ForecastWeeks(paths["philly"], policy, seed) for policy in POLICIES] for seed in setup.seeds}
        told = setup.run_all(forecast_starts_of, [one for each in weeks.values() for one in each], "forecasting starts")
        for at, policy in enumerate(POLICIES):
            rows += start_rows(policy, {seed: told[each[at]] for seed, each in weeks.items()})
    return ExperimentResult("forecasts", tuple(rows))
