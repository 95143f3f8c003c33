"""An oracle of the tests' own: what windows must hold, said from `docs/guarantees.md` and from the logs alone.

- `plain`: what plain clients see of topics, and of the offsets that a group has committed.
- `truth`: all that was ever seen in each log, also what retention has taken since.
- `journal`: what each call of the package was asked and what it answered, by whichever process.
- `verdict`: truth and journal against the guarantees, for calls of many processes in an order that nobody knows.
- `serial`: the same in more detail, for calls whose order is known; `planning` has what it asks of plans.
- `histories`: random histories of everything; `life` lives through them, and `serial` judges.
- `outputs`: random histories that end in what readers see, with a judge of their own.
- `shrinking`: makes a failing history short.

Nothing here uses the package's planning, its state of a group, its maps of times, or its claims.
"""
