"""Looks before anyone queues: `python -m jobs.preflight`, alone or under the launcher that the job will use.

What looks (look.py and the ``look`` functions) is kept apart from what judges: judging takes plain data, on rank 0.
"""
