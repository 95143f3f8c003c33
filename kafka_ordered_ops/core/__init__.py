"""Pure decisions: facts go in, plans and states come out.

Nothing in this room knows a client, a clock, a thread or a logger.
"""
