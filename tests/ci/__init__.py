"""The run of all tests: `python -m tests.ci`, which is `make test`.

__main__   the steps: two pools at once, the quiet tests, one rerun, the box
pools      plugin: which of pytest-xdist's processes runs which files, and in which order
results    plugin: what failed, how, and how long each file took
reruns     which failed tests may run a second time
flaky      flaky.toml: the tests that did, until they are mended
changes    what a submission changes, and which tests that can break (`make test-changed`)
"""
