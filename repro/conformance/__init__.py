"""The gold literals and source-set walks against every backend here and every public AttnRes found.

`python -m repro.conformance` runs each implementation in a process of its own and writes one table. What is
compared: `cases`. How an implementation is called: `adapter` and one file each under `adapters`. The process:
`worker` (inside) and `run` (outside). The errors: `compare` and `walk`. The pages: `table`. The peers are
optional; nothing outside `adapters` imports them.
"""
