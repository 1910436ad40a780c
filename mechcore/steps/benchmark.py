"""The benchmark of methods on cases of known truth, as jobs in a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mechcore.bench.cases import case_names, interacts, load_case
from mechcore.bench.methods import PREDICTORS, RANKERS
from mechcore.bench.recovery import NODES, PAIRS, WITH_PAIRS, recovered_nodes, recovered_pairs
from mechcore.models.devices import check_device
from mechcore.study.engine import Study, perform
from mechcore.study.executors import Local
from mechcore.study.step import TABLES_FOLDER, Job, Step, Work, in_order
from mechcore.study.store import Store
from mechcore.tables import Schema


@dataclass(frozen=True)
class Recovery(Step):
    """How well methods recover the truth of one case, with texts and draws of one seed."""

    kind = "recovery"
    schemas = (NODES, PAIRS)
    case: str
    seed: int
    methods: tuple[str, ...]
    interaction_methods: tuple[str, ...]

    def uses(self) -> Sequence[object]:
        """The methods."""
        rankers = [RANKERS[name] for name in self.methods if name != WITH_PAIRS]
        return [*rankers, *(PREDICTORS[name] for name in self.interaction_methods)]

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        case = load_case(self.case, work.partial / "case", seed=self.seed, device=work.device)
        tables = {"nodes": recovered_nodes(case, self.methods, seed=self.seed)}
        if interacts(self.case):
            tables["pairs"] = recovered_pairs(case, self.interaction_methods, seed=self.seed)
        work.write_tables(tables)


def run_benchmark(
    out: Path,
    cases: Sequence[str],
    methods: Sequence[str],
    interaction_methods: Sequence[str],
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``nodes`` and ``pairs`` of every method on every case; ``out`` has the store."""
    check_device(device)
    store = Store(out / "store")
    how = [tuple(dict.fromkeys(names)) for names in (methods, interaction_methods)]
    jobs = in_order(
        Job.of(Recovery(case, seed, *how), f"{case} seed={seed}", hash_file=store.hash_file)
        for seed in seeds
        for case in case_names(cases)
    )
    store.create()
    store.leftovers(remove=True)
    perform(Study(jobs), store, Local(device=device), out)

    def table(schema: Schema) -> pd.DataFrame:
        files = [store.whole(job.key) / TABLES_FOLDER / f"{schema.name}.csv" for job in jobs]
        parts = [schema.read(file) for file in files if file.exists()]
        return pd.concat(parts or [schema.frame([])], ignore_index=True)

    return table(NODES), table(PAIRS)
