"""Pure decisions: facts go in, plans and states come out.

This room uses no client, clock, thread or logger.
"""
