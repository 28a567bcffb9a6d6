"""The batch benchmark, ``python run.py benchmark clients``: thousands of clients on what is there.

``rows`` says what is measured and ``subjects`` makes it; ``measure`` measures one row in a process of its own, with
the counters of ``energy``; ``running`` starts these processes and keeps what they found; ``files`` reads it back;
``tables``, ``pictures`` and ``page`` show it; ``comparing`` puts two machines side by side.
"""
