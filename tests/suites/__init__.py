"""Test suites of peers, run against Antiphon: `make test-suites`.

Each is downloaded, in the version that the `Makefile` pins. `does_not_apply.toml` has the tests that cannot hold
here, and why.
"""
