"""An oracle of published output: random histories that end in what readers see.

- `steps`: random histories; one seed, one history, which can be shortened.
- `life`: turns steps into calls of processes. `choices` reads a step's numbers; `deliveries`, `upkeep` and `hands` have a
  method for each kind of step; `finish` brings a history to its end.
- `processes`: lets processes act; `kills` lets them die before any change that they make; `child` lets whoever dies be
  a process of its own, on a broker.
- `world`: clusters, topics, ledgers and the clock; `roots`: where windows are published, and what readers see there.
- `lineage`: one group as one ledger knows it; `account`: all that was produced, promised and seen.
- `judge`: the verdict. It states the promises to readers, rule by rule.
- `memory`: histories in memory.
- `verbs`: what takes more than one call.

``python -m tests.support.oracle.outputs SEED`` repeats a history, and shortens it if it fails.
"""
