"""Pure decisions from facts to plans and states.

This room uses no client, clock, thread or logger.
"""
