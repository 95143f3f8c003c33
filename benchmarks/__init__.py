"""Measurements of the package against what there is otherwise: ``make bench``, or ``python -m benchmarks``.

A *comparison* has some *contenders*; in each *round* every one of them does the same work once, one after the
other, so that whatever else the machine does meets all of them alike. Every contender has a process of its
own, for the whole comparison: its CPU time and memory are its own, a Spark session is started once and not
before each run, and its first run (round 0) tells what that is like and warms it up for the others.
"""
